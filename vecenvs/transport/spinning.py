"""How every engine waits for a semaphore: it tries for a while, or at the right moment, before it sleeps in the kernel.

A sleep and a wake-up cost both sides 50 to 300 us, more than a step of cheap envs. To try costs a core. So a process
tries while its waits are short; where they are long and regular, as beside a learner, it sleeps through most of the
wait and tries around its expected end; and it leaves the core to others where it turns out not to have it alone.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

SWITCH = "VECENVS_SPIN"  # 0: never try, which saves power and leaves the cores to other programs
_FIRST = 1e-4  # seconds to try where nothing is known of the waits: bridges the differences between shards
_EARLY = 1.5e-4  # seconds before the expected end of a wait: a process takes up to this long to wake up
_LOST = 5e-4  # seconds between two readings of the clock in which another program has had the core
_LEAST_REST, _MOST_REST = 4, 128  # waits to sleep through after that
_RECOVERY = 0.97  # the factor of the next rest for each wait that was not disturbed
_TIMED = sys.platform == "linux"  # macOS polls, with sleeps of up to 20 ms, where a semaphore has a timeout


# The longest time, in seconds, for which a process tries in one wait.
NEVER = 0.0
ALONE = 1e-3  # with a core for each process
SHARED = 2e-4  # where the caller, once awake, needs the core of a worker that tries: no longer than between two steps


def spins(spare: int) -> tuple[float, float]:
    """Return the caller's and the workers', where `spare` cores are left beside one for each worker process.

    No process tries when there are more of them than cores, or when the environment says VECENVS_SPIN=0.

    Raises:
        ValueError: VECENVS_SPIN is neither 0 nor 1.
    """
    switch = os.environ.get(SWITCH, "1")
    if switch not in ("0", "1"):
        raise ValueError(f"{SWITCH} must be 0 or 1, not {switch!r}")
    if spare < 0 or switch == "0":
        return NEVER, NEVER
    return (ALONE, ALONE) if spare > 0 else (NEVER, SHARED)


class Rhythm:
    """Waits for a semaphore in the way that suits the waits before.

    `acquire` is the semaphore's, without blocking, and `sleep` acquires it within some seconds. `most` is the longest
    time to try in one wait.
    """

    def __init__(self, acquire: Callable[[bool], bool], sleep: Callable[[float | None], bool], most: float) -> None:
        self._acquire, self._sleep = acquire, sleep
        self._most = most
        self._usual = 0.0  # running means: of the waits, in seconds,
        self._spread = 0.0  # and of how far they are from `_usual`
        self._odd = False  # whether the last wait was far longer than usual
        self._rest = 0  # waits to sleep through
        self._penalty = float(_LEAST_REST)  # the next rest
        self._idle = False  # whether the last wait was in vain

    def wait(self, timeout: float | None) -> bool:
        """Acquire the semaphore; return False if that has not worked within the timeout."""
        if not self._most:
            return self._sleep(timeout)
        begin = time.perf_counter()
        if self._rest:
            self._rest -= 1
            found = False
        else:
            found = not self._idle and self._try(begin, timeout)
        if not found:
            left = None if timeout is None else max(0.0, begin + timeout - time.perf_counter())
            found = self._sleep(left)
        if found:
            self._learn(time.perf_counter() - begin)
        self._idle = not found
        return found

    def _try(self, begin: float, timeout: float | None) -> bool:
        """Try for a while, at the moment at which that is likely to help."""
        acquire, clock, usual, most = self._acquire, time.perf_counter, self._usual, self._most
        margin = _EARLY + 2 * self._spread
        now, length = begin, min(most, _FIRST)
        if usual + margin < most:
            length = most
        elif _TIMED and 2 * margin < most and (timeout is None or usual < timeout):
            if self._sleep(usual - margin):
                return True
            now, length = clock(), 2 * margin
        end = now + length
        while now < end:
            found = acquire(False)
            before, now = now, clock()
            if now - before > _LOST:
                self._give_way()
                return found
            if found:
                self._penalty = max(_LEAST_REST, self._penalty * _RECOVERY)
                return True
        return False

    def _give_way(self) -> None:
        """Sleep through the next waits, twice as many as the last time: another program uses this core."""
        self._rest = round(self._penalty)
        self._penalty = min(_MOST_REST, 2 * self._penalty)

    def _learn(self, wait: float) -> None:
        """Note how long a wait was. One long wait among short ones, during an update of the learner say, is ignored."""
        most = 4 * self._usual + _FIRST
        if wait > most and not self._odd:
            self._odd = True
            return
        self._odd = False
        difference = min(wait, most) - self._usual
        self._usual += difference / 8
        self._spread += (min(abs(difference), 4 * self._spread + _FIRST) - self._spread) / 8
