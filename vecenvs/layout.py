"""How values of any Gymnasium space lie in a batch: one column per leaf of the space, one row per env.

A *leaf* is a part of the space with one dtype and one fixed shape: Box, Discrete, MultiDiscrete, MultiBinary. Dict
and Tuple are taken apart, at any depth. What has no fixed shape (Text, Sequence, Graph, OneOf, a custom space) is an
object leaf: a numpy object array of n values, which transports pickle.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

_ALL = slice(None)
FIXED = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
OBJECT = np.dtype(object)
_LARGE = 4096  # bytes of a row

Array = NDArray[Any]


class Leaf(NamedTuple):
    """One column: where it is found in a value, and the dtype and shape of one row."""

    path: tuple[str | int, ...]
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def is_object(self) -> bool:
        return self.dtype == OBJECT

    def __str__(self) -> str:
        return "".join(f"[{key!r}]" for key in self.path)


class SpaceLayout:
    """The leaves of one space, and the ways between a value and the list of its leaves' values."""

    def __init__(self, space: spaces.Space[Any]) -> None:
        self.space = space
        self.leaves = tuple(_leaves_of(space, ()))
        self.is_flat = len(self.leaves) == 1 and not self.leaves[0].path
        self.row_bytes = sum(leaf.dtype.itemsize * math.prod(leaf.shape) for leaf in self.leaves)
        self.has_objects = any(leaf.is_object for leaf in self.leaves)
        self._take_apart = _taker_of(space)

    def flatten(self, value: Any) -> list[Any]:
        """Take a value (or a batch) apart into its leaves. A missing or extra key raises ValueError."""
        if self._take_apart is None:
            return [value]
        parts: list[Any] = []
        if not self._take_apart(value, parts):
            parts.clear()
            _flatten(self.space, value, (), parts)  # which says what is wrong, or takes what only looks odd
        return parts

    def unflatten(self, parts: Sequence[Any]) -> Any:
        """Put leaves together again, as plain dict and tuple."""
        return parts[0] if self.is_flat else _unflatten(self.space, iter(parts))

    def set_row(self, batch: Any, row: int, parts: Sequence[Any]) -> None:
        """Write one row of a batch, given leaf by leaf."""
        for array, part in zip(self.flatten(batch), parts, strict=True):
            array[row] = part

    def own(self, value: Any) -> Any:
        """Copy a value that an env may go on changing, as arrays of the space's dtypes."""
        return self.unflatten([coerce(part, leaf) for part, leaf in zip(self.flatten(value), self.leaves, strict=True)])


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
        # Rows laid end to end along their first axis: what np.concatenate writes a whole shard into in one call.
        self._batch_shape = self.arrays[0].shape if layout.is_flat and not layout.has_objects else None
        self.copies: Callable[[], Any] = self.arrays[0].copy if self._single else self._copies  # of all rows, a batch
        self._ends = [a.reshape(n * a.shape[1], *a.shape[2:]) if a.ndim > 1 else a for a in self.arrays]

    def shard(self, first: int, count: int) -> Shard:
        """The same rows first, first + 1, ... as `store` and `rows` see them, with the look-ups done once."""
        return Shard(self, first, count)

    def store(self, first: int, values: list[Any]) -> None:
        """Write `values` into the rows first, first + 1, ... ValueError or TypeError if one does not fit its space.

        On an error some rows may have been written: `store_row` each of them to find out which one is wrong.
        """
        if self._single:
            self._store_leaf(0, first, values)
            return
        for k, parts in enumerate(zip(*map(self.layout.flatten, values), strict=True)):
            self._store_leaf(k, first, list(parts))

    def _store_leaf(self, k: int, first: int, values: list[Any]) -> None:
        leaf, ends = self.layout.leaves[k], self._ends[k]
        if leaf.is_object:
            for row, value in enumerate(values, first):
                ends[row] = copy.deepcopy(value)
        elif leaf.shape:
            length = leaf.shape[0]
            check_lengths(values, length)
            np.concatenate(values, out=ends[first * length : (first + len(values)) * length], casting="same_kind")
        else:
            given = np.array(values)
            if given.shape != (len(values),):
                raise ValueError(f"values of shape {given.shape[1:]} where the space says a scalar")
            np.copyto(ends[first : first + len(values)], given, casting="same_kind")

    def store_row(self, row: int, value: Any) -> None:
        """Write one row; the error names the leaf. Integers held by another dtype are taken where no value changes."""
        for array, leaf, part in zip(self.arrays, self.layout.leaves, self.layout.flatten(value), strict=True):
            fits = type(part) is np.ndarray and part.dtype == leaf.dtype and part.shape == leaf.shape
            array[row] = part if fits and not leaf.is_object else coerce(part, leaf)

    def rows(self, first: int, count: int) -> list[Any]:
        """Read `count` rows as separate values that share no memory with the columns."""
        if self._single:
            return list(self.arrays[0][first : first + count].copy())
        parts = [list(array[first : first + count].copy()) for array in self.arrays]
        return [self.layout.unflatten(row) for row in zip(*parts, strict=True)]

    def row(self, row: int) -> Any:
        """Read one row as a value that shares no memory with the columns."""
        if self._single:
            return self.arrays[0][row].copy()
        return self.layout.unflatten([array[row].copy() for array in self.arrays])

    def batch(self, indices: Array) -> Any:
        """Read some rows as one batch, the reader's own."""
        return self.layout.unflatten([array[indices] for array in self.arrays])

    def views(self) -> Any:
        """Read all rows as one batch that shares their memory."""
        return self.layout.unflatten([array[:] for array in self.arrays])

    def _copies(self) -> Any:
        return self.layout.unflatten([array.copy() for array in self.arrays])

    def take(self, batch: Any) -> bool:
        """Write a batch that is one array of just the right dtype and shape; else leave all as it is and give False."""
        if type(batch) is not np.ndarray or batch.shape != self._batch_shape:
            return False
        array = self.arrays[0]
        if batch.dtype != array.dtype:
            return False
        array[...] = batch
        return True

    def assign(self, parts: Sequence[Array], indices: Array | slice = _ALL) -> None:
        """Write a batch, given leaf by leaf."""
        for k, part in enumerate(parts):
            self.arrays[k][indices] = part

    def objects(self, first: int, count: int) -> list[Array] | None:
        """The rows of the object leaves, for a message; None if the space has none."""
        if not self.layout.has_objects:
            return None
        return [a[first : first + count].copy() for a in self.arrays if a.dtype == OBJECT]

    def take_objects(self, first: int, count: int, parts: list[Array] | None) -> None:
        """Write what `objects` read elsewhere."""
        if parts is not None:
            for array, part in zip((a for a in self.arrays if a.dtype == OBJECT), parts, strict=True):
                array[first : first + count] = part


