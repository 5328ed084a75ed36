"""Waiting for MPI messages without burning a core.

A blocked MPI call burns a whole core, and there is no semaphore between hosts. So whatever waits polls: for a moment
without sleeping, but giving way to every process that wants the core, then with rests in between, which grow with the
time waited so far. A message that comes after t seconds is seen at most a sixteenth of t late. A rank that waits for
long polls 50 times a second, which takes well under 1 % of a core.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable

NO_SLEEP = 1e-3  # seconds of polling without sleep
SHARE = 1 / 16  # of the time waited so far: the next rest
SHORTEST = 5e-5
LONGEST = 2e-2


class Backoff:
    """How long to rest before the next poll. Call `restart` when a message has come."""

    def __init__(self) -> None:
        self._since = time.perf_counter()

    def restart(self) -> None:
        """Begin another wait."""
        self._since = time.perf_counter()

    def next_rest(self) -> float:
        """Return the seconds to rest; after giving way to other processes, 0 while it is too early for a rest."""
        waited = time.perf_counter() - self._since
        if waited < NO_SLEEP:
            os.sched_yield()
            return 0.0
        return min(max(waited * SHARE, SHORTEST), LONGEST)


def wait_for(found: Callable[[], bool], timeout: float | None) -> bool:
    """Poll until `found()` is true or `timeout` seconds have passed; tell whether it is."""
    if found():
        return True
    deadline = math.inf if timeout is None else time.perf_counter() + timeout
    backoff = Backoff()
    while True:
        left = deadline - time.perf_counter()
        if left <= 0:
            return found()
        rest = min(backoff.next_rest(), left)
        if rest:
            time.sleep(rest)
        if found():
            return True
