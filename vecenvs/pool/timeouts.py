"""Measure how long commands have been unanswered, and tell when that exceeds `step_timeout` or `reset_timeout`."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence

from vecenvs.pool.unanswered import StartTime
from vecenvs.pool.workers import LIVENESS, STOPPED
from vecenvs.transport import Transport
from vecenvs.worker.rules import TimeLimits

NEVER = math.inf  # the end of the time of a command that cannot time out: see `Transport.untimed`


class StepTimeouts:
    """Compares the start times of unanswered commands with the time limits of steps and resets.

    The clock of a worker starts again with every sign of life: an answer, or PROGRESS. All clocks do where the caller
    itself has not run for a while in a wait: then the workers have probably not run, either. If all were stopped while
    the caller did something else, the workers say so; that may be on its way when the next call begins, so this one
    looks for late workers at `told_by` at the earliest.
    """

    def __init__(self, limits: TimeLimits, transports: Sequence[Transport]) -> None:
        self.limits = limits
        self.timed = limits.shortest < math.inf
        self._transports = transports
        self._heard = [0.0] * len(transports)
        self._looked = 0.0
        self.told_by = 0.0

    def look(self, *, begins: bool = False) -> float:
        """Note that the caller runs, and return the time: at the beginning of a call, and around its short waits."""
        now = time.monotonic()
        if now - self._looked > LIVENESS + STOPPED:
            if begins:
                self.told_by = now + LIVENESS
            else:
                self._heard = [now] * len(self._heard)
        self._looked = now
        return now

    def note_activity(self, worker: int) -> None:
        """Record a sign of life of this worker."""
        if self.timed:
            self._heard[worker] = time.monotonic()

    def limit(self, deadline: float | None, unanswered: Iterable[StartTime], *, replacing: bool) -> float | None:
        """Return when a wait has to end: at the caller's deadline, or else when a worker exceeds its limit.

        The earlier of the two if late workers are replaced (`replacing`).
        """
        if not self.timed or (deadline is not None and not replacing):
            return deadline
        limit = min((self._end(*each) for each in unanswered), default=NEVER)
        if limit == NEVER:
            return deadline
        return limit if deadline is None else min(limit, deadline)

    def late(self, unanswered: Iterable[StartTime]) -> dict[int, str]:
        """Return the workers that exceed their limit, each with what is late: a "step" or a "reset"."""
        now = self.look()  # this moment, as all may have been stopped since the last one
        found = sorted(each for each in unanswered if self.timed and self._end(*each) <= now)
        return {worker: "reset" if resets else "step" for worker, _, resets in found}

    def restart(self, workers: Iterable[int]) -> None:
        """Start the clocks of these workers again: after a StepTimeout."""
        for worker in workers:
            self.note_activity(worker)

    def _end(self, worker: int, start: float, resets: bool) -> float:
        if self._transports[worker].untimed:
            return NEVER
        return max(start, self._heard[worker]) + (self.limits.reset if resets else self.limits.step)
