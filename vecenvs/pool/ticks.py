"""The rows of the episodes under way, of which `record` makes files.

Rows are copied as they are returned, a tick for each result: one row of each column, whichever slots it is about. So a
step of all envs costs a few copies of whole columns. When the ticks are used up, each slot's part of them is kept by
`Spill`; most episodes have ended before.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vecenvs.batch.batch_columns import BatchColumns
from vecenvs.pool.spill import Kept, Spill
from vecenvs.state.encoding import EncodingError
from vecenvs.state.episode_file import checksums, compares, encoded

TICKS, BYTES = 1024, 8 << 20  # results until the slots' parts are taken out: so many, or of so many bytes

Call = tuple[int, str, Any]  # after how many steps, what was called, and its arguments if these can be repeated


class Episode:
    """An episode under way, whose first row came at tick `first`. `kept` are its ticks up to `upto`."""

    __slots__ = ("before", "calls", "first", "info", "kept", "options", "skipped")

    def __init__(self, first: int, info: Mapping[str, Any], options: Any, before: dict[str, Call]) -> None:
        self.first, self.info, self.options, self.before = first, info, options, before
        self.kept: tuple[list[tuple[int, Kept]], int, int] = [], first, 0  # parts, the next tick, rows in the parts
        self.calls: list[Call] = []
        self.skipped = 0


class Ticks:
    """The last results, and what `spill` keeps of those before. `now` is the number of the next one."""

    def __init__(self, batch: BatchColumns, spill: Spill) -> None:
        self._batch, self.spill = batch, spill
        n, actions, observations = batch.n, batch.actions, batch.observations
        self.compares = compares(observations.layout)
        sources = [*(each for each in actions.arrays if each.dtype != object), batch.rewards, batch.flags]
        self.fixed = len(sources)  # after which come observations, of which checksums are kept
        sources += observations.arrays if self.compares else ()
        self._count = max(1, min(TICKS, BYTES // (sum(each.nbytes for each in sources) + n)))
        self._has = np.zeros((self._count, n), bool)  # whether there is a row
        self._copies = [(np.empty((self._count, *each.shape), each.dtype), each) for each in sources]
        self.objects: list[dict[int, Any]] = [{} for _ in range(self._count)] if actions.layout.has_objects else []
        self._base = self.now = 0  # the ticks of the first row of these, and of the next one

    def add(self, slots: Sequence[int] | None, running: Sequence[Episode | None]) -> int:
        """Copy the rows of these slots, or of all, and return their tick. It counts once `now` is the one after it."""
        if self.now - self._base == self._count:
            self._take_out(running)
        row = self.now - self._base
        if slots is None:
            self._has[row] = True
            for target, source in self._copies:
                target[row] = source
        else:
            self._has[row] = False
            self._has[row, slots] = True
            for target, source in self._copies:
                target[row, slots] = source[slots]
        if self.objects:
            noted = range(self._batch.n) if slots is None else slots
            self.objects[row] = {slot: self.encoded_objects(slot) for slot in noted}
        return self.now

    def length(self, slot: int, episode: Episode) -> int:
        """Return how many steps of an episode are noted."""
        _, upto, rows = episode.kept
        return rows + int(self._has[upto - self._base : self.now - self._base, slot].sum()) - 1

    def encoded_objects(self, slot: int) -> Any:
        """Return the leaves without a fixed shape of a slot's action, or why they cannot be kept."""
        try:
            return [encoded(each[slot]) for each in self._batch.actions.arrays if each.dtype == object]
        except EncodingError as exc:
            return str(exc)

    def _take_out(self, running: Sequence[Episode | None]) -> None:
        """Keep what the ticks hold of the episodes under way, so that they can be used again. Repeatable."""
        now = self.now
        used = now - self._base
        fixed = [np.ascontiguousarray(target[:used].swapaxes(0, 1)) for target, _ in self._copies[: self.fixed]]
        if self.compares:
            parts = [target[:used].reshape(used * self._batch.n, -1) for target, _ in self._copies[self.fixed :]]
            fixed.append(np.ascontiguousarray(checksums(parts, used * self._batch.n).reshape(used, -1).T))
        whole = bool(self._has[:used].all())
        for slot, episode in enumerate(running):
            if episode is None or episode.kept[1] == now:
                continue
            parts_before, upto, rows = episode.kept
            start = upto - self._base
            arrays = [each[slot, start:] for each in fixed]
            if not whole:
                has = self._has[start:used, slot]
                arrays = [each[has] for each in arrays]
            objects = self._objects_of(slot, start, used)
            data = b"".join([*(each.tobytes() for each in arrays), json.dumps(objects).encode() if objects else b""])
            count = len(arrays[0])
            episode.kept = [*parts_before, (count, self.spill.put(data))], now, rows + count
        self._base = now

    def _objects_of(self, slot: int, start: int, stop: int) -> list[Any]:
        return [row[slot] for row in self.objects[start:stop] if slot in row]

    def rows(self, slot: int, episode: Episode, stop: int) -> tuple[list[NDArray[Any]], list[Any]]:
        """Return an episode's rows before the tick `stop`: actions, rewards, flags, checksums; and actions' objects."""
        parts, upto, _ = episode.kept
        start, stop = upto - self._base, stop - self._base
        rows = np.flatnonzero(self._has[start:stop, slot]) + start
        last = [target[rows, slot] for target, _ in self._copies]
        if self.compares:
            last[self.fixed :] = [checksums(last[self.fixed :], len(rows))]
        columns = [[each] for each in last]
        objects = self._objects_of(slot, start, stop)
        for count, kept in reversed(parts):
            data, at = self.spill.get(kept), 0
            for column, like in zip(columns, last, strict=True):
                shape = count, *like.shape[1:]
                size = math.prod(shape) * like.itemsize
                column.insert(0, np.frombuffer(data[at : at + size], like.dtype).reshape(shape))
                at += size
            objects = [*(json.loads(data[at:]) if at < len(data) else ()), *objects]
        return [np.concatenate(column) for column in columns], objects
