"""`start_limit`: how many workers may make their envs at the same time, and how many envs in a second."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

from vecenvs.arguments import parse_rates
from vecenvs.transport import Transport
from vecenvs.worker.pace import Pace, scheduled

_LOOK = 0.01  # seconds between looks whether a worker has made its envs


class StartLimit:
    """When the next worker may be launched. `counts` has the number of envs that each worker makes.

    Raises:
        TypeError: `given` is not None or a pair.
        ValueError: a limit is not more than 0.
    """

    def __init__(self, given: Any, counts: Sequence[int]) -> None:
        at_once, per_second = parse_rates("start_limit", given, "workers that start", "envs", "start")
        self._at_once = at_once
        self._interval = 1.0 / per_second
        self._counts = counts
        self._starting: dict[int, Transport] = {}
        self._due = 0.0

    @property
    def pace(self) -> Pace | None:
        """What the envs of one worker wait for."""
        return Pace(self._interval) if self._interval else None

    def seconds(self) -> float:
        """Return for how long to wait until one may be launched, or until that is looked at again."""
        if self.starting() >= self._at_once:
            return _LOOK
        return max(self._due - time.monotonic(), 0.0)

    def starting(self) -> float:
        """Return how many workers are making their envs."""
        for worker, transport in [*self._starting.items()] if self._at_once < math.inf else ():
            if transport.get(0) is not None or transport.exit_status()[0]:
                self.ended(worker)
        return len(self._starting)

    def begun(self, worker: int, transport: Transport) -> None:
        """Take note that a worker was launched."""
        self._starting[worker] = transport
        _, self._due = scheduled(self._due, self._interval, self._counts[worker])

    def ended(self, worker: int) -> None:
        """Take note that a worker has made its envs, or never will. Repeatable."""
        self._starting.pop(worker, None)

    def allowed(self, worker: int, seconds: float) -> float:
        """Return how long the start of a worker may take that may take so many seconds without this limit."""
        return seconds + self._interval * self._counts[worker]
