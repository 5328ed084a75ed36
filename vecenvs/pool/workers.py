"""Launch the workers of one VecEnv, wait for them, report how one has ended, and end them."""

from __future__ import annotations

import logging
import socket
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from vecenvs.batch.batch_columns import BatchColumns
from vecenvs.batch.space_equality import same_layout, same_space
from vecenvs.cpus import cpu_of, usable_cores
from vecenvs.errors import (
    UNGUARDED,
    ClosedError,
    SpaceMismatch,
    StartTimeout,
    VecEnvError,
    WorkerDied,
    describe_indices,
)
from vecenvs.pool.start_limit import StartLimit
from vecenvs.pool.tally import Tally
from vecenvs.transport import Message, Transport
from vecenvs.transport.encoding import check_portable
from vecenvs.transport.memory import Semaphore
from vecenvs.transport.protocol import Answer, Command, RemoteFailure, ShardSpec, kind_of
from vecenvs.transport.tcp import wait_for_any
from vecenvs.worker.env_errors import COMMON
from vecenvs.worker.output import Output

LIVENESS = 0.2  # seconds between checks that the workers live, while waiting for them
LOG_EVERY = 30.0  # seconds between lines in the log about a worker that is starting
CLOSE_GRACE = 5.0  # seconds for workers to close their envs, before force
EXIT_GRACE = 1.0
STOPPED = 1.0  # seconds by which a short wait takes too long if this process has been stopped (Ctrl-Z, docker pause)
_ROOM = 1e-3  # seconds between attempts to send the rest of a command
_POLL = 2e-4  # seconds between polls of workers that cannot wake the caller

Launch = Callable[[int, range], Transport]

_log = logging.getLogger("vecenvs")


