"""A worker on its way: it takes the place of one that has died, and nobody waits for it but those who need its rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from vecenvs.board import Board
from vecenvs.errors import VecEnvError
from vecenvs.protocol import Answer, Command
from vecenvs.transport import Message, Transport


class Replacement(Transport):
    """Keeps commands until the worker has made its envs, and has been told what the one before it was in the midst of.

    `check` is given the body of MADE, and raises if these envs cannot take the place of the others; `briefing` are the
    commands that come before all others; `ready` is called with the worker itself once it has answered them, and puts
    it in the place of this. Whatever goes wrong, or takes more than `patience` seconds at a time, ends the
    worker, and is told in the message NOT_STARTED: nothing is raised in a wait for others.
    """

    def __init__(
        self,
        worker: Transport,
        board: Board,
        briefing: Sequence[tuple[Command, Any]],
        check: Callable[[Any], None],
        ready: Callable[[Transport], None],
        patience: float,
    ) -> None:
        self.worker = worker
        self._board = board
        self._briefing = list(briefing)
        self._check = check
        self._ready = ready
        self._patience = patience
        self._deadline = time.monotonic() + patience
        self._unanswered: int | None = None  # of the briefing; None while the envs are being made
        self._kept: list[tuple[int, Any]] = []
        self._ended = False

    @property
    def where(self) -> str:  # type: ignore[override]
        return self.worker.where

    def put(self, tag: int, body: object = None) -> None:
        if self._ended or tag == Command.CLOSE:
            raise BrokenPipeError("this worker has no envs to close yet")
        self._kept.append((tag, body))

    def get(self, timeout: float | None) -> Message | None:
        """The first answer is STARTED or NOT_STARTED."""
        if self._ended:
            return None
        try:
            message = self.worker.get(timeout)
            if message is not None:
                return self._go_on(message)
            if time.monotonic() >= self._deadline and not self.worker.exit_status()[0]:
                raise VecEnvError(f"a worker that replaces another did not start within {self._patience:g} s")
        except (ConnectionError, EOFError):  # it has died meanwhile: `exit_status` says so
            return None
        except Exception as exc:  # of its envs, of their spaces, of the engine that should have placed it
            self._ended = True
            self.worker.stop(0.0)
            return Answer.NOT_STARTED, exc
        return None

    def _go_on(self, message: Message) -> Message | None:
        self._deadline = time.monotonic() + self._patience
        if self._unanswered is None:
            self._check(message[1])
            self.worker.attach(self._board)
            for command, body in self._briefing:
                self.worker.put(command, body)
            self._unanswered = len(self._briefing)
        else:
            self._unanswered -= 1
        if self._unanswered:
            return None
        for tag, body in self._kept:
            self.worker.put(tag, body)
        self._ready(self.worker)
        return Answer.STARTED, None

    def attach(self, board: Board) -> None:
        raise VecEnvError("a worker that replaces another is attached when it has made its envs, not before")

    def exit_status(self) -> tuple[bool, int | None]:
        return (True, None) if self._ended else self.worker.exit_status()

    def stop(self, grace: float) -> None:
        self.worker.stop(grace)
