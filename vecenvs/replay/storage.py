"""Storage of packed rows by cpprb: a ring of rows, with sum-trees for priorities if needed.

A row is one column for cpprb. So adding a fragment is one assignment, and drawing a sample one gather.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vecenvs.errors import BackendUnavailable
from vecenvs.replay.schema import Rows

Positions = NDArray[np.int64]  # in a ring: 0 to capacity - 1 in the order of adding, then from 0 again


def import_cpprb() -> Any:
    """Import cpprb; BackendUnavailable, with the remedy, if it is not installed."""
    try:
        import cpprb
    except ImportError as exc:
        raise BackendUnavailable(f"replay needs cpprb ({exc}): pip install cpprb ray") from exc
    return cpprb


def columns_at(ring: Any, positions: Positions) -> dict[str, Any]:
    """Return copies of the columns of a cpprb buffer at given positions.

    The public `sample` chooses positions by NumPy's global random state; `_encode_sample` is its part that reads.
    """
    found: dict[str, Any] = ring._encode_sample(positions)  # noqa: SLF001
    return found


class Storage:
    """A ring of rows."""

    def __init__(self, capacity: int, words: int) -> None:
        self.capacity = capacity
        self._ring = self._make_ring({"row": {"shape": words, "dtype": np.uint64}})

    def _make_ring(self, columns: dict[str, Any]) -> Any:
        return import_cpprb().ReplayBuffer(self.capacity, columns)

    def __len__(self) -> int:
        return int(self._ring.get_stored_size())

    def add(self, rows: Rows, priorities: NDArray[np.float32] | None = None) -> None:
        """Store at most `capacity` rows, over the oldest ones; only a PrioritizedStorage takes priorities."""
        if len(rows):
            self._ring.add(row=rows)

    def rows_at(self, positions: Positions) -> Rows:
        """Copy rows by position: (len(positions), words)."""
        rows: Rows = columns_at(self._ring, positions)["row"]
        return rows

    def clear(self) -> None:
        """Remove all rows; positions begin at 0 again."""
        self._ring.clear()


class PrioritizedStorage(Storage):
    """A ring of rows with priorities. cpprb stores them to the power alpha, so they are stored here as well."""

    def __init__(self, capacity: int, words: int, alpha: float) -> None:
        self.alpha = alpha
        super().__init__(capacity, words)
        self._priorities = np.zeros(capacity, np.float32)

    def _make_ring(self, columns: dict[str, Any]) -> Any:
        return import_cpprb().PrioritizedReplayBuffer(self.capacity, columns, alpha=self.alpha)

    @property
    def max_priority(self) -> float:
        """The largest priority so far, which new rows get."""
        return float(self._ring.get_max_priority())

    def add(self, rows: Rows, priorities: NDArray[np.float32] | None = None) -> None:
        if not len(rows):
            return
        given = np.full(len(rows), self.max_priority, np.float32) if priorities is None else priorities
        first = self._ring.add(row=rows, priorities=given)
        self._priorities[(first + np.arange(len(rows))) % self.capacity] = given

    def priorities_at(self, positions: Positions) -> NDArray[np.float32]:
        """Return priorities by position."""
        return self._priorities[positions]

    def draw(self, batch_size: int, beta: float) -> tuple[Rows, Positions, NDArray[np.float32]]:
        """Draw rows by priority; return them, their positions, and their weights (1 for the lowest priority)."""
        drawn = self._ring.sample(batch_size, beta)
        return drawn["row"], drawn["indexes"].astype(np.int64), np.asarray(drawn["weights"], np.float32)

    def update(self, positions: Positions, priorities: NDArray[np.float32]) -> None:
        """Set priorities by position."""
        if len(positions):
            self._ring.update_priorities(positions, priorities)
            self._priorities[positions] = priorities

    def raise_max_priority(self, value: float) -> None:
        """Make `value` the priority of new rows if it exceeds all priorities so far."""
        if len(self) and value > self.max_priority:
            position, own = np.zeros(1, np.int64), self._priorities[:1].copy()
            self.update(position, np.full(1, value, np.float32))
            self.update(position, own)
