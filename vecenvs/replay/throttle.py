"""Who gets how much of the server's one thread: a learner that samples without pause goes first."""

from __future__ import annotations

import math

CALL = 3e-4  # seconds that a call costs the server besides its work: Ray's part of it
WINDOW = 0.05  # seconds over which the load is told
BUSY = 0.5  # from this load of sampling on inserts are held to their share
INSERTS = 0.05  # of the time


class Share:
    """Tells when the next insert may come in. While sampling takes less than half of the time: at once.

    Above that inserts get a twentieth of it, so that sampling does not slow down by more, whatever comes in. Those held
    back wait with whoever sends them. All times are in seconds by one clock.
    """

    def __init__(self) -> None:
        self._work = 0.0  # of sampling, older work counting less
        self._noted = 0.0
        self._insert_from = 0.0

    def sampled(self, now: float, seconds: float) -> None:
        """Note work for a learner that was done at `now`."""
        self._work = self._fading(now) + seconds + CALL
        self._noted = now

    def inserted(self, now: float, seconds: float) -> None:
        """Note an insert that was done at `now`."""
        self._insert_from = now + (seconds + CALL) * (1 / INSERTS - 1)

    def wait(self, now: float) -> float:
        """Tell how long the next insert has to wait."""
        return max(self._insert_from - now, 0.0) if self._fading(now) > BUSY * WINDOW else 0.0

    def _fading(self, now: float) -> float:
        return self._work * math.exp((self._noted - now) / WINDOW)
