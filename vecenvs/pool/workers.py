"""The workers of one VecEnv: launching them, waiting for any of them, telling how one has ended, ending them."""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from vecenvs.batch.batch_columns import BatchColumns
from vecenvs.batch.space_equality import alike, same_layout
from vecenvs.cpus import cpu_of
from vecenvs.errors import ClosedError, SpaceMismatch, StartTimeout, VecEnvError, WorkerDied, describe_indices
from vecenvs.transport import Transport
from vecenvs.transport.memory import Semaphore
from vecenvs.transport.protocol import Answer, Command, RemoteFailure, ShardSpec, dumps, kind_of, loads, safe_text
from vecenvs.transport.tcp import wait_for_any
from vecenvs.worker.make_envs import COMMON

LIVENESS = 0.2  # seconds between looks at whether the workers live, while waiting for them
TELL = 30.0  # seconds between lines in the log about a worker that is being started
CLOSE_GRACE = 5.0  # seconds for workers to close their envs, before force
EXIT_GRACE = 1.0
_INSTANT = 1e-9  # seconds: not 0, for which a worker in this process does nothing
_ROOM = 1e-3  # seconds between looks whether there is room for the rest of a command
_POLL = 2e-4  # seconds between looks for rows of workers that cannot wake the caller

Launch = Callable[[int, range], Transport]

_log = logging.getLogger("vecenvs")


