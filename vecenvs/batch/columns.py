"""Columns: the values of one space for n envs, one array per leaf of the space and one row per env."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vecenvs import _native
from vecenvs.batch.layout import OBJECT, Array, SpaceLayout, coerce

RowIndex = slice | list[int] | Array  # what indexes columns

_ALL = slice(None)


class SpaceColumns:
    """n rows of one space. `arrays[k]` is leaf k's column, of shape (n, *leaf.shape)."""

    def __init__(self, layout: SpaceLayout, n: int, take: Callable[[tuple[int, ...], np.dtype[Any]], Array]) -> None:
        self.layout = layout
        self.n = n
        self._single = layout.is_flat
        self.arrays = [
            np.full(n, None, dtype=object) if leaf.is_object else take((n, *leaf.shape), leaf.dtype)
            for leaf in layout.leaves
        ]
        native = layout.is_flat and not layout.has_objects and layout.leaves[0].dtype.isnative
        self._numbers = self.arrays[0] if native else None
        self._take_batch = _native.chosen.take_batch
        # What copies all rows as a batch: the array itself, or a function. So `plain_result` takes it.
        plain = self._single and not layout.has_objects
        self.whole_source: Array | Callable[[], Any] = self.arrays[0] if plain else self._copy_leaves
        # What copies some rows: so `rows_result` takes it.
        self.rows_source: Array | Callable[[Array], Any] = self.batch if self._numbers is None else self._numbers
        self.copy_all: Callable[[], Any] = self.arrays[0].copy if plain else self._copy_leaves

    def shard(self, first: int, count: int) -> ColumnSlice:
        """Return access to the rows first, first + 1, ..."""
        return ColumnSlice(self, first, count)

    def store_row(self, row: int, value: Any) -> None:
        """Write one row. Raise ValueError or TypeError, naming the leaf, if the value does not fit the space.

        Integers of another dtype are taken if a cast keeps their values.
        """
        parts = self.layout.observed(value)
        for k, (leaf, part) in enumerate(zip(self.layout.leaves, parts, strict=True)):
            fits = type(part) is np.ndarray and part.dtype == leaf.dtype and part.shape == leaf.shape
            if not fits or leaf.is_object:
                parts[k] = coerce(part, leaf)
        for array, part in zip(self.arrays, parts, strict=True):
            array[row] = part

    def rows_at(self, rows: RowIndex, count: int) -> list[Any]:
        """Read these rows, `count` in number, as separate values that share no memory with the columns."""
        parts = [list(_copied(array[rows])) for array in self.arrays]
        if self._single:
            return parts[0]
        found = zip(*parts, strict=True) if parts else [()] * count  # a space may be empty
        return [self.layout.unflatten(row) for row in found]

    def row(self, row: int) -> Any:
        """Read one row as a value that shares no memory with the columns."""
        return self.layout.unflatten(self.parts(row))

    def parts(self, row: int) -> list[Any]:
        """Read one row leaf by leaf, sharing no memory with the columns."""
        return [_copied(array[row]) for array in self.arrays]

    def batch(self, indices: Array) -> Any:
        """Copy some rows as one batch."""
        return self.layout.unflatten(self.at(indices))

    def at(self, rows: Array) -> list[Array]:
        """Copy some rows, leaf by leaf."""
        found = [array.take(rows, axis=0) for array in self.arrays]  # a third of the time of array[rows]
        return [*map(_copied, found)] if self.layout.has_objects else found

    def views(self) -> Any:
        """Return all rows as one batch, which shares memory with the columns."""
        return self.layout.unflatten([array[:] for array in self.arrays])

    def _copy_leaves(self) -> Any:
        return self.layout.unflatten([*map(_copied, self.arrays)])

    def take(self, batch: Any) -> bool:
        """Write a batch of all rows if it is one array of this very dtype and shape; else return False."""
        return self._numbers is not None and self._take_batch(self._numbers, batch)

    def take_rows(self, batch: Any, indices: Array) -> bool:
        """Write a batch of some rows if it is one contiguous array of this very dtype and shape; else return False."""
        return self._numbers is not None and self._take_batch(self._numbers, batch, indices)

    def assign(self, parts: Sequence[Array], indices: RowIndex = _ALL) -> None:
        """Write all rows, or those at `indices`, from one array per leaf."""
        for k, part in enumerate(parts):
            self.arrays[k][indices] = part

    def objects(self, rows: RowIndex) -> list[Array] | None:
        """Copy these rows of the object leaves, for a message; return None if the space has no such leaf."""
        if not self.layout.has_objects:
            return None
        return [a[rows].copy() for a in self.arrays if a.dtype == OBJECT]

    def take_objects(self, rows: RowIndex, parts: list[Array] | None) -> None:
        """Write rows that `objects` has returned in another process."""
        if parts is not None:
            for array, part in zip((a for a in self.arrays if a.dtype == OBJECT), parts, strict=True):
                array[rows] = part


def _copied(part: Any) -> Any:
    """Copy an array or one of its rows, including the objects in it."""
    return part.copy() if isinstance(part, (np.ndarray, np.generic)) and part.dtype != OBJECT else copy.deepcopy(part)


class ColumnSlice:
    """Adjacent rows, which one worker reads or writes at every step."""

    def __init__(self, columns: SpaceColumns, first: int, count: int) -> None:
        self._columns = columns
        self._rows, self._count = slice(first, first + count), count
        parts = [array[self._rows] for array in columns.arrays]
        self._parts = columns.layout.unflatten(parts)  # one array for each leaf
        self.view: Array | None = parts[0] if columns.layout.is_flat and not columns.layout.has_objects else None

    def targets(self) -> tuple[Any, Any]:
        """Return what `step_envs` writes rows to, as `cells` and `where`: the columns themselves, if it can.

        Otherwise vectors of numbers, and integers, are written by memoryviews, which refuse another dtype or shape.
        """
        view = self.view
        if _native.chosen.writes_to(self._parts):
            return self._parts, _ALL
        if view is not None and view.dtype.itemsize <= 8:
            if view.ndim == 2 and view.dtype.kind in "biuf":
                return [memoryview(row) for row in view], _ALL
            if view.ndim == 1 and view.dtype.kind in "iu":
                return [view.data[k : k + 1] for k in range(self._count)], 0
        return [_Cell(self._columns, row) for row in range(self._rows.start, self._rows.stop)], _ALL

    def given(self) -> Any:
        """Return the rows as `step_envs` takes them: the `view` itself, or copies."""
        return self._columns.rows_at(self._rows, self._count) if self.view is None else self.view


class _Cell:
    """A row of any kind, which `SpaceColumns.store_row` writes."""

    __slots__ = ("_columns", "_row")

    def __init__(self, columns: SpaceColumns, row: int) -> None:
        self._columns = columns
        self._row = row

    def __setitem__(self, _: Any, value: Any) -> None:
        self._columns.store_row(self._row, value)
