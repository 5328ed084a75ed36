"""What a worker tells of itself: how long it has waited and worked, and how much memory its process has."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Any, NamedTuple

WAITING_STEP, WAITING_CPU = 0.005, 0.2  # envs wait if steps take so many seconds, and less of a core than this share
LOAD_EVERY = 1.0  # seconds between reports of a worker to its caller, at least


class Load(NamedTuple):
    """Seconds that a worker has waited for commands and spent within them, and its process's bytes of memory.

    None where that is not known. With `concurrency` a worker's envs are at work between commands, too: there the
    seconds are never known.
    """

    waiting: float | None = None
    stepping: float | None = None
    rss: int | None = None
    cpu: float | None = None  # seconds of CPU that the process has used meanwhile

    def after(self, before: Load) -> Load:
        """Return this with the seconds of the worker that was there before."""
        return Load(total([self.waiting, before.waiting]), total([self.stepping, before.stepping]), self.rss)

    def describe(self) -> dict[str, Any]:
        """Return what `stats` says of it."""
        return {"seconds_waiting": self.waiting, "seconds_stepping": self.stepping, "rss_bytes": self.rss}


def total(values: Iterable[Any]) -> Any:
    """Return the sum of the values that are known; None if none is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def resident_bytes() -> int:
    """Return the memory of this process that is in RAM; where the system does not tell, the most that ever was."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
