"""cpprb underneath: rows of bytes in its ring, and its sum-trees where priorities count.

Rows are one column to cpprb, so adding a fragment is one assignment and a sample one gather.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vecenvs.errors import BackendUnavailable
from vecenvs.replay.schema import Rows

Slots = NDArray[np.int64]


def import_cpprb() -> Any:
    """Import cpprb; BackendUnavailable, with the remedy, if it is not installed."""
    try:
        import cpprb
    except ImportError as exc:
        raise BackendUnavailable(f"replay needs cpprb ({exc}): pip install cpprb ray") from exc
    return cpprb


@lru_cache(maxsize=1)
def storage_classes() -> tuple[type, type]:
    """Cpprb's two buffers, (uniform, prioritised), with `rows_at`: rows by slot instead of by cpprb's own draw.

    cpprb draws uniform slots from numpy's global random state, which others use as well; drawing them with a generator
    of one's own takes its `_encode_sample`, the part of `sample` that reads.
    """
    cpprb = import_cpprb()

    class Uniform(cpprb.ReplayBuffer):  # type: ignore[name-defined,misc]
        def rows_at(self, slots: Slots) -> Any:
            return self._encode_sample(slots)

    class Prioritized(cpprb.PrioritizedReplayBuffer):  # type: ignore[name-defined,misc]
        def rows_at(self, slots: Slots) -> Any:
            return self._encode_sample(slots)

    return Uniform, Prioritized


class UniformStorage:
    """A ring of rows. Slot numbers are cpprb's: 0 to capacity - 1, in the order of adding, then from 0 again."""

    def __init__(self, capacity: int, words: int) -> None:
        self.capacity = capacity
        self._ring = storage_classes()[0](capacity, {"row": {"shape": words, "dtype": np.uint64}})

    def __len__(self) -> int:
        return int(self._ring.get_stored_size())

    def add(self, rows: Rows) -> None:
        """Store at most `capacity` rows, over the oldest ones."""
        self._ring.add(row=rows)

    def rows_at(self, slots: Slots) -> Rows:
        """Copy rows by slot: (len(slots), words)."""
        found: Rows = self._ring.rows_at(slots)["row"]
        return found

    def clear(self) -> None:
        self._ring.clear()


class PrioritizedStorage:
    """A ring of rows with a priority each. cpprb keeps them to the power alpha only, so they are noted here too."""

    def __init__(self, capacity: int, words: int, alpha: float) -> None:
        self.capacity = capacity
        self.alpha = alpha
        self._ring = storage_classes()[1](capacity, {"row": {"shape": words, "dtype": np.uint64}}, alpha=alpha)
        self._priorities = np.zeros(capacity, np.float32)

    def __len__(self) -> int:
        return int(self._ring.get_stored_size())

    @property
    def max_priority(self) -> float:
        """The largest priority there has been: what a new row gets."""
        return float(self._ring.get_max_priority())

    def add(self, rows: Rows, priorities: NDArray[np.float32] | None = None) -> None:
        """Store at most `capacity` rows, over the oldest ones."""
        if not len(rows):
            return
        given = np.full(len(rows), self.max_priority, np.float32) if priorities is None else priorities
        first = self._ring.add(row=rows, priorities=given)
        self._priorities[(first + np.arange(len(rows))) % self.capacity] = given

    def rows_at(self, slots: Slots) -> Rows:
        """Copy rows by slot: (len(slots), words)."""
        found: Rows = self._ring.rows_at(slots)["row"]
        return found

    def priorities_at(self, slots: Slots) -> NDArray[np.float32]:
        """Read priorities by slot."""
        return self._priorities[slots]

    def draw(self, batch_size: int, beta: float) -> tuple[Rows, Slots, NDArray[np.float32]]:
        """Draw rows by priority: rows, their slots, and their weights (1 for the lowest priority stored)."""
        drawn = self._ring.sample(batch_size, beta)
        return drawn["row"], drawn["indexes"].astype(np.int64), np.asarray(drawn["weights"], np.float32)

    def update(self, slots: Slots, priorities: NDArray[np.float32]) -> None:
        """Set priorities by slot."""
        if len(slots):
            self._ring.update_priorities(slots, priorities)
            self._priorities[slots] = priorities

    def restore_max(self, value: float) -> None:
        """Let new rows get `value` from now on, if that is more than any priority stored."""
        if len(self) and value > self.max_priority:
            slot, own = np.zeros(1, np.int64), self._priorities[:1].copy()
            self.update(slot, np.full(1, value, np.float32))
            self.update(slot, own)

    def clear(self) -> None:
        self._ring.clear()
