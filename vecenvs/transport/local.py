"""The worker that needs no transport: its envs live in the caller's process, which steps them when it asks for rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any

from gymnasium import Env

from vecenvs.board import Board
from vecenvs.making import make_envs
from vecenvs.protocol import Answer, Command
from vecenvs.transport import Message, Transport
from vecenvs.worker import Worker


class LocalTransport(Transport):
    """Queues commands and carries them out, one at a time, in `get`."""

    def __init__(self, env_fns: Sequence[Callable[[], Env[Any, Any]]], first: int, autoreset: str) -> None:
        self._first = first
        self._autoreset = autoreset
        self._commands: deque[tuple[int, Any]] = deque()
        self._answers: SimpleQueue[Message] = SimpleQueue()  # threads of async resets answer too
        self._worker: Worker | None = None
        self._envs, made = make_envs(env_fns, first, remote=False)
        self._answers.put((Answer.MADE, made))

    def attach(self, board: Board) -> None:
        self._worker = Worker(
            self._envs, self._first, board, self._autoreset, lambda tag, body: self._answers.put((tag, body)), remote=False
        )

    def put(self, tag: int, body: object = None) -> None:
        self._commands.append((tag, body))

    def get(self, timeout: float | None) -> Message | None:
        if self._answers.empty() and self._commands and self._worker is not None:
            self._worker.handle(*self._commands.popleft())
        try:
            return self._answers.get(timeout != 0 and not self._commands, timeout)
        except Empty:
            return None

    def exit_status(self) -> tuple[bool, int | None]:
        return False, None

    def stop(self, grace: float) -> None:
        if self._worker is not None:
            worker, self._worker = self._worker, None
            worker.handle(Command.CLOSE, None)
        else:
            for env in self._envs:
                env.close()
        self._envs = []
