"""Waiting for MPI messages without burning a core.

A blocked MPI call burns all of one, and there is no semaphore between hosts. So whoever waits looks again and again,
resting longer the longer it has waited: the rest is a sixteenth of the time waited so far. What comes after t seconds
is seen at most t/16 late, and a rank that waits for long looks 50 times a second, well under 1 % of a core.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

SHARE = 1 / 16
SHORTEST = 2e-5
LONGEST = 2e-2
YIELDING = 1e-4  # seconds in which others may have the core but nobody sleeps: a sleep costs about as much


class Patience:
    """How long to rest next; `restart` when something has come."""

    def __init__(self) -> None:
        self._since = time.perf_counter()

    def restart(self) -> None:
        self._since = time.perf_counter()

    def next_rest(self) -> float:
        """Seconds to rest; 0 says to look again at once, after giving way."""
        waited = time.perf_counter() - self._since
        if waited < YIELDING:
            os.sched_yield()
            return 0.0
        return min(max(waited * SHARE, SHORTEST), LONGEST)


def wait_for(found: Callable[[], bool], timeout: float | None) -> bool:
    """Look until `found()` is true or `timeout` seconds have passed; tell whether it is."""
    if found():
        return True
    deadline = None if timeout is None else time.perf_counter() + timeout
    patience = Patience()
    while True:
        rest = patience.next_rest()
        if deadline is not None:
            left = deadline - time.perf_counter()
            if left <= 0:
                return found()
            rest = min(rest, left)
        if rest:
            time.sleep(rest)
        if found():
            return True
