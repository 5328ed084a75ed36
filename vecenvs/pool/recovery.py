"""What becomes of a worker that dies or does not answer: another one takes its place, as long as restarts are left.

The way of a replacement: `Recovery.died` (or `late`) puts a `Replacement` where the worker's transport was. Its `get`,
called by whatever waits, launches the new worker, waits until this has made its envs, attaches it, and says STARTED;
`Recovery.started` puts the new transport in place. NOT_STARTED goes to `Recovery.failed`, which begins again.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from vecenvs.batch.batch_columns import BatchColumns
from vecenvs.errors import BackendUnavailable, EnvError, SpaceMismatch, VecEnvError, WorkerDied
from vecenvs.pool.workers import StartClock, Workers, envs_of
from vecenvs.transport import Message, Transport
from vecenvs.transport.protocol import Answer, Command

PAUSE = 0.2  # seconds from a start that has failed to the next one

Briefing = Callable[[int, int], list[tuple[Command, Any]]]


class Recovery:
    """Replaces workers, at most `restarts` times.

    `briefing(worker, restarts)` returns the first commands of a new worker: what it has to know of its episodes.
    `lost` has the workers that are not replaced any more, and why.
    """

    def __init__(self, workers: Workers, batch: BatchColumns, restarts: int, briefing: Briefing) -> None:
        self.lost: dict[int, Exception] = {}
        self.restarts = 0
        self.left = restarts
        self.last: tuple[int | None, str] = None, ""  # exit code and place of the last worker that was replaced
        self._workers = workers
        self._batch = batch
        self._briefing = weakref.WeakMethod(briefing)  # a VecEnv that is not used any more goes at once

    def died(self, worker: int) -> Exception | None:
        """Replace a dead worker, or return the error that says that it is lost."""
        error = self._workers.died(worker)
        if not isinstance(error, WorkerDied):
            raise error
        if not self.left:
            return error.but("spent") if self.restarts else error
        self.last = error.exitcode, error.where
        self._replace(worker, 0.0)
        return None

    def late(self, worker: int) -> None:
        """Replace a worker that is over `step_timeout`."""
        self.last = None, self._workers.transports[worker].where
        self._replace(worker, 0.0)

    def started(self, worker: int, transport: Transport) -> None:
        """Put a new worker in place: it has had its first commands, and those that were unanswered."""
        self._workers.transports[worker] = transport

    def failed(self, worker: int, why: Exception) -> Exception | None:
        """Begin a start that has failed once more; return what says why where that is in vain."""
        if isinstance(why, Interrupted):  # not the worker's fault
            self.left += 1
            self.restarts -= 1
        elif isinstance(why, (EnvError, SpaceMismatch, BackendUnavailable)):  # it would fail again
            return why
        elif not self.left:
            return why.but("spent") if isinstance(why, WorkerDied) else why
        self._replace(worker, PAUSE)
        return None

    def _replace(self, worker: int, pause: float) -> None:
        briefing = self._briefing()
        if briefing is None:
            raise VecEnvError("a worker for a VecEnv that is gone")
        self.restarts += 1
        self.left -= 1
        first = briefing(worker, self.restarts)
        self._workers.transports[worker] = Replacement(self._workers, worker, self._batch, first, pause)


class Interrupted(Exception):
    """The handler of a signal has raised in the midst of a start."""


class Replacement(Transport):
    """A worker on its way, in the place of the one that it replaces: to be waited for like any other.

    Commands are not taken: they stay noted, and are sent once the worker has started. A start in whose midst an
    exception has come is given up as a whole, since there is no telling what has been done.
    """

    starting = True

    def __init__(
        self, workers: Workers, worker: int, batch: BatchColumns, briefing: Sequence[tuple[Command, Any]], pause: float
    ) -> None:
        self.before = workers.transports[worker]
        self.launched: Transport | None = None
        self._workers: Workers = weakref.proxy(workers)  # which holds this
        self._worker = worker
        self._batch = batch
        self._briefing = briefing
        self._not_before = time.monotonic() + pause
        self._clock: StartClock | None = None
        self._under_way = False
        self._outcome: Message | None = None

    @property
    def where(self) -> str:  # type: ignore[override]
        return (self.launched or self.before).where

    @property
    def newest(self) -> Transport:
        return (self.launched or self.before).newest

    def put(self, number: int, tag: int, body: object = None) -> None:
        if tag == Command.CLOSE:
            raise BrokenPipeError("this worker has no envs to close yet")

    def get(self, timeout: float | None) -> Message | None:
        """Return STARTED or NOT_STARTED once it is known."""
        if self._outcome is None:
            if self._under_way:
                self._outcome = 0, int(Answer.NOT_STARTED), Interrupted()
            else:
                self._under_way = True
                self._outcome = self._go_on(timeout)
                self._under_way = False
        return self._outcome

    def _go_on(self, timeout: float | None) -> Message | None:
        try:
            if self.launched is None:
                left = self._not_before - time.monotonic()
                if left > 0:
                    time.sleep(min(left, timeout or 0.0))
                    return None
                self.before.stop(0.0)
                self.launched = self._workers.launch(self._worker)
                self._clock = StartClock(self._workers, self._worker)
            new = self.launched
            message = new.get(timeout)
            if message is None and new.exit_status()[0]:
                message = new.get(0)
                if message is None:
                    raise self._workers.died(self._worker, new)
            if message is None:
                if self._clock is not None:
                    self._clock.check()
                return None
            self._workers.check_spaces(self._worker, envs_of(message[2]))
            new.take()
            self._workers.attach_one(self._worker, new, self._batch)
            for number, (command, body) in enumerate(self._briefing, -len(self._briefing)):
                new.put(number, command, body)
        except ConnectionError:
            return 0, int(Answer.NOT_STARTED), self._workers.died(self._worker, self.launched)
        except (VecEnvError, OSError, EOFError) as exc:
            return 0, int(Answer.NOT_STARTED), exc
        return 0, int(Answer.STARTED), new

    def take(self) -> None:
        """Leave the outcome: it stays what it is."""

    def attach(self, batch: BatchColumns) -> None:
        raise VecEnvError("a worker that replaces another is attached when it has made its envs, not before")

    def exit_status(self) -> tuple[bool, int | None]:
        return False, None  # `get` sees to its death

    def stop(self, grace: float) -> None:
        for transport in (self.launched, self.before):
            if transport is not None:
                transport.stop(grace)
