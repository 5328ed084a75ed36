"""The worker in the caller's own process, which carries out commands while it waits for their answers."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from gymnasium import Env

from vecenvs.batch.batch_columns import BatchColumns
from vecenvs.transport import Message, Transport
from vecenvs.transport.protocol import Answer, Command
from vecenvs.worker.make_envs import make_envs
from vecenvs.worker.worker import Worker, close_envs

_STEP, _AWAIT_RESET = int(Command.STEP), int(Command.AWAIT_RESET)
_INSTANT = 1e-9  # seconds: with a timeout of 0 `get` carries out nothing


class LocalTransport(Transport):
    """Queues commands. A `get` with a timeout carries them out, up to the first answer; `get(0)` carries out none."""

    untimed = True
    forks = True

    def __init__(self, env_fns: Sequence[Callable[[], Env[Any, Any]]], first: int, autoreset: str) -> None:
        self._first = first
        self._autoreset = autoreset
        self._commands: deque[Message] = deque()
        self._answers: deque[Message] = deque()
        self._begun: int | None = None  # number of the command that is being carried out
        # An item for each answer of an async reset's thread. The lock of an Event would stay locked if the handler of a
        # signal raised in it.
        self._answered: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._worker: Worker | None = None
        self._envs, made = make_envs(env_fns, first, remote=False)
        self._answers.append((0, int(Answer.MADE), made))

    def attach(self, batch: BatchColumns) -> None:
        asynchronous = self._autoreset == "async"

        def answer(number: int, tag: int, body: object) -> None:
            self._answers.append((number, tag, body))
            if asynchronous:
                self._answered.put(None)

        self._worker = Worker(self._envs, self._first, batch, self._autoreset, answer, remote=False)

    def envs(self) -> list[Any]:
        """Return the list of envs that the worker steps: the caller may look into them and exchange some."""
        return [] if self._worker is None else self._worker.env_shard.show_envs()

    def step_all(self, number: int) -> bool:
        """Step the envs for a command that is recorded, and not put yet. Return True if that completes the rows.

        Otherwise, also after an exception of a signal's handler in here, the command has to be put and answered.
        """
        return self._worker is not None and self._worker.step_all(number)

    def put(self, number: int, tag: int, body: object = None) -> None:
        self._commands.append((number, tag, body))
        self.sent = number

    def get(self, timeout: float | None) -> Message | None:
        answers, commands, worker = self._answers, self._commands, self._worker
        if worker is None or (answers and self._begun is None):
            return answers[0] if answers else None
        if self._begun is not None and any(number == self._begun for number, _, _ in answers):
            self._begun = None  # an exception came after the command had been answered
            commands.popleft()
        env_shard = worker.env_shard
        while True:
            if env_shard.unsettled:
                worker.settle()
            if answers:
                return answers[0]
            if not commands:
                break
            number, tag, body = commands[0]
            if timeout == 0 and tag & 0xFF != _AWAIT_RESET:  # this one only asks for the result of a thread
                break
            if number == self._begun:  # ended by an exception that no env raised
                worker.break_off(number, tag)
            else:
                self._begun = number
                if tag == _STEP and number > worker.number:
                    answers.append(worker.step(number, body))
                else:
                    worker.handle(number, tag, body)
            self._begun = None
            commands.popleft()
        if timeout != 0:
            self._wait_for_threads(timeout)
        return answers[0] if answers else None

    def _wait_for_threads(self, timeout: float | None) -> None:
        with suppress(queue.Empty):
            while True:  # the items of answers that are there already
                self._answered.get_nowait()
        if not self._answers:
            with suppress(queue.Empty):
                self._answered.get(timeout=timeout)

    def take(self) -> None:
        self._answers.popleft()

    def work(self) -> bool:
        return self.get(_INSTANT) is not None

    def is_on(self, cpu: int) -> bool:
        return True

    def check_portable(self, what: str, value: object) -> None:
        """Accept any value: none is pickled."""

    def exit_status(self) -> tuple[bool, int | None]:
        return False, None

    def stop(self, grace: float) -> None:
        worker, envs = self._worker, self._envs
        if worker is not None:
            worker.close(grace)
        else:
            close_envs(envs, self._first, remote=False)
        self._worker, self._envs = None, []
