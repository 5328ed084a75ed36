"""Columns: the values of one space for n envs, one array per leaf of the space and one row per env."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vecenvs import _native
from vecenvs.batch.layout import OBJECT, Array, SpaceLayout, casting, coerce

Rows = slice | list[int] | Array  # what indexes columns

_ALL = slice(None)
_LARGE = 4096  # bytes of a row


class Columns:
    """n rows of one space. `arrays[k]` is leaf k's column, of shape (n, *leaf.shape)."""

    def __init__(self, layout: SpaceLayout, n: int, take: Callable[[tuple[int, ...], np.dtype[Any]], Array]) -> None:
        self.layout = layout
        self.n = n
        self._single = layout.is_flat
        self.arrays = [
            np.full(n, None, dtype=object) if leaf.is_object else take((n, *leaf.shape), leaf.dtype)
            for leaf in layout.leaves
        ]
        # `_ends`: rows end to end along their first axis, so that one np.concatenate writes a whole shard.
        self._numbers = self.arrays[0] if layout.is_flat and not layout.has_objects else None
        self._take_batch = _native.chosen.take_batch
        # What copies all rows as a batch: the array itself, or a function. So `plain_result` takes it.
        self.copied: Array | Callable[[], Any] = self.arrays[0] if self._single else self._copies
        # What copies some rows: so `rows_result` takes it.
        self.copied_rows: Array | Callable[[Array], Any] = self.batch if self._numbers is None else self._numbers
        self.copies: Callable[[], Any] = self.arrays[0].copy if self._single else self._copies  # of all rows, a batch
        self._joins = [_Join(leaf.dtype) for leaf in layout.leaves]
        self._ends = [a.reshape(n * a.shape[1], *a.shape[2:]) if a.ndim > 1 else a for a in self.arrays]

    def shard(self, first: int, count: int) -> ColumnSlice:
        """Return access to the rows first, first + 1, ..., with the look-ups of `store` and `rows` done once."""
        return ColumnSlice(self, first, count)

    def store(self, first: int, values: list[Any]) -> None:
        """Write `values` to the rows first, first + 1, ... Raise ValueError or TypeError if one does not fit the space.

        After an error some rows may have been written. `store_row` tells which value is wrong.
        """
        if self._single:
            self._store_leaf(0, first, values)
            return
        for k, parts in enumerate(zip(*map(self.layout.observed, values), strict=True)):
            self._store_leaf(k, first, list(parts))

    def _store_leaf(self, k: int, first: int, values: list[Any]) -> None:
        leaf, ends = self.layout.leaves[k], self._ends[k]
        if leaf.is_object:
            for row, value in enumerate(values, first):
                ends[row] = copy.deepcopy(value)
        elif leaf.shape:
            length = leaf.shape[0]
            check_lengths(values, length)
            self._joins[k](values, ends[first * length : (first + len(values)) * length])
        else:
            given = np.array(values)
            if given.shape != (len(values),):
                raise ValueError(f"values of shape {given.shape[1:]} where the space says a scalar")
            self._joins[k]([given], ends[first : first + len(values)])

    def store_row(self, row: int, value: Any) -> None:
        """Write one row; an error names the leaf. Integers of another dtype are taken if a cast keeps their values."""
        for array, leaf, part in zip(self.arrays, self.layout.leaves, self.layout.observed(value), strict=True):
            fits = type(part) is np.ndarray and part.dtype == leaf.dtype and part.shape == leaf.shape
            array[row] = part if fits and not leaf.is_object else coerce(part, leaf)

    def rows(self, first: int, count: int) -> list[Any]:
        """Read `count` rows as separate values that share no memory with the columns."""
        return self.rows_at(slice(first, first + count), count)

    def rows_at(self, rows: Rows, count: int) -> list[Any]:
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
        return [array.take(rows, axis=0) for array in self.arrays]  # a third of the time of array[rows]

    def views(self) -> Any:
        """Return all rows as one batch, which shares memory with the columns."""
        return self.layout.unflatten([array[:] for array in self.arrays])

    def _copies(self) -> Any:
        return self.layout.unflatten([array.copy() for array in self.arrays])

    def take(self, batch: Any) -> bool:
        """Write a batch of all rows if it is one array of this very dtype and shape; else return False."""
        return self._numbers is not None and self._take_batch(self._numbers, batch)

    def take_rows(self, batch: Any, indices: Array) -> bool:
        """Write a batch of some rows if it is one contiguous array of this very dtype and shape; else return False."""
        return self._numbers is not None and self._take_batch(self._numbers, batch, indices)

    def assign(self, parts: Sequence[Array], indices: Rows = _ALL) -> None:
        """Write all rows, or those at `indices`, from one array per leaf."""
        for k, part in enumerate(parts):
            self.arrays[k][indices] = part

    def objects(self, rows: Rows) -> list[Array] | None:
        """Copy these rows of the object leaves, for a message; return None if the space has no such leaf."""
        if not self.layout.has_objects:
            return None
        return [a[rows].copy() for a in self.arrays if a.dtype == OBJECT]

    def take_objects(self, rows: Rows, parts: list[Array] | None) -> None:
        """Write rows that `objects` has returned in another process."""
        if parts is not None:
            for array, part in zip((a for a in self.arrays if a.dtype == OBJECT), parts, strict=True):
                array[rows] = part


