"""Which rows of a command travel together, so that neither every row costs a message nor one row waits for another."""

from __future__ import annotations

from collections.abc import Collection

from vecenvs.transport.protocol import Slots

TOGETHER = 2e-4  # seconds; rows that are done within this time of each other travel together
_UNKNOWN = 1e-2  # seconds per env that are assumed before anything was measured


class Portions:
    """Divides the envs of a command into portions, by the time that they took before.

    A portion takes about as long as TOGETHER. Where one took much longer, each of its envs goes alone the next time,
    and keeps going alone as long as it is slow: so the rows of other envs do not wait for a slow env.
    """

    def __init__(self) -> None:
        self._pace = _UNKNOWN  # seconds per env
        self._alone: set[int] = set()

    def next(self, some: Slots) -> int:
        """Return how many of these envs, the first ones, are the next portion."""
        count = min(len(some), int(TOGETHER / self._pace)) or 1
        if self._alone:
            for position, local in enumerate(some[:count]):
                if local in self._alone:
                    return position or 1
        return count

    def measured(self, portion: Collection[int], seconds: float) -> None:
        """Record how long a portion took."""
        if seconds > 2 * TOGETHER:
            self._alone.update(portion)
            return
        self._pace = max(seconds / len(portion), self._pace / 2)
        if self._alone:
            self._alone.difference_update(portion)
