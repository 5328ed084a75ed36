"""How fast the envs of one process are made, with `start_limit`."""

from __future__ import annotations

import threading
import time
from typing import Any

_SLACK = 0.5  # seconds


class Pace:
    """Lets an env be made every `interval` seconds, in any thread. A copy for another process begins anew."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._next = 0.0
        self._lock = threading.Lock()

    def __reduce__(self) -> Any:
        return Pace, (self._interval,)

    def wait(self) -> None:
        """Wait until the next env may be made."""
        with self._lock:
            begins, self._next = scheduled(self._next, self._interval)
        time.sleep(max(begins - time.monotonic(), 0.0))


def scheduled(due: float, interval: float, count: int = 1) -> tuple[float, float]:
    """Return when to begin what is due at a time, and when what follows after so many intervals is due.

    What begins less than an interval late, or _SLACK seconds, does not delay what follows.
    """
    now = time.monotonic()
    begins = due if due > now - max(interval, _SLACK) else now
    return max(begins, now), begins + count * interval
