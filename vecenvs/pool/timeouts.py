"""Measure how long commands have been unanswered, and tell when that exceeds `step_timeout`."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence

from vecenvs.pool.workers import LIVENESS, STOPPED
from vecenvs.transport import Transport

NOT_STARTED = math.inf  # start time of a command that cannot time out: see `Transport.untimed`


class StepTimeouts:
    """Compares the start times of unanswered commands with `step_timeout` (None: no command ever times out).

    The clock of a worker starts again with every sign of life: an answer, or PROGRESS. All clocks do where the caller
    itself has not run for a while in a wait: then the workers have probably not run, either. If all were stopped while
    the caller did something else, the workers say so; that may be on its way when the next call begins, so this one
    looks for late workers at `told_by` at the earliest.
    """

    def __init__(self, step_timeout: float | None, transports: Sequence[Transport]) -> None:
        self.step_timeout = step_timeout
        self._transports = transports
        self._heard = [0.0] * len(transports)
        self._looked = 0.0
        self.told_by = 0.0

    def look(self, *, begins: bool = False) -> None:
        """Note that the caller runs: at the beginning of a call, or before and after each of its short waits."""
        now = time.monotonic()
        if now - self._looked > LIVENESS + STOPPED:
            if begins:
                self.told_by = now + LIVENESS
            else:
                self._heard = [now] * len(self._heard)
        self._looked = now

    def note_activity(self, worker: int) -> None:
        """Record a sign of life of this worker."""
        if self.step_timeout is not None:
            self._heard[worker] = time.monotonic()

    def limit(
        self, deadline: float | None, unanswered: Iterable[tuple[int, float]], *, replacing: bool
    ) -> float | None:
        """Return when a wait has to end: at the caller's deadline, or else when a worker exceeds `step_timeout`.

        The earlier of the two if late workers are replaced (`replacing`). `unanswered` has the worker and the start
        time of each command.
        """
        if self.step_timeout is None or (deadline is not None and not replacing):
            return deadline
        oldest = min((self._since(worker, start) for worker, start in unanswered), default=NOT_STARTED)
        if oldest == NOT_STARTED:
            return deadline
        limit = oldest + self.step_timeout
        return limit if deadline is None else min(limit, deadline)

    def late(self, unanswered: Iterable[tuple[int, float]]) -> set[int]:
        """Return the workers that exceed `step_timeout`."""
        if self.step_timeout is None:
            return set()
        latest = time.monotonic() - self.step_timeout
        return {worker for worker, start in unanswered if self._since(worker, start) <= latest}

    def restart(self, workers: Iterable[int]) -> None:
        """Start the clocks of these workers again: after a StepTimeout."""
        for worker in workers:
            self.note_activity(worker)

    def _since(self, worker: int, start: float) -> float:
        transport = self._transports[worker]
        return NOT_STARTED if transport.untimed else max(start, self._heard[worker])
