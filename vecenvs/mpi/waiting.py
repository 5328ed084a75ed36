"""Waiting for MPI messages without burning a core.

A blocked MPI call burns all of one, and there is no semaphore between hosts. So whoever waits looks again and again,
resting longer the longer it has waited: the rest is a share of the time waited so far. What comes after t seconds is
seen at most a sixteenth of t late, and a rank that waits for long looks 50 times a second, well under 1 % of a core.

Every look costs some microseconds of a core that a worker may need, over TCP more. So there are as few as that bound
allows; a rank that only relays, and whose workers all owe an answer, hears of that by a pipe and hardly looks at all.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

SHARE = 1 / 16
RELAYING = 1 / 2
SHORTEST = 5e-5
LONGEST = 2e-2
YIELDING = 1e-4  # seconds in which others may have the core but nobody sleeps: a sleep costs about as much


class Patience:
    """How long to rest next; `restart` when something has come."""

    def __init__(self) -> None:
        self._since = time.perf_counter()

    def restart(self) -> None:
        self._since = time.perf_counter()

    def next_rest(self, share: float = SHARE) -> float:
        """Seconds to rest, a share of the time waited; 0 says to look again at once, after giving way."""
        waited = time.perf_counter() - self._since
        if waited < YIELDING:
            os.sched_yield()
            return 0.0
        return min(max(waited * share, SHORTEST), LONGEST)


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
