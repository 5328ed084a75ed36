"""A throttle for inserts: the server has one thread, and a learner that samples without pause goes first."""

from __future__ import annotations

import math

CALL = 3e-4  # seconds that Ray takes for a call in the server, besides the work itself
WINDOW = 0.05  # seconds over which the load is averaged
BUSY = 0.5  # the load of sampling from which inserts are throttled
INSERTS = 0.05  # the share of the time that throttled inserts get


class InsertThrottle:
    """Delays inserts while sampling takes at least half of the server's time.

    Inserts then get a twentieth of the time, so that they slow sampling down by no more than that. Delayed inserts wait
    in the process that sends them. All times are in seconds, by one clock.
    """

    def __init__(self) -> None:
        self._work = 0.0  # recent seconds of sampling; older ones count less
        self._noted = 0.0
        self._insert_from = 0.0

    def add_sample(self, now: float, seconds: float) -> None:
        """Record a sample that ended at `now`."""
        self._work = self._recent_work(now) + seconds + CALL
        self._noted = now

    def add_insert(self, now: float, seconds: float) -> None:
        """Record an insert that ended at `now`."""
        self._insert_from = now + (seconds + CALL) * (1 / INSERTS - 1)

    def delay(self, now: float) -> float:
        """Return the seconds until the next insert is allowed."""
        return max(self._insert_from - now, 0.0) if self._recent_work(now) > BUSY * WINDOW else 0.0

    def _recent_work(self, now: float) -> float:
        return self._work * math.exp((self._noted - now) / WINDOW)
