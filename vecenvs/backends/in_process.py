"""The worker in the caller's own process, which carries out commands while it waits for their answers."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from time import perf_counter
from typing import Any

from gymnasium import Env

from vecenvs import identity
from vecenvs.batch.batch_columns import BatchColumns
from vecenvs.transport import Message, Transport
from vecenvs.transport.protocol import OF_SOME, Answer, Command, RowsBody, addressed
from vecenvs.worker.calls import close_envs
from vecenvs.worker.hosts.batched_shard import BatchedShard
from vecenvs.worker.load import Load, resident_bytes
from vecenvs.worker.make_envs import make_again, make_envs
from vecenvs.worker.rules import Rules
from vecenvs.worker.slow_envs import REPLY_WINDOW
from vecenvs.worker.worker import Worker

_STEP, _AWAIT_RESET = int(Command.STEP), int(Command.AWAIT_RESET)
_INSTANT = 1e-9  # seconds: with a timeout of 0 `get` carries out nothing


class LocalTransport(Transport):
    """Queues commands. A `get` with a timeout carries them out, up to the first answer; `get(0)` carries out none."""

    untimed = True
    in_process = True

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Env[Any, Any]]],
        first: int,
        rules: Rules,
        cores: int | None,
        seen: set[int],
    ) -> None:
        self._first = first
        self._rules = rules
        self._commands: deque[Message] = deque()
        self._answers: deque[Message] = deque()
        self._begun: int | None = None  # number of the command that is being carried out
        # An item for each answer of an async reset's thread. The lock of an Event would stay locked if the handler of a
        # signal raised in it.
        self._answered: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._worker: Worker | None = None
        calls = identity.calls
        self._told = rules.told and rules.told.placed()
        make = partial(make_envs, env_fns, first, rules, cores, seen, remote=False)
        self._envs, made, _ = identity.acted(self._told, None, make)
        self._made = perf_counter()
        self._stepping = 0.0  # seconds spent within commands
        self._asked = identity.calls > calls  # whether envs of this worker want to know which one it is
        self._remake = partial(make_again, env_fns, first, rules, cores, self._told)
        self._answers.append((0, int(Answer.MADE), made))

    def attach(self, batch: BatchColumns) -> None:
        asynchronous = self._rules.autoreset == "async"

        def answer(number: int, tag: int, body: object) -> None:
            self._answers.append((number, tag, body))
            if asynchronous:
                self._answered.put(None)

        make = partial(Worker, self._envs, self._first, batch, self._rules, answer, remote=False, remake=self._remake)
        self._worker = identity.acted(self._told, None, make)

    def envs(self) -> list[Any]:
        """Return the list of envs that the worker steps: the caller may look into them and exchange some."""
        return [] if self._worker is None else self._worker.env_shard.show_envs()

    def try_step(self, number: int) -> bool:
        """Step the envs for a command that is recorded, and not put yet. Return True if that completes the rows.

        Otherwise, also after an exception of a signal's handler in here, the command has to be put and answered.
        """
        began = perf_counter()
        if self._worker is None or not self._asked:
            done = self._worker is not None and self._worker.try_step(number)
        else:
            done = identity.acted(self._told, None, self._worker.try_step, number)
        self._stepping += perf_counter() - began
        return done

    def pending_obs(self) -> tuple[RowsBody | None, Sequence[Any]] | None:
        """Return the body of the answer to a step of one batched env, and the observations, which no column has yet.

        None if there is more to do for that answer.
        """
        env_shard: object = self._worker and self._worker.env_shard
        return env_shard.pending_obs() if isinstance(env_shard, BatchedShard) else None

    def has_flags(self) -> bool:
        """Tell whether a row of the last step has flags: that of an ended episode, say."""
        return self._worker is None or self._worker.env_shard.flags.some

    def put(self, number: int, tag: int, body: object = None) -> None:
        self._commands.append((number, tag, body))

    def get(self, timeout: float | None) -> Message | None:
        answers, commands, worker = self._answers, self._commands, self._worker
        if worker is None or (answers and self._begun is None):
            return answers[0] if answers else None
        if self._begun is not None:
            self._break_off(worker)
        env_shard, end = worker.env_shard, 0.0
        while True:
            # What a step has left that an exception broke off waits until that step has been answered.
            if env_shard.deferred and not (commands and env_shard.was_tried(commands[0][0])):
                worker.run_deferred()
            if answers:
                if not commands:
                    return answers[0]
                # The rows of several commands are returned together, too.
                end = end or perf_counter() + REPLY_WINDOW / 2
                if worker.subset is not None or perf_counter() > end:
                    return answers[0]
            if not commands:
                break
            number, tag, body = commands[0]
            if timeout == 0 and tag & 0xFF != _AWAIT_RESET:  # this one only asks for the result of a thread
                break
            if self._asked:
                identity.acted(self._told, None, self._carry_out, worker, number, tag, body)
            else:
                self._carry_out(worker, number, tag, body)
        if timeout != 0:
            self._wait_for_threads(timeout)
        return answers[0] if answers else None

    def _carry_out(self, worker: Worker, number: int, tag: int, body: Any) -> None:
        """Carry out the oldest command; of one about some slots a portion, so that its rows can be returned."""
        self._begun = number
        began = perf_counter()
        if tag == _STEP and number > worker.number:
            self._answers.append(worker.step(number, body))
        elif tag & 0xFF in OF_SOME:
            if number > worker.number:
                worker.begin_some(number, tag, body)
            worker.proceed()
        else:
            worker.handle(number, tag, body)
        self._stepping += perf_counter() - began
        self._end_command(worker)

    def _break_off(self, worker: Worker) -> None:
        """Answer what an exception that no env raised has left unanswered of the command under way."""
        number, tag, _ = self._commands[0]
        if number > worker.number:  # nothing of it has been done: it is carried out anew
            self._begun = None
            return
        answers = [answer for answer in self._answers if answer[0] == number]
        if tag & 0xFF in OF_SOME:
            answered = {slot for _, kind, rows in answers for slot in addressed(kind, rows)[0]}
            worker.break_off(number, tag, answered)
        elif not answers:
            worker.break_off(number, tag, ())
        self._end_command(worker)

    def _end_command(self, worker: Worker) -> None:
        self._begun = None
        if worker.subset is None:
            self._commands.popleft()

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

    def describe(self) -> dict[str, Any]:
        waiting = perf_counter() - self._made - self._stepping
        return {"transport": "in process", **Load(waiting, self._stepping, resident_bytes()).describe()}

    def exit_status(self) -> tuple[bool, int | None]:
        return False, None

    def stop(self, grace: float) -> None:
        worker, envs = self._worker, self._envs
        if worker is not None:
            worker.close(grace)
        else:
            close_envs(envs, self._first, remote=False)
        self._worker, self._envs = None, []
