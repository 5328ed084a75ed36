"""Sets of envs that callers name again and again: checked, and divided among the workers, once."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vecenvs.arguments import parse_indices
from vecenvs.transport.protocol import Slots, slots_of
from vecenvs.vec_env import Indices

_INT64, _BOOL = np.dtype(np.int64), np.dtype(np.bool_)
_BIT = (1).__lshift__
_MANY = 256  # slots
_KEPT = 4  # envs in the sets that are remembered, for each env there is


class WorkerSlots(NamedTuple):
    """What one worker has of some slots. In `bits` each slot is the bit of its number."""

    worker: int
    slots: Slots
    bits: int


class SlotSet(NamedTuple):
    """Some slots, in the caller's order: also as an array, as bits, and as what each worker has of them."""

    slots: Slots
    array: NDArray[np.int64]
    bits: int
    parts: Sequence[WorkerSlots]


class Subsets:
    """Makes subsets of index arrays, masks and lists. Arrays of the same values give the same subset again."""

    def __init__(self, owner: Sequence[int], shards: Sequence[range]) -> None:
        self._owner = owner
        self._shards = shards
        self._known: dict[tuple[str, bytes], SlotSet] = {}
        self._kept = 0

    def of(self, indices: Indices) -> SlotSet:
        """Return the envs that `indices` name. IndexError, TypeError or ValueError if they name none that exist."""
        if type(indices) is not np.ndarray or indices.ndim != 1 or indices.dtype not in (_INT64, _BOOL):
            return self._new(indices)
        key = indices.dtype.kind, indices.tobytes()
        found = self._known.get(key)
        if found is None:
            found = self._new(indices)
            if self._kept > _KEPT * len(self._owner):
                self._known, self._kept = {}, 0
            self._known[key] = found
            self._kept += len(found.slots) + 1
        return found

    def _new(self, indices: Indices) -> SlotSet:
        if indices is None:
            n = len(self._owner)
            parts = [WorkerSlots(worker, shard, bits_of(shard)) for worker, shard in enumerate(self._shards)]
            return SlotSet(range(n), np.arange(n, dtype=_INT64), bits_of(range(n)), parts)
        slots = parse_indices(indices, len(self._owner))
        parts = divided(slots, self._owner, self._shards)
        return SlotSet(slots, np.array(slots, _INT64), sum(part.bits for part in parts), parts)


def bits_of(slots: Iterable[int]) -> int:
    """Return slots as the bits of an int."""
    if type(slots) is range:
        return ((1 << len(slots)) - 1) << slots.start
    slots = list(slots)
    if len(slots) > _MANY:  # each sum of large ints is a copy
        places = np.zeros(max(slots) + 1, bool)
        places[slots] = True
        return int.from_bytes(np.packbits(places, bitorder="little").tobytes(), "little")
    return sum(map(_BIT, slots))


def slots_in(bits: int) -> list[int]:
    """Return the slots that are bits of an int, ascending."""
    return [slot for slot, digit in enumerate(reversed(f"{bits:b}")) if digit == "1"]


def divided(slots: Iterable[int], owner: Sequence[int], shards: Sequence[range]) -> list[WorkerSlots]:
    """Return each worker that owns some of these slots, and those.

    They ascend: so what comes back in another order, as the first rows that are ready do, is a range again, which costs
    either end least; and the envs of a batched one are adjacent.
    """
    left, at, parts = sorted(slots), 0, []
    while at < len(left):
        worker = owner[left[at]]
        end = bisect.bisect_left(left, shards[worker].stop, at)
        group = slots_of(left[at:end])
        parts.append(WorkerSlots(worker, group, bits_of(group)))
        at = end
    return parts