def _copied(part: Any) -> Any:
    """Copy an array or one of its rows, including the objects in it."""
    return part.copy() if isinstance(part, (np.ndarray, np.generic)) and part.dtype != OBJECT else copy.deepcopy(part)


class ColumnSlice:
    """Adjacent rows, which one worker reads or writes at every step."""

    def __init__(self, columns: Columns, first: int, count: int) -> None:
        self._columns = columns
        self._first = first
        self._count = count
        leaf = columns.layout.leaves[0] if columns.layout.is_flat else None
        self._out: Array | None = None
        self._length = 0
        self._join = _Join(leaf.dtype if leaf is not None else OBJECT)
        self.view: Array | None = None  # the rows, if they are one array of numbers
        if leaf is not None and not leaf.is_object:
            self.view = columns.arrays[0][first : first + count]
            if leaf.shape:
                self._length = leaf.shape[0]
                self._out = self.view.reshape(count * leaf.shape[0], *leaf.shape[1:])

    def store(self, values: list[Any]) -> None:
        """Write one value per row. See `Columns.store`."""
        if self._out is not None:
            check_lengths(values, self._length)
            self._join(values, self._out)
        else:
            self._columns.store(self._first, values)

    def cells(self) -> list[Any] | None:
        """Return one object per row, to which the row is written by item assignment; None if `store` is faster.

        For vectors of numbers these are memoryviews, which take only arrays of their own dtype and shape. For large
        rows they take what `Columns.store_row` takes.
        """
        view, layout = self.view, self._columns.layout
        if view is not None and view.ndim == 2 and view.dtype.kind in "biuf" and view.dtype.itemsize <= 8:
            return [memoryview(row) for row in view]
        if layout.row_bytes >= _LARGE and not layout.has_objects:
            return [_LargeCell(self._columns, row) for row in range(self._first, self._first + self._count)]
        return None

    def given(self) -> Any:
        """Return the rows as `step_envs` takes them: the `view` itself, or copies."""
        return self._columns.rows(self._first, self._count) if self.view is None else self.view


class _Join:
    """Writes rows end to end to an array. Raises FloatingPointError for a number that the dtype would make infinite."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._casting = casting(dtype)
        self._narrow = dtype.kind in "fc" and not np.can_cast(np.float64, dtype)
        self._exact = self._narrow  # whether all rows so far had this dtype, so that np.errstate is not needed

    def __call__(self, values: list[Any], out: Array) -> None:
        if self._exact:
            try:
                np.concatenate(values, out=out, casting="equiv")
                return
            except TypeError:
                self._exact = False
        if self._narrow:
            with np.errstate(over="raise"):
                np.concatenate(values, out=out, casting=self._casting)
        else:
            np.concatenate(values, out=out, casting=self._casting)


class _LargeCell:
    """A large row, written to its column as soon as the env has returned it.

    Values that are kept until the whole shard has been stepped take up more memory than the caches hold, and with
    frames of 100 KB more than the allocator keeps.
    """

    __slots__ = ("_columns", "_place", "_row")

    def __init__(self, columns: Columns, row: int) -> None:
        self._columns = columns
        self._row = row
        self._place = columns.arrays[0][row] if columns.layout.is_flat else None

    def __setitem__(self, _: Any, value: Any) -> None:
        place = self._place
        if (
            place is not None
            and type(value) is np.ndarray
            and value.shape == place.shape
            and value.dtype == place.dtype
        ):
            place[...] = value
        else:
            self._columns.store_row(self._row, value)


def check_lengths(values: list[Any], length: int) -> None:
    """Refuse rows of other lengths: np.concatenate would take one too long beside one too short."""
    if list(map(len, values)).count(length) != len(values):
        raise ValueError("a row of another shape")
