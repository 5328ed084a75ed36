"""Replace workers that die or do not answer in time, as long as restarts are left.

`Recovery.died` and `Recovery.late` put a `Replacement` where the worker's transport was. Its `get`, called by any wait,
launches the new worker, waits until it has made its envs, attaches it, and returns STARTED; `Recovery.started` puts the
new transport in place. After NOT_STARTED `Recovery.failed` tries once more.
"""

from __future__ import annotations

import copy
import logging
import time
import weakref
from collections.abc import Callable
from typing import Any

from vecenvs.batch.batch_columns import BatchColumns
from vecenvs.errors import (
    BackendUnavailable,
    EnvError,
    SpaceMismatch,
    VecEnvError,
    WorkerDied,
    describe_exit,
    describe_indices,
)
from vecenvs.pool.workers import CLOSE_GRACE, Retired, StartClock, Workers, envs_of
from vecenvs.transport import Message, Transport
from vecenvs.transport.memory import SCARCE
from vecenvs.transport.protocol import Answer, Command

FIRST_NUMBER = -(2**61)  # of a new worker's first commands, and CALL_NUMBER of calls in on_restart: below all others
CALL_NUMBER = -(2**60)
PAUSE = 0.2  # seconds between a start that has failed and the next one
_TRIES = 5  # starts that fail for want of memory or room, each after twice the pause, until a call raises

_log = logging.getLogger("vecenvs")

FirstCommands = Callable[[int, int], list[tuple[Command, Any]]]
First = Callable[[int], list[tuple[Command, Any]]]


class Recovery:
    """Replaces workers, at most `restarts` times.

    `first_commands(worker, restarts)` returns what a new worker is sent as soon as it has made its envs: the state of
    its episodes. `on_restart(slots)` is called then, before it has any other command. `lost` has the error of each
    worker that is not replaced any more.
    """

    def __init__(self, workers: Workers, batch: BatchColumns, restarts: int, first_commands: FirstCommands) -> None:
        self.lost: dict[int, Exception] = {}
        self.on_restart: Callable[[list[int]], object] = list
        self.by_worker = [0] * len(workers.shards)  # how often each worker was replaced
        self.left = restarts
        self.recycled = 0  # workers that have retired
        self.last: WorkerDied | None = None  # of the last worker that was replaced
        self._workers = workers
        self._batch = batch
        self._scarce = [0] * len(workers.shards)  # starts of each worker that have failed for want of memory or room
        self._first_commands = weakref.WeakMethod(first_commands)  # no cycle: an unused VecEnv is freed at once

    def died(self, worker: int) -> Exception | None:
        """Replace a worker that is dead or moves; return the error if it is dead and no restart is left."""
        error = self._workers.died(worker)
        if not isinstance(error, WorkerDied):
            raise error
        if self._workers.transports[worker].moving:
            self.left += 1  # `_replace` counts it
        else:
            self._say(worker, f"died ({describe_exit(error.exitcode)})", error.printed)
            if not self.left:
                return error.but("spent") if self.restarts else error
        self.last = error
        self._replace(worker, 0.0)
        return None

    def late(self, worker: int, doing: str) -> None:
        """Replace a worker that is over the time limit of what it is doing: a "step" or a "reset"."""
        lines, where = self._workers.last_lines(worker), self._workers.transports[worker].where
        self._say(worker, f"has not answered within {doing}_timeout{self._workers.transports[worker].cause}", lines)
        self.last = WorkerDied(worker, self._workers.shards[worker], None, where, "lost", lines)
        self._replace(worker, 0.0)

    def retired(self, worker: int) -> None:
        """Put its successor in the place of a worker that has retired. Without one, another is launched first."""
        successor = self._workers.successors.get(worker)
        if successor is not None and successor.exit_status()[0]:
            self._workers.successors.pop(worker).stop(0.0)
        self.recycled += 1
        self._place(worker, 0.0, CLOSE_GRACE)

    def started(self, worker: int, transport: Transport) -> None:
        """Put a new worker in place: it has been sent its first commands, and those that were unanswered."""
        self._scarce[worker] = 0
        self._workers.transports[worker] = transport
        self._workers.find_connections()

    def failed(self, worker: int, why: Exception) -> Exception | None:
        """Try a failed start once more; return the error if that is pointless or no restart is left."""
        if isinstance(why, Interrupted):  # not the worker's fault
            self._uncount(worker)
        elif isinstance(why, OSError) and why.errno in SCARCE:
            self._uncount(worker)
            self._scarce[worker] += 1
            self._replace(worker, PAUSE * 2.0 ** self._scarce[worker])
            if self._scarce[worker] == _TRIES:
                self._scarce[worker] = 0
                slots = describe_indices(self._workers.shards[worker])
                raise VecEnvError(
                    f"worker {worker} with envs {slots} has ended, and the system does not give another one what it "
                    f"needs ({why}): make room, and wait again for their rows, which tries again, or close()"
                )
            return None
        elif isinstance(why, (EnvError, SpaceMismatch, BackendUnavailable)):  # it would fail again
            return why
        elif not self.left:
            return why.but("spent") if isinstance(why, WorkerDied) else why
        else:
            self._say(worker, f"could not be replaced ({why})")
        self._replace(worker, PAUSE)
        return None

    def _say(self, worker: int, how: str, printed: str = "") -> None:
        """Log the end of a worker."""
        slots, where = describe_indices(self._workers.shards[worker]), self._workers.transports[worker].where
        then = f"restart {self.restarts + 1} of {self.restarts + self.left}" if self.left else "it is not replaced"
        last = printed and f". It printed last:\n{printed}"
        _log.warning("worker %d%s with envs %s %s: %s%s", worker, where, slots, how, then, last)

    @property
    def restarts(self) -> int:
        """How often a worker was replaced."""
        return sum(self.by_worker)

    def first(self, worker: int) -> list[tuple[Command, Any]]:
        """Return the first commands of a new worker."""
        first_commands = self._first_commands()
        if first_commands is None:
            raise VecEnvError("the VecEnv of this worker has been garbage-collected")
        return first_commands(worker, self.restarts)

    def _uncount(self, worker: int) -> None:
        self.left += 1
        self.by_worker[worker] -= 1

    def _replace(self, worker: int, pause: float) -> None:
        self.by_worker[worker] += 1
        self.left -= 1
        self._place(worker, pause, 0.0)

    def _place(self, worker: int, pause: float, grace: float) -> None:
        """Put the successor of a worker in its place, or what launches one. With a successor it has `grace` to end."""
        workers = self._workers
        successor = workers.successors.pop(worker, None)
        if successor is not None:
            workers.launched[worker] = successor
            workers.retired.append(Retired(workers.transports[worker], time.monotonic() + grace))
        workers.processes[worker] = None, None
        workers.transports[worker] = Replacement(workers, worker, self._batch, self.first, pause, successor)