class Shard:
    """A run of rows that one worker reads or writes at every step."""

    def __init__(self, columns: Columns, first: int, count: int) -> None:
        self._columns = columns
        self._first = first
        self._count = count
        leaf = columns.layout.leaves[0] if columns.layout.is_flat else None
        self._out: Array | None = None
        self._length = 0
        self._view: Array | None = None
        if leaf is not None and not leaf.is_object:
            self._view = columns.arrays[0][first : first + count]
            if leaf.shape:
                self._length = leaf.shape[0]
                self._out = self._view.reshape(count * leaf.shape[0], *leaf.shape[1:])

    def store(self, values: list[Any]) -> None:
        """As `Columns.store`."""
        if self._out is not None:
            check_lengths(values, self._length)
            np.concatenate(values, out=self._out, casting="same_kind")
        else:
            self._columns.store(self._first, values)

    def cells(self) -> list[Any] | None:
        """Give what each row is to be written to at once, by item assignment; None if it is better to store them all.

        Vectors of numbers: memory that takes numbers of its own dtype and shape only. Large rows, as `store_row`.
        """
        view, layout = self._view, self._columns.layout
        if view is not None and view.ndim == 2 and view.dtype.kind in "biuf" and view.dtype.itemsize <= 8:
            return [memoryview(row) for row in view]
        if layout.row_bytes >= _LARGE and not layout.has_objects:
            return [_LargeCell(self._columns, row) for row in range(self._first, self._first + self._count)]
        return None

    def reader(self) -> Callable[[], list[Any]]:
        """Give what reads all rows, as `Columns.rows` does, at the least cost."""
        view = self._view
        if view is None:
            return partial(self._columns.rows, self._first, self._count)
        return partial(list, view) if view.ndim == 1 else lambda: list(view.copy())


