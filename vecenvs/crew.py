"""The workers of one VecEnv as a group: launching, waiting for any of them, noticing deaths, ending them."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from vecenvs.alike import alike
from vecenvs.board import Board
from vecenvs.cpus import cpu_of
from vecenvs.errors import ClosedError, SpaceMismatch, StepTimeout, VecEnvError, WorkerDied
from vecenvs.making import COMMON
from vecenvs.protocol import Answer, Command, Failure, MadeEnvs, dumps, kind_of, loads, safe_text
from vecenvs.transport import Message, Transport
from vecenvs.transport.memory import Semaphore
from vecenvs.transport.replacement import Replacement
from vecenvs.transport.stream import wait_for_any

LIVENESS = 0.2  # seconds between looks at whether the workers live, while waiting for them
START_TIMEOUT = 300.0  # seconds for the envs of one worker to be made
CLOSE_GRACE = 5.0  # seconds for workers to close their envs, before force
EXIT_GRACE = 1.0
_INSTANT = 1e-9  # seconds: not 0, for which nobody does anything

Launch = Callable[[int, range], Transport]


class Crew:
    """Worker w steps the slots `shards[w]`. Whatever waits here raises WorkerDied if what it waits for cannot come."""

    def __init__(self, shards: Sequence[range], launch: Launch) -> None:
        self.shards = shards
        self.transports: list[Transport] = []
        self.wake: Semaphore | None = None  # released by workers whose transport `wakes`
        # In which they are told to step. The other way round they are waited for: see `arrange`.
        self.order: Sequence[int] = range(len(shards))
        self._found: list[tuple[int, Message]] = []  # what an exception (Ctrl-C) has kept from being handed over, too
        self._attached = False
        self._closed = False
        self._launch = weakref.WeakMethod(launch)  # the crew outlives a VecEnv that nobody has closed

    def start(self) -> MadeEnvs:
        """Launch every worker and wait until each has made its envs; SpaceMismatch if those do not agree."""
        for worker, shard in enumerate(self.shards):
            self.transports.append(self._launched(worker, shard))
        everyone = range(len(self.shards))
        self._first_made = first = self._made(0, everyone)
        self._check_spaces(0, first, first)
        for worker in everyone[1:]:
            self._check_spaces(worker, first, self._made(worker, everyone[worker:]))
        return first

    def attach(self, board: Board, wake: Semaphore | None) -> None:
        """Connect every worker to the columns."""
        self.wake = wake
        for worker in range(len(self.transports)):
            self._attach(worker, board)
        self._attached = True

    def replace(self, worker: int, board: Board, briefing: Sequence[tuple[Command, Any]]) -> None:
        """End a worker that is dead or hung, and launch another one for its shard, without waiting for it.

        `briefing` are the first commands that it gets. When they are answered it says STARTED; NOT_STARTED if it fails.
        """

        def check(made: MadeEnvs | Failure) -> None:
            self._check_spaces(worker, self._first_made, _envs_of(made))

        def ready(transport: Transport) -> None:
            self.transports[worker] = transport

        self._check_open(worker)
        self.transports[worker].stop(0.0)
        launched = self._launched(worker, self.shards[worker])
        self.transports[worker] = Replacement(launched, board, briefing, check, ready, START_TIMEOUT)
        try:
            self._check_open(worker)
        except ClosedError:  # meanwhile
            launched.stop(0.0)
            raise

    def launched(self) -> list[Transport]:
        """Give the transports as the backend made them, also of workers that are on their way."""
        return [each.worker if isinstance(each, Replacement) else each for each in self.transports]

    def arrange(self) -> None:
        """Put the worker that shares a core with the caller where it is told last and waited for first.

        It cannot step before the caller sleeps anyway, and when it has, it wakes the caller at once. One on another
        core takes some 20 us for that, and the caller then takes the core from the one here. The system may move any
        of them at any time. Workers in this process stay the last: they step when they are waited for.
        """
        elsewhere = [worker for worker in self.order if not self.transports[worker].inline]
        if len(elsewhere) < 2 or (here := cpu_of()) is None:
            return
        beside = [worker for worker in elsewhere if self.transports[worker].cpu() == here]
        if len(beside) == 1:
            others = [worker for worker in elsewhere if worker != beside[0]]
            inline = [worker for worker in self.order if self.transports[worker].inline]
            self.order = [*others, *beside, *inline]

    def _launched(self, worker: int, shard: range) -> Transport:
        launch = self._launch()
        if launch is None:
            raise VecEnvError("a worker for a VecEnv that is gone")
        return launch(worker, shard)

    def _attach(self, worker: int, board: Board) -> None:
        try:
            self.transports[worker].attach(board)
        except (ConnectionError, EOFError):
            raise self.died(worker) from None

    @property
    def inline(self) -> bool:
        """Whether all workers live in this process."""
        return all(transport.inline for transport in self.transports)

    def check_portable(self, what: str, value: object) -> None:
        """Raise TypeError, before anything is sent, if `value` cannot reach workers that are elsewhere."""
        if self.inline:
            return
        try:
            loads(dumps(value))
        except Exception as exc:  # whatever a foreign __reduce__ or __setstate__ raises
            text = f"{type(exc).__name__}: {safe_text(exc)}"
            raise TypeError(
                f"{what} cannot be pickled, or not be unpickled in another process ({text}): leave out what cannot, "
                "or use DummyVecEnv"
            ) from exc

    def put(self, worker: int, tag: int, body: object = None) -> None:
        """Send a command."""
        try:
            self.transports[worker].put(tag, body)
        except ConnectionError:
            raise self.died(worker) from None

    def get(self, worker: int, limit: float | None) -> Message | None:
        """Wait for a worker's next message; None once the monotonic clock has passed `limit`."""
        transport = self.transports[worker]
        while True:
            seconds = LIVENESS if limit is None else min(LIVENESS, limit - time.monotonic())
            message = transport.get(max(seconds, _INSTANT if transport.inline else 0.0))
            if message is not None:
                return message
            if limit is not None and time.monotonic() >= limit:
                return None
            if transport.exit_status()[0]:
                message = transport.get(0)  # what it said before it died
                if message is None:
                    raise self.died(worker)
                return message

    def sweep(self, workers: Iterable[int]) -> list[tuple[int, Message]]:
        """Take every message of these workers that is there, without waiting."""
        if self.wake is not None:
            while self.wake.acquire(False):
                continue
        for worker in workers:
            while (message := self.transports[worker].get(0)) is not None:
                self._found.append((worker, message))
        found, self._found = self._found, []
        return found

    def nudge(self, workers: Iterable[int]) -> list[tuple[int, Message]]:
        """Have those of the workers that live in this process, and work only while waited for, do one thing each."""
        for worker in workers:
            if self.transports[worker].inline and (message := self.transports[worker].get(_INSTANT)) is not None:
                self._found.append((worker, message))
        found, self._found = self._found, []
        return found

    def rest(self, workers: Sequence[int], seconds: float) -> list[tuple[int, Message]]:
        """Sleep until one of these workers has something, at most `seconds`; then do as `sweep`."""
        seconds = min(LIVENESS, max(seconds, 0.0))
        if len(workers) == 1:
            message = self.transports[workers[0]].get(seconds)
            if message is not None:
                self._found.append((workers[0], message))
        elif inline := [worker for worker in workers if self.transports[worker].inline]:
            message = self.transports[inline[0]].get(min(seconds, 2e-4))
            if message is not None:
                self._found.append((inline[0], message))
        elif self.wake is not None and all(self.transports[worker].wakes for worker in workers):
            self.wake.acquire(True, seconds)
        elif all(watched := [self.transports[worker].watch() for worker in workers]):
            wait_for_any(watched, seconds)
        else:
            time.sleep(min(seconds, 2e-4))
        return self.sweep(workers) or self.look_after(workers)

    def look_after(self, workers: Iterable[int]) -> list[tuple[int, Message]]:
        """See that these workers live; give what one that does not has left, or raise WorkerDied if nothing."""
        for worker in workers:
            if self.transports[worker].exit_status()[0]:
                left = self.sweep([worker])
                if not left:
                    raise self.died(worker)
                return left
        return []

    def close(self, close_grace: float = CLOSE_GRACE) -> list[Failure]:
        """Let every worker close its envs, all at once, then end them all; give what closing envs raised."""
        self._closed = True
        try:
            failures = self._ask(close_grace)
            self._stop(EXIT_GRACE)
        except BaseException:  # a Ctrl-C: no more patience
            self._stop(0.0)
            raise
        return failures

    def _stop(self, grace: float) -> None:
        deadline = time.monotonic() + grace
        for transport in self.transports:
            transport.stop(max(deadline - time.monotonic(), 0.0))

    def _ask(self, grace: float) -> list[Failure]:
        deadline = time.monotonic() + grace
        asked = []
        for transport in self.transports:
            try:
                transport.put(Command.CLOSE)
                asked.append(transport)
            except Exception:  # it is gone already, or never stood: `stop` sees to it
                continue
        failures: list[Failure] = []
        for transport in asked:
            while True:
                gone = transport.exit_status()[0] or time.monotonic() >= deadline
                message = transport.get(min(0.05, max(deadline - time.monotonic(), 0.0)))
                if message is None:
                    if gone:  # and so it was before this look
                        break
                elif kind_of(message[0]) == Answer.CLOSED:
                    failures.extend(message[1])
                    break
        return failures

    def _made(self, worker: int, unfinished: Sequence[int]) -> MadeEnvs:
        """Wait for a worker's envs. The death of another unfinished one is an error at once."""
        end = time.monotonic() + START_TIMEOUT
        while (message := self.get(worker, time.monotonic() + LIVENESS)) is None:
            if time.monotonic() >= end:
                raise StepTimeout(self.shards[worker], START_TIMEOUT, "making")
            for other in unfinished:
                # One that failed says so before it leaves: the message waits until its turn.
                gone, exitcode = self.transports[other].exit_status()
                if gone and exitcode != 0:
                    raise self.died(other)
        return _envs_of(message[1])

    def _check_spaces(self, worker: int, first: MadeEnvs, made: MadeEnvs) -> None:
        if made.mismatch is not None:
            index, which, theirs, ours = made.mismatch
            raise SpaceMismatch(index, which, theirs, ours)
        for which in COMMON:
            theirs, ours = getattr(made, which), getattr(first, which)
            if not alike(theirs, ours):
                raise SpaceMismatch(self.shards[worker][0], which, theirs, ours)

    def _check_open(self, worker: int) -> None:
        if self._closed:
            raise self.died(worker)

    def died(self, worker: int) -> WorkerDied | ClosedError:
        """Say that a worker has died; or that another thread has ended it by `close`."""
        if self._closed:
            return ClosedError("going on with a call, which close() in another thread has ended,")
        transport = self.transports[worker]
        state = "lost" if self._attached else "starting"
        return WorkerDied(worker, self.shards[worker], transport.exit_status()[1], transport.where, state)


def _envs_of(made: MadeEnvs | Failure) -> MadeEnvs:
    if isinstance(made, Failure):
        raise made.to_error()
    return made
