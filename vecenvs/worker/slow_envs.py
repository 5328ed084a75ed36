"""Which rows of a command travel together, so that neither every row costs a message nor one row waits for another."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter as clock
from typing import Any

from vecenvs.transport.protocol import Slots

REPLY_WINDOW = 2e-4  # seconds; rows that are done within this time of each other travel together


class SlowEnvs:
    """Knows which envs are slow. An env that is goes alone as long as it is, so other rows do not wait for it.

    A portion ends with the env at whose end it has taken REPLY_WINDOW. So if it took twice as long, that env is slow.
    """

    def __init__(self) -> None:
        self._slow: set[int] = set()

    def carry_out(self, some: Slots, work: Callable[[Slots, float], tuple[int, Any]]) -> tuple[int, Any]:
        """Call `work` with those of these envs that may go together, and the time at which it is to stop.

        It returns for how many of them it has done its work, and what there is besides columns.
        """
        some = self.before_slow(some)
        start = clock()
        count, body = work(some, start + REPLY_WINDOW)
        self.measured(some[count - 1], clock() - start)
        return count, body

    def before_slow(self, some: Slots) -> Slots:
        """Return those of these envs that come before the first slow one; that one alone if it is the first."""
        if self._slow:
            for position, local in enumerate(some):
                if local in self._slow:
                    return some[: position or 1]
        return some

    def measured(self, last: int, seconds: float) -> None:
        """Record how long a portion took, of which this env was the last one."""
        if seconds > 2 * REPLY_WINDOW:
            self._slow.add(last)
        elif self._slow:
            self._slow.discard(last)
