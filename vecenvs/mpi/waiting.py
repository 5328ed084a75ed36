"""Waiting for MPI messages without burning a core.

A blocked MPI call burns all of one, and there is no semaphore between hosts. So whoever waits looks again and again,
resting longer the longer it has waited, or had to wait the last time: the rest is a sixteenth of that. What comes after
t seconds is seen about t/16 late, and a rank that waits for long looks 50 times a second, well under 1 % of a core.

Every look costs some microseconds of a core that a worker may need, over TCP more. So there are as few as that bound
allows; a rank that only relays, and whose workers all owe an answer, hears of that by a pipe and hardly looks at all.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

SHARE = 1 / 16
RELAYING = 1e-3  # the shortest rest while there is nothing to come but what a pipe tells
SHORTEST = 5e-5
LONGEST = 2e-2
YIELDING = 1e-4  # seconds in which others may have the core but nobody sleeps: a sleep costs about as much


class Patience:
    """How long to rest next. `restart` when something has come; `expected` is what the next wait will be like."""

    def __init__(self) -> None:
        self._since = time.perf_counter()
        self.expected = 0.0

    @property
    def waited(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self._since

    def restart(self) -> None:
        """Begin another wait."""
        self._since = time.perf_counter()

    def next_rest(self, *, relaying: bool = False) -> float:
        """Seconds to rest; 0 says to look again at once, after giving way."""
        longer = max(self.waited, self.expected)
        if longer < YIELDING and not relaying:
            os.sched_yield()
            return 0.0
        return min(max(longer * SHARE, RELAYING if relaying else SHORTEST), LONGEST)


def wait_for(found: Callable[[], bool], timeout: float | None, patience: Patience | None = None) -> bool:
    """Look until `found()` is true or `timeout` seconds have passed; tell whether it is.

    With `patience`, one object for waits that are alike, as long as the last one took is expected of the next.
    """
    patience = patience or Patience()
    patience.restart()
    if found():
        patience.expected = 0.0
        return True
    deadline = None if timeout is None else time.perf_counter() + timeout
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
            patience.expected = patience.waited
            return True
