"""The worker in the caller's process whose envs wait: they run beside the program, in threads of their own."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from vecenvs import identity
from vecenvs.batch.batch_columns import BatchColumns
from vecenvs.transport import Message, Transport
from vecenvs.transport.protocol import Answer
from vecenvs.worker.calls import close_envs
from vecenvs.worker.load import Load, resident_bytes
from vecenvs.worker.make_envs import make_again, make_envs
from vecenvs.worker.rules import Rules
from vecenvs.worker.waiting_worker import make_worker
from vecenvs.worker.worker import Worker


class BesideTransport(Transport):
    """Hands commands to a thread, which begins them: no exception of the caller's, as of a Ctrl-C, comes there."""

    untimed = True
    in_process = True
    forks = False

    def __init__(
        self, env_fns: Sequence[Callable[[], Any]], first: int, rules: Rules, cores: int | None, seen: set[int]
    ) -> None:
        self._first = first
        self._rules = rules
        self._commands: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._answers: deque[Message] = deque()
        self._answered: queue.SimpleQueue[None] = queue.SimpleQueue()  # an item for each answer
        self._worker: Worker | None = None
        told = rules.told and rules.told.placed()
        make = partial(make_envs, env_fns, first, rules, cores, seen, remote=False)
        self._envs, made, self._runner = identity.acted(told, None, make)
        self._remake = partial(make_again, env_fns, first, rules, cores, told)
        self._answers.append((0, int(Answer.MADE), made))

    def attach(self, batch: BatchColumns) -> None:
        answers, answered = self._answers, self._answered

        def answer(number: int, tag: int, body: object) -> None:
            answers.append((number, tag, body))
            answered.put(None)

        self._worker = make_worker(
            self._envs, self._first, batch, self._rules, answer,
            remote=False, remake=self._remake, runner=self._runner,
        )  # fmt: skip
        work = partial(_serve, self._worker, self._commands)
        threading.Thread(target=work, name="vecenvs-commands", daemon=True).start()

    def envs(self) -> list[Any]:
        """Return the list of envs that the worker steps: the caller may look into them and exchange some."""
        return [] if self._worker is None else self._worker.env_shard.show_envs()

    def put(self, number: int, tag: int, body: object = None) -> None:
        self._commands.put((number, tag, body))

    def get(self, timeout: float | None) -> Message | None:
        if self._worker is not None and self._worker.env_shard.deferred:
            self._worker.run_deferred()  # raises what an env has raised that ends programs
        answers, answered = self._answers, self._answered
        with suppress(queue.Empty):
            while not answers:
                answered.get(timeout != 0, timeout)
            while True:  # those of answers that are there
                answered.get_nowait()
        return answers[0] if answers else None

    def take(self) -> None:
        self._answers.popleft()

    def describe(self) -> dict[str, Any]:
        return {"transport": "in process", **Load(None, None, resident_bytes()).describe()}

    def exit_status(self) -> tuple[bool, int | None]:
        return False, None

    def stop(self, grace: float) -> None:
        worker, envs = self._worker, self._envs
        self._worker, self._envs = None, []
        self._commands.put(None)
        if worker is not None:
            worker.close(grace)
        elif envs:
            close_envs(envs, self._first, remote=False, runner=self._runner)


def _serve(worker: Worker, commands: queue.SimpleQueue[Message | None]) -> None:
    while (message := commands.get()) is not None:
        if not worker.handle(*message):
            return
