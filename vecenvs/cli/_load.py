"""The load of each worker, for `python -m vecenvs run --load`: how much of a core its process uses."""

from __future__ import annotations

import platform
import time
from typing import Any

from vecenvs import env_calls
from vecenvs.errors import WorkerDied, describe_indices
from vecenvs.vec_env import VecEnv

_EVERY = 1.0  # seconds between two readings

Process = tuple[str, int]  # the name of a host, and a process id there


class Loads:
    """Ask the workers of `vec` now and then, between its steps, how much processor time they have used.

    The time that a worker spends trying a semaphore before it sleeps counts, too.
    """

    def __init__(self, vec: VecEnv) -> None:
        self._vec = vec
        self._here = platform.node()
        self._read = 0.0
        self._used: dict[Process, tuple[float, float]] = {}  # the clock and the processor time of the last reading
        self._lines: list[tuple[str, float | None]] = []

    def lines(self) -> list[tuple[str, float | None]]:
        """Return for each worker its name with its envs, and its load from 0 to 1, None if not known yet."""
        now = time.perf_counter()
        if now >= self._read + _EVERY:
            try:
                found: list[Any] = self._vec.call(env_calls.processor_time, None)
            except WorkerDied as died:
                if died.state != "replaced":
                    raise
                return self._lines  # the next reading has the worker that takes its place
            self._read = now
            self._lines = self._compare(found)
        return self._lines

    def _compare(self, found: list[tuple[str, int, float]]) -> list[tuple[str, float | None]]:
        now, before = time.perf_counter(), self._used
        self._used = {(host, pid): (now, used) for host, pid, used in found}
        lines: list[tuple[str, float | None]] = []
        for process, (_, used) in self._used.items():
            slots = [slot for slot, (host, pid, _) in enumerate(found) if (host, pid) == process]
            load = None
            if process in before:
                then, used_then = before[process]
                load = max(0.0, (used - used_then) / (now - then))
            where = "" if process[0] == self._here else f" on {process[0]}"
            name = f"process {process[1]}{where}, env{'s' * (len(slots) > 1)} {describe_indices(slots)}"
            lines.append((name, load))
        return lines


def percent(load: float | None) -> str:
    """Format a load."""
    return "-" if load is None else f"{load:.0%} of a core"