class Workers:
    """The workers: number w steps the slots `shards[w]`. Those in the caller's process are the last ones.

    `any_bounds` allows the envs' observation spaces to differ in their bounds.
    """

    def __init__(
        self,
        shards: Sequence[range],
        launch: Launch,
        start_timeout: float,
        limit: StartLimit,
        *,
        any_bounds: bool = False,
    ) -> None:
        self.shards = shards
        self.limit = limit  # of launches
        self.start_timeout = start_timeout
        self.transports: list[Transport] = []
        self.wake: Semaphore | None = None  # released by workers whose transport `wakes`
        # The order in which workers are sent a step; they are waited for in the reverse order. See `order_by_cpu`.
        self.order: Sequence[int] = range(len(shards))
        # What the engine has launched last for each worker, which `transports` has once it has started.
        self.launched: dict[int, Transport] = {}
        # By worker: its process's id and host; None until it has made its envs.
        self.processes: list[tuple[int | None, str | None]] = [(None, None)] * len(shards)
        self.connections: Sequence[Transport] = ()  # one worker of each connection
        self.successors: dict[int, Transport] = {}  # by worker: what is to take its place, see `recycling`
        self.retired: list[Retired] = []  # what has left its place, and closes its envs
        self.outputs: dict[int, Output] = {}  # how workers log and print
        self.tally = Tally(shards)
        self._any_bounds = any_bounds
        self._batch: BatchColumns | None = None
        self._several_here = False  # whether this process has several workers, which take turns
        self._worked = -1  # the one that was last
        self._host = socket.gethostname()
        self._crowded = False  # whether the caller shares a core with some worker
        self._attached = False
        self._closed = False
        self._launch = weakref.WeakMethod(launch)  # the workers outlive a VecEnv that was never closed

    def start(self) -> ShardSpec:
        """Launch every worker and wait until each has made its envs. Raise SpaceMismatch if their spaces differ."""
        for worker in range(len(self.shards)):
            self._await_turn()
            self.transports.append(self.launch(worker))
        self._several_here = sum(transport.in_process for transport in self.transports) > 1
        everyone = range(len(self.shards))
        self._first_made = first = self._made(0, everyone)
        self.accept(0, first)
        for worker in everyone[1:]:
            self.accept(worker, self._made(worker, everyone[worker:]))
        here = [host == self._host for _, host in self.processes].count(True)
        self._crowded = usable_cores() <= here - sum(transport.in_process for transport in self.transports)
        return first

    def _await_turn(self) -> None:
        """Wait until one more worker may be launched. Raise if one of those before cannot be started."""
        clocks: dict[int, StartClock] = {}
        while (seconds := self.limit.seconds()) > 0:
            for worker, transport in enumerate(self.transports):
                message = transport.get(0)
                if message is not None:
                    envs_of(message[2])
                elif transport.exit_status()[0] and transport.get(0) is None:
                    raise self.died(worker)
                else:
                    clocks.setdefault(worker, StartClock(self, worker)).check()
            time.sleep(min(seconds, LIVENESS))

    def launch(self, worker: int, *, beside: bool = False) -> Transport:
        """Launch a worker, without waiting for it; with `beside` it is to take the place of one that goes on."""
        launch = self._launch()
        if launch is None:
            raise VecEnvError("the VecEnv of this worker has been garbage-collected")
        self.check_open(worker)
        launched = launch(worker, self.shards[worker])
        try:
            self.check_open(worker)
        except ClosedError:  # by another thread, meanwhile
            launched.stop(0.0)
            raise
        if not beside:
            self.launched[worker] = launched
        self.limit.begun(worker, launched)
        return launched

    def attach(self, batch: BatchColumns, wake: Semaphore | None) -> None:
        """Connect every worker to the columns. `close` removes the names by which other processes find them."""
        self.wake = wake
        self._batch = batch
        for worker, transport in enumerate(self.transports):
            self.attach_one(worker, transport, batch)
        self.find_connections()
        self._attached = True

    def find_connections(self) -> None:
        """Find one worker of each connection, now that a worker has been attached."""
        self.connections = [*{watched[0]: each for each in self.transports if (watched := each.watch())}.values()]

    def flush(self) -> None:
        """Send the commands that connections have kept, to send those of several workers in one message."""
        for transport in self.connections:
            transport.send_rest()

    def attach_one(self, worker: int, transport: Transport, batch: BatchColumns) -> None:
        """Connect one worker to the columns. Raise WorkerDied if it is gone."""
        try:
            transport.attach(batch)
        except (ConnectionError, EOFError):
            raise self.died(worker, transport) from None

    def order_by_cpu(self) -> None:
        """Let the workers that share a core with the caller be sent their step last and be waited for first.

        Such a worker cannot step before the caller sleeps anyway. When it has stepped, it wakes the caller at once; a
        worker on another core takes some 20 us for that, and the caller then takes the core from the one beside it. The
        system may move any of them at any time.
        """
        if self._crowded and (here := cpu_of()) is not None:
            beside = [worker for worker in self.order if self._is_on(worker, here)]
            self.order = [*(worker for worker in self.order if worker not in beside), *beside]

    def _is_on(self, worker: int, cpu: int) -> bool:
        pid, host = self.processes[worker]
        return self.transports[worker].in_process or (host == self._host and cpu_of(pid) == cpu)

    def describe(self, restarts: Sequence[int], errors: Sequence[int]) -> list[dict[str, Any]]:
        """Return what `VecEnv.stats` says of each worker.

        `restarts` and `errors` tell how often it was replaced, and how many errors its envs had.
        """
        found = []
        for worker, (pid, host) in enumerate(self.processes):
            common = {"slots": [*self.shards[worker]], "pid": pid, "host": host, "restarts": restarts[worker]}
            common["errors"] = errors[worker]
            found.append({**common, **self.tally.describe(worker), **self.launched[worker].describe()})
        return found

    @property
    def fork(self) -> bool:
        """Whether a fork of this process has all of the workers, too."""
        return all(transport.in_process and transport.forks for transport in self.transports)

    def check_portable(self, what: str, value: object) -> None:
        """Raise TypeError, before anything is sent, if `value` cannot be sent to every worker."""
        if not self.transports[0].in_process:  # which it is only if all of them are
            check_portable(what, value)

    def wait_any(self, workers: Sequence[int], seconds: float) -> None:
        """Wait until one of these workers has an answer, or for some time: at most `seconds`."""
        seconds = min(LIVENESS, max(seconds, 0.0))
        if sum(transport.send_rest() for transport in self.transports):  # also to workers that are not waited for
            seconds = min(seconds, _ROOM)
        if self._work(workers):
            return
        transports = [self.transports[worker] for worker in workers]
        if len(transports) == 1:
            transports[0].get(seconds)
        elif self.wake is not None and all(transport.wakes for transport in transports):
            self.wake.wait(seconds)
        elif transports and all(watched := [transport.watch() for transport in transports]):
            wait_for_any(watched, seconds)
        else:
            time.sleep(min(seconds, _POLL))

    def _work(self, workers: Sequence[int]) -> bool:
        """Let one of the workers in this process carry out a command, by turns; return whether it has an answer."""
        if self._several_here:
            workers = sorted(workers, key=lambda worker: worker <= self._worked)
        for worker in workers:
            if self.transports[worker].work():
                self._worked = worker
                return True
        return False

    def reset_wake(self) -> None:
        """Reset the semaphore `wake`, before the answers of all workers are collected."""
        if self.wake is not None:
            while self.wake.acquire(False):
                continue

    def close(self, close_grace: float = CLOSE_GRACE) -> list[RemoteFailure]:
        """Let all workers close their envs at the same time, then end them. Return what envs raised in `close`."""
        ended, self._closed = self._closed, True
        try:
            failures = [] if ended else self._close_envs(close_grace)  # else a Ctrl-C has had the workers ended
            self._stop(EXIT_GRACE)
        except BaseException:  # a Ctrl-C: end the workers at once
            self._stop(0.0)
            raise
        return failures

    def _stop(self, grace: float) -> None:
        deadline = time.monotonic() + grace
        for transport in [*self.transports, *self.successors.values(), *(each.transport for each in self.retired)]:
            transport.stop(max(deadline - time.monotonic(), 0.0))
        if self._batch is not None:
            self._batch.forget()

    def _close_envs(self, grace: float) -> list[RemoteFailure]:
        deadline = time.monotonic() + grace
        asked = []
        for transport in self.transports:
            try:
                transport.put(2**62, Command.CLOSE)
                asked.append(transport)
            except Exception:  # the worker is gone, or has never started: `stop` frees what is left
                continue
        for transport in asked:
            transport.send_rest()
        failures: list[RemoteFailure] = []
        for transport in asked:
            while True:
                gone = transport.exit_status()[0] or time.monotonic() >= deadline
                message = transport.get(min(0.05, max(deadline - time.monotonic(), 0.0)))
                if message is None:
                    if gone:  # and was before `get` found nothing
                        break
                else:
                    transport.take()
                    if kind_of(message[1]) == Answer.CLOSED:
                        failures.extend(message[2])
                        break
        return failures

    def _made(self, worker: int, unfinished: Sequence[int]) -> ShardSpec:
        """Wait until a worker has made its envs. Raise at once if another unfinished one dies."""
        transport, clock = self.transports[worker], StartClock(self, worker)
        while (message := clock.get(transport, LIVENESS)) is None:
            for other in unfinished:
                gone, exitcode = self.transports[other].exit_status()
                # A worker whose envs failed sends the reason and exits with 0: it is raised when its turn comes.
                if gone and (exitcode != 0 if other != worker else transport.get(0) is None):
                    raise self.died(other)
        transport.take()
        return envs_of(message[2])

    def accept(self, worker: int, made: ShardSpec) -> None:
        """Note where a worker is. Raise SpaceMismatch if its envs differ from the first worker's, or one another."""
        self.limit.ended(worker)
        self.processes[worker] = made.pid, made.host
        self.check_spaces(worker, made)

    def check_spaces(self, worker: int, made: ShardSpec) -> None:
        """Raise SpaceMismatch if a worker's envs differ from the first worker's, or one another."""
        first = self._first_made
        for which in COMMON:
            theirs, ours = getattr(made, which), getattr(first, which)
            if not same_space(theirs, ours):
                self._check_mismatch(self.shards[worker][0], which, theirs, ours)
        if made.mismatch is not None:
            self._check_mismatch(*made.mismatch)

    def _check_mismatch(self, index: int, which: str, theirs: Any, ours: Any) -> None:
        by_bounds = which == "observation_space" and same_layout(theirs, ours)
        if not (by_bounds and self._any_bounds):
            raise SpaceMismatch(index, which, theirs, ours, by_bounds)

    def check_open(self, worker: int) -> None:
        """Raise ClosedError if another thread has closed the workers."""
        if self._closed:
            raise self.died(worker)

    def died(self, worker: int, transport: Transport | None = None, state: str = "") -> WorkerDied | ClosedError:
        """Return the error for a dead worker: ClosedError if another thread's `close` has ended it."""
        if self._closed:
            return ClosedError("going on with a call, which close() in another thread has ended,")
        transport = transport or self.transports[worker]
        state = state or ("lost" if self._attached else "starting")
        exitcode, lines = transport.exit_status()[1], self.last_lines(worker)
        error = WorkerDied(worker, self.shards[worker], exitcode, transport.where, state, lines)
        if not self._attached and exitcode != UNGUARDED:  # which the script's author reads by the error
            _log.warning("%s", error)
        return error

    def last_lines(self, worker: int) -> str:
        """Return what a worker has printed last; "" if that is not known."""
        return self.outputs[worker].last_lines() if worker in self.outputs else ""


