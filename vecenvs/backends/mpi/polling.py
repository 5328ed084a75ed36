"""Waiting for MPI messages without burning a core.

A blocked MPI call burns all of one, and there is no semaphore between hosts. So, where MPI carries messages, whoever
waits looks again and again: at first without sleeping, since falling asleep and waking up cost more than a short wait,
but giving way to everybody who wants the core; then at rests, longer the longer it has waited. What comes after t
seconds is seen at most a sixteenth of t late, and a rank that waits for long looks 50 times a second, well under 1 % of
a core.

Every look costs some microseconds of a core that a worker may need, over TCP more. So there are hardly any while
nothing can be expected: where answers have taken about equally long, the first look is taken shortly before that time
(one that comes sooner is seen then, or up to LONGEST late); and a rank whose workers are all in a lock-step hears of
its end by a pipe.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable

WAKING = 1e-3  # seconds without sleep: no longer than unequal workers usually wait for each other
SHARE = 1 / 16
SHORTEST = 5e-5
LONGEST = 2e-2
EARLY = 7 / 8  # of the shortest time that answers have taken lately, less what it costs to sleep, generously:
SLEEP = 2e-4  # else answers would seem to take as long as the sleeps that wait for them


class Patience:
    """How long to rest next; `restart` when something has come."""

    def __init__(self) -> None:
        self._since = time.perf_counter()

    def restart(self, waited: float = 0.0) -> None:
        """Begin another wait; or be as patient as after so many seconds."""
        self._since = time.perf_counter() - waited

    def next_rest(self) -> float:
        """Seconds to rest, a share of the time waited; 0 says to look again at once, after giving way."""
        waited = time.perf_counter() - self._since
        if waited < WAKING:
            os.sched_yield()
            return 0.0
        return min(max(waited * SHARE, SHORTEST), LONGEST)


class Habit:
    """How long one worker's answers take."""

    def __init__(self) -> None:
        self._asked = 0.0
        self._shortest = SHORTEST

    def ask(self) -> None:
        """Note that it has been given a command."""
        self._asked = time.perf_counter()

    def answer(self) -> None:
        """Note that it has answered. Slow answers count little: the one after a reset may be much faster."""
        self._shortest = min(time.perf_counter() - self._asked, self._shortest * 9 / 8)

    def expected(self) -> float:
        """When to begin to look for the next answer, by `time.perf_counter`."""
        return self._asked + EARLY * self._shortest - SLEEP


def wait_for(found: Callable[[], bool], timeout: float | None, habit: Habit | None = None) -> bool:
    """Look until `found()` is true or `timeout` seconds have passed; tell whether it is.

    With the `habit` of the worker that is waited for, hardly before its answer can be expected.
    """
    if found():
        return True
    deadline = math.inf if timeout is None else time.perf_counter() + timeout
    expected = 0.0 if habit is None else habit.expected()
    patience = Patience()
    while True:
        now = time.perf_counter()
        if now + SHORTEST < expected:
            rest = min(expected - now, LONGEST)
            patience.restart(WAKING)  # until then those that compute need the cores
        else:
            rest = patience.next_rest()
        if rest >= deadline - now:
            rest = deadline - now
            if rest <= 0:
                return found()
        if rest:
            time.sleep(rest)
        if found():
            return True