def copied(error: Exception) -> Exception:
    """Return an equal error that has not been raised before: each raise adds to an error's traceback."""
    again = copy.copy(error)
    again.__cause__ = error.__cause__
    return again


class Interrupted(Exception):
    """The handler of a signal has raised during a start."""


class Replacement(Transport):
    """A worker that is starting, in the place of the one that it replaces. It is waited for like any other.

    Commands are not sent: they stay recorded, and are sent once the worker has started. A start during which an
    exception comes is given up as a whole, since nothing tells how far it got.
    """

    untimed = True

    def __init__(
        self,
        workers: Workers,
        worker: int,
        batch: BatchColumns,
        first: First,
        pause: float,
        launched: Transport | None = None,
    ) -> None:
        self.before = workers.transports[worker]
        self.launched = launched
        self._workers: Workers = weakref.proxy(workers)  # no cycle: they refer to this
        self._worker = worker
        self._batch = batch
        self._first = weakref.WeakMethod(first)
        self._not_before = time.monotonic() + pause
        self._clock = None if launched is None else StartClock(self._workers, worker)
        self._advancing = False
        self._outcome: Message | None = None

    @property
    def where(self) -> str:  # type: ignore[override]
        return (self.launched or self.before).where

    def put(self, number: int, tag: int, body: object = None) -> None:
        if tag == Command.CLOSE:
            raise BrokenPipeError("this worker has no envs to close yet")

    def get(self, timeout: float | None) -> Message | None:
        """Continue the start; return STARTED or NOT_STARTED at its end."""
        if self._outcome is None:
            if self._advancing:
                self._outcome = 0, int(Answer.NOT_STARTED), Interrupted()
            else:
                self._advancing = True
                self._outcome = self._advance(timeout)
                self._advancing = False
        return self._outcome

    def _advance(self, timeout: float | None) -> Message | None:
        """Do the next part of the start, waiting up to `timeout` seconds; return the outcome once it is known."""
        try:
            if self.launched is None:
                left = max(self._not_before - time.monotonic(), self._workers.limit.seconds())
                if left > 0:
                    time.sleep(min(left, timeout or 0.0))
                    return None
                self.before.stop(0.0)
                self.launched = self._workers.launch(self._worker)
                self._clock = StartClock(self._workers, self._worker)
            new = self.launched
            message = new.get(timeout) if self._clock is None else self._clock.get(new, timeout)
            if message is None and new.exit_status()[0]:
                message = new.get(0)
                if message is None:
                    raise self._workers.died(self._worker, new)
            if message is None:
                return None
            self._workers.accept(self._worker, envs_of(message[2]))
            new.take()
            self._workers.attach_one(self._worker, new, self._batch)
            first = self._first()
            for number, (command, body) in enumerate(first(self._worker) if first else (), FIRST_NUMBER):
                new.put(number, command, body)
        except ConnectionError:
            return 0, int(Answer.NOT_STARTED), self._workers.died(self._worker, self.launched)
        except (VecEnvError, OSError, EOFError) as exc:
            return 0, int(Answer.NOT_STARTED), exc
        return 0, int(Answer.STARTED), new

    def take(self) -> None:
        """Keep the outcome: it is final."""

    def attach(self, batch: BatchColumns) -> None:
        raise VecEnvError("a replacement is attached when it has made its envs, not before")

    def exit_status(self) -> tuple[bool, int | None]:
        return False, None  # `get` notices a death

    def stop(self, grace: float) -> None:
        for transport in (self.launched, self.before):
            if transport is not None:
                transport.stop(grace)