class Retired(NamedTuple):
    """A worker that has left its place, and when it is to be ended by force."""

    transport: Transport
    end: float


class StartClock:
    """Measures the time that a worker takes to start; by default the one that was launched last."""

    def __init__(self, workers: Workers, worker: int, transport: Transport | None = None) -> None:
        self._workers = workers
        self._transport = transport
        self._worker = worker
        self._asked = self._begun = self._logged = time.monotonic()

    def get(self, transport: Transport, timeout: float | None) -> Message | None:
        """Wait for a message; without one, check the time. It does not count where this process has been stopped."""
        began = time.monotonic()
        message = transport.get(timeout)
        took = time.monotonic() - began
        if message is None:
            self._begun += took if took > LIVENESS + STOPPED else 0.0
            self.check()
        return message

    def check(self) -> None:
        """Raise StartTimeout after `start_timeout` seconds; log now and then that the start still takes."""
        now = time.monotonic()
        limit = self._workers.limit.allowed(self._worker, self._workers.start_timeout)
        slots, transport = self._workers.shards[self._worker], self._transport or self._workers.launched[self._worker]
        where = transport.where
        if transport.untimed:
            self._begun = now
        if now - self._begun >= limit:
            raise StartTimeout(self._worker, slots, limit, where)
        if now - self._logged >= LOG_EVERY:
            self._logged = now
            _log.warning(
                "waiting for worker %d%s to make envs %s, for %.0f s so far (start_timeout is %g s)",
                self._worker, where, describe_indices(slots), now - self._asked, limit,
            )  # fmt: skip


def envs_of(made: ShardSpec | RemoteFailure) -> ShardSpec:
    """Return the description of the envs that a worker has made. Raise the error if it could not make them."""
    if isinstance(made, RemoteFailure):
        raise made.to_error()
    return made
