"""Where the time of a training goes, and the CPU time that other processes and threads use meanwhile."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import psutil

clock = time.perf_counter
Result = TypeVar("Result")


@dataclass
class Phases:
    """Seconds of a training: inside `step`, in the policy's inference, in updates; `wall` is all of it."""

    step: float = 0.0
    inference: float = 0.0
    update: float = 0.0
    wall: float = 0.0

    def timed(self, phase: str, function: Callable[..., Result]) -> Callable[..., Result]:
        """Return the function with its time counted in a phase."""

        def call(*args: Any, **kwargs: Any) -> Result:
            begin = clock()
            result = function(*args, **kwargs)
            setattr(self, phase, getattr(self, phase) + clock() - begin)
            return result

        return call

    def per_transition(self, transitions: int) -> dict[str, float]:
        return {phase: seconds / transitions for phase, seconds in asdict(self).items()}


class OthersCpu:
    """The CPU time of this process's descendants and other threads. Descendants are those that exist now.

    Linux has a clock for each process, which counts in nanoseconds. Elsewhere `read` returns None.
    """

    def __init__(self) -> None:
        self._pids = [process.pid for process in psutil.Process().children(recursive=True)]

    def read(self) -> float | None:
        """Return the seconds so far."""
        if sys.platform != "linux":
            return None
        own = time.thread_time()
        # See clock_getcpuclockid(3): the clock's number is made from that of the process.
        return time.process_time() - own + sum(time.clock_gettime((~pid << 3) | 2) for pid in self._pids)


def cpu_share(before: float | None, after: float | None, seconds: float) -> float | None:
    """Return how many cores were used between two readings."""
    if before is None or after is None:
        return None
    return max(0.0, after - before) / seconds  # the clocks of a process and of a thread are not read at once