class Workers:
    """Worker w steps the slots `shards[w]`."""

    def __init__(self, shards: Sequence[range], launch: Launch, start_timeout: float) -> None:
        self.shards = shards
        self.start_timeout = start_timeout
        self.transports: list[Transport] = []
        self.wake: Semaphore | None = None  # released by workers whose transport `wakes`
        # In which they are sent a step. The other way round they are waited for: see `arrange`.
        self.order: Sequence[int] = range(len(shards))
        self._batch: BatchColumns | None = None
        self._attached = False
        self._closed = False
        self.any_bounds = False  # whether the bounds of the envs' observation spaces may differ
        self._launch = weakref.WeakMethod(launch)  # the workers outlive a VecEnv that has not been closed

    def start(self) -> ShardSpec:
        """Launch every worker and wait until each has made its envs; SpaceMismatch if those do not agree."""
        for worker in range(len(self.shards)):
            self.transports.append(self.launch(worker))
        everyone = range(len(self.shards))
        self._first_made = first = self._made(0, everyone)
        self.check_spaces(0, first)
        for worker in everyone[1:]:
            self.check_spaces(worker, self._made(worker, everyone[worker:]))
        return first

    def launch(self, worker: int) -> Transport:
        """Launch a worker, without waiting for it."""
        launch = self._launch()
        if launch is None:
            raise VecEnvError("a worker for a VecEnv that is gone")
        self._check_open(worker)
        launched = launch(worker, self.shards[worker])
        try:
            self._check_open(worker)
        except ClosedError:  # meanwhile
            launched.stop(0.0)
            raise
        return launched

    def launched(self) -> list[Transport]:
        """Return the transports as the backend made them, also of workers that are on their way."""
        return [transport.newest for transport in self.transports]

    def attach(self, batch: BatchColumns, wake: Semaphore | None) -> None:
        """Connect every worker to the columns, which are gone for others after `close`."""
        self.wake = wake
        self._batch = batch
        for worker, transport in enumerate(self.transports):
            self.attach_one(worker, transport, batch)
        self._attached = True

    def attach_one(self, worker: int, transport: Transport, batch: BatchColumns) -> None:
        """Connect one worker to the columns; WorkerDied if it is gone."""
        try:
            transport.attach(batch)
        except (ConnectionError, EOFError):
            raise self.died(worker, transport) from None

    def arrange(self) -> None:
        """Put the worker that shares a core with the caller where it is sent its step last and waited for first.

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

    def work(self, workers: Iterable[int]) -> None:
        """Have those of the workers that live in this process, and work only while waited for, do one thing each."""
        for worker in workers:
            if self.transports[worker].inline:
                self.transports[worker].get(_INSTANT)

    def wait_any(self, workers: Sequence[int], seconds: float) -> None:
        """Sleep until one of these workers has an answer, or for some time: at most `seconds`."""
        seconds = min(LIVENESS, max(seconds, 0.0))
        if sum(transport.send_rest() for transport in self.transports):  # also to those that are not waited for
            seconds = min(seconds, _ROOM)
        transports = [self.transports[worker] for worker in workers]
        inline = [transport for transport in transports if transport.inline]
        if len(transports) == 1:
            transports[0].get(max(seconds, _INSTANT) if inline else seconds)
        elif inline:
            inline[0].get(min(max(seconds, _INSTANT), _POLL))
        elif self.wake is not None and all(transport.wakes for transport in transports):
            self.wake.acquire(True, seconds)
        elif transports and all(watched := [transport.watch() for transport in transports]):
            wait_for_any(watched, seconds)
        else:
            time.sleep(min(seconds, _POLL))

    def reset_wake(self) -> None:
        """Forget that workers have woken the caller: it is about to look at each of them."""
        if self.wake is not None:
            while self.wake.acquire(False):
                continue

    def close(self, close_grace: float = CLOSE_GRACE) -> list[RemoteFailure]:
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
        if self._batch is not None:
            self._batch.forget()

    def _ask(self, grace: float) -> list[RemoteFailure]:
        deadline = time.monotonic() + grace
        asked = []
        for transport in self.transports:
            try:
                transport.put(2**62, Command.CLOSE)
                asked.append(transport)
            except Exception:  # it is gone already, or never stood: `stop` sees to it
                continue
        failures: list[RemoteFailure] = []
        for transport in asked:
            while True:
                gone = transport.exit_status()[0] or time.monotonic() >= deadline
                message = transport.get(min(0.05, max(deadline - time.monotonic(), 0.0)))
                if message is None:
                    if gone:  # and so it was before this look
                        break
                else:
                    transport.take()
                    if kind_of(message[1]) == Answer.CLOSED:
                        failures.extend(message[2])
                        break
        return failures

    def _made(self, worker: int, unfinished: Sequence[int]) -> ShardSpec:
        """Wait for a worker's envs. The death of another unfinished one is an error at once."""
        transport, clock = self.transports[worker], StartClock(self, worker)
        while (message := transport.get(LIVENESS)) is None:
            clock.check()
            for other in unfinished:
                gone, exitcode = self.transports[other].exit_status()
                # One that failed says so before it leaves: the message waits until its turn.
                if gone and (exitcode != 0 if other != worker else transport.get(0) is None):
                    raise self.died(other)
        transport.take()
        return envs_of(message[2])

    def check_spaces(self, worker: int, made: ShardSpec) -> None:
        """Raise SpaceMismatch if these envs do not agree with those of the first worker, or with one another."""
        first = self._first_made
        for which in COMMON:
            theirs, ours = getattr(made, which), getattr(first, which)
            if not alike(theirs, ours):
                self._refuse(self.shards[worker][0], which, theirs, ours)
        if made.mismatch is not None:
            self._refuse(*made.mismatch)

    def _refuse(self, index: int, which: str, theirs: Any, ours: Any) -> None:
        by_bounds = which == "observation_space" and same_layout(theirs, ours)
        if not (by_bounds and self.any_bounds):
            raise SpaceMismatch(index, which, theirs, ours, by_bounds)

    def _check_open(self, worker: int) -> None:
        if self._closed:
            raise self.died(worker)

    def died(self, worker: int, transport: Transport | None = None) -> WorkerDied | ClosedError:
        """Return the error that says that a worker has died; or that another thread has ended it by `close`."""
        if self._closed:
            return ClosedError("going on with a call, which close() in another thread has ended,")
        transport = transport or self.transports[worker]
        state = "lost" if self._attached else "starting"
        return WorkerDied(worker, self.shards[worker], transport.exit_status()[1], transport.where, state)


class StartClock:
    """The time that a worker takes to start."""

    def __init__(self, workers: Workers, worker: int) -> None:
        self._workers = workers
        self._worker = worker
        self._asked = self._begun = self._told = time.monotonic()

    def check(self) -> None:
        """Raise StartTimeout if it takes too long; say in the log now and then what is being waited for."""
        now, limit = time.monotonic(), self._workers.start_timeout
        slots, transport = self._workers.shards[self._worker], self._workers.transports[self._worker].newest
        where = transport.where
        if transport.unplaced:
            self._begun = now
        if now - self._begun >= limit:
            raise StartTimeout(self._worker, slots, limit, where)
        if now - self._told >= TELL:
            self._told = now
            _log.warning(
                "waiting for worker %d%s to make envs %s, for %.0f s so far (start_timeout is %g s)",
                self._worker, where, describe_indices(slots), now - self._asked, limit,
            )  # fmt: skip


def envs_of(made: ShardSpec | RemoteFailure) -> ShardSpec:
    """Return what a worker has made; raise what it has raised instead."""
    if isinstance(made, RemoteFailure):
        raise made.to_error()
    return made