class _LargeCell:
    """A row that is written as soon as the env gives it.

    Were the values of a whole shard kept until its end, they would take up new memory in turn: more than the caches
    hold, and with frames of 100 KB more than the allocator keeps.
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
    """Refuse what np.concatenate, which only sees the sum, would take: a row too long beside one too short."""
    if list(map(len, values)).count(length) != len(values):
        raise ValueError("a row of another shape")


def coerce(value: Any, leaf: Leaf) -> Any:
    """Copy one leaf's value as the leaf's dtype. ValueError for another shape, TypeError if the cast changes it."""
    if leaf.is_object:
        return copy.deepcopy(value)
    given = np.asarray(value)
    if given.shape != leaf.shape:
        raise ValueError(f"value{leaf} has shape {given.shape}, its space says {leaf.shape}")
    cast = given.astype(leaf.dtype) if given.dtype.kind in "biuf" else None
    same_kind = np.can_cast(given.dtype, leaf.dtype, "same_kind")
    if cast is None or not (same_kind or np.array_equal(cast, given)):
        raise TypeError(f"value{leaf} has dtype {given.dtype}, its space says {leaf.dtype}")
    return cast if leaf.shape else cast[()]


def parse_actions(layout: SpaceLayout, actions: Any, n: int) -> list[Array]:
    """Check a batch of n actions and give it leaf by leaf, each (n, *leaf.shape) of its space's dtype.

    A list has one action per env; an array, dict or tuple is the batched structure, as in Gymnasium.
    TypeError for a dtype that the space's does not hold, ValueError for a wrong number or shape.
    """
    if isinstance(actions, list) and len(actions) != n:
        raise ValueError(f"{len(actions)} actions for {n} envs: give one action per env")
    if layout.is_flat and not layout.has_objects:
        return [_parse_leaf(layout.leaves[0], actions, n)]
    if layout.is_flat:
        return [_object_row(actions, n)]
    if isinstance(actions, list):
        flat = [_flatten_action(layout, action, f"action {i}") for i, action in enumerate(actions)]
        columns: list[Any] = [list(column) for column in zip(*flat, strict=True)]
    else:
        columns = _flatten_action(layout, actions, "the batch of actions")
    return [
        _object_row(column, n) if leaf.is_object else _parse_leaf(leaf, column, n)
        for leaf, column in zip(layout.leaves, columns, strict=True)
    ]


def _parse_leaf(leaf: Leaf, column: Any, n: int) -> Array:
    try:
        given = np.asarray(column)
    except ValueError:
        raise ValueError(f"actions{leaf} have rows of different shapes: every env takes {leaf.shape}") from None
    if given.shape[:1] != (n,) or given.shape[1:] != leaf.shape:
        raise ValueError(
            f"actions{leaf} have shape {given.shape}, but {n} envs take {(n, *leaf.shape)}: "
            "one row per env, each of the action space's shape"
        )
    if given.size and given.dtype != leaf.dtype and not np.can_cast(given.dtype, leaf.dtype, "same_kind"):
        cast = given.astype(leaf.dtype) if given.dtype.kind in "biu" else None
        if cast is None or not np.array_equal(cast, given):
            raise TypeError(
                f"actions{leaf} have dtype {given.dtype}, but the action space takes {leaf.dtype}: convert them first"
            )
        return cast
    return given


def _flatten_action(layout: SpaceLayout, action: Any, what: str) -> list[Any]:
    try:
        return layout.flatten(action)
    except (TypeError, ValueError) as exc:
        raise type(exc)(f"{what} does not fit the action space: {exc}") from None


def _object_row(values: Any, n: int) -> Array:
    if isinstance(values, str) or not hasattr(values, "__len__"):
        raise TypeError(f"actions must be a sequence of {n} values, one per env, not {type(values).__name__}")
    if len(values) != n:
        raise ValueError(f"{len(values)} actions for {n} envs: give one action per env")
    row = np.empty(n, dtype=object)
    for i, value in enumerate(values):
        row[i] = value
    return row


def _leaves_of(space: spaces.Space[Any], path: tuple[str | int, ...]) -> list[Leaf]:
    if isinstance(space, spaces.Dict):
        return [leaf for key, sub in space.spaces.items() for leaf in _leaves_of(sub, (*path, key))]
    if isinstance(space, spaces.Tuple):
        return [leaf for key, sub in enumerate(space.spaces) for leaf in _leaves_of(sub, (*path, key))]
    if isinstance(space, FIXED) and space.shape is not None and space.dtype is not None:
        dtype = np.dtype(space.dtype)
        return [Leaf(path, dtype, tuple(space.shape))]
    return [Leaf(path, OBJECT, ())]


def _taker_of(space: spaces.Space[Any]) -> Callable[[Any, list[Any]], bool] | None:
    """Make the short way to take a value of this space apart: plain dicts, tuples and lists. None for a leaf.

    It appends the leaves' values and gives True, or gives False if the value is anything else.
    """
    if isinstance(space, spaces.Dict):
        kinds: frozenset[type] = frozenset({dict})
        items: list[Any] = [(key, _taker_of(sub)) for key, sub in space.spaces.items()]
    elif isinstance(space, spaces.Tuple):
        kinds = frozenset({tuple, list})
        items = [(position, _taker_of(sub)) for position, sub in enumerate(space.spaces)]
    else:
        return None
    count = len(items)

    def take(value: Any, parts: list[Any]) -> bool:
        if type(value) not in kinds or len(value) != count:
            return False
        for key, inner in items:
            try:
                part = value[key]
            except KeyError:
                return False
            if inner is None:
                parts.append(part)
            elif not inner(part, parts):
                return False
        return True

    return take


def _flatten(space: spaces.Space[Any], value: Any, path: tuple[str | int, ...], parts: list[Any]) -> None:
    where = "".join(f"[{key!r}]" for key in path)
    if isinstance(space, spaces.Dict):
        if not hasattr(value, "keys") or set(value.keys()) != set(space.spaces):
            has = sorted(map(str, value.keys())) if hasattr(value, "keys") else type(value).__name__
            raise ValueError(f"value{where} has keys {has}, its Dict space has {sorted(map(str, space.spaces))}")
        for key, sub in space.spaces.items():
            _flatten(sub, value[key], (*path, key), parts)
    elif isinstance(space, spaces.Tuple):
        if not isinstance(value, (tuple, list)) or len(value) != len(space.spaces):
            raise ValueError(f"value{where} must be a tuple of {len(space.spaces)}, as its space says")
        for position, sub in enumerate(space.spaces):
            _flatten(sub, value[position], (*path, position), parts)
    else:
        parts.append(value)


def _unflatten(space: spaces.Space[Any], parts: Any) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _unflatten(sub, parts) for key, sub in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_unflatten(sub, parts) for sub in space.spaces)
    return next(parts)
