"""The channel of infos: columns by key, which a worker writes and the caller reads.

Numbers, and small arrays of numbers, have a column for each key and type, beside the rewards. Which of the columns a
row's info has is its *form*; each row has two marks that tell the form: that of its info, and that of the info of a
reset on the same row. A worker numbers its forms, and reports them with the first rows that have a new one. All other
infos travel pickled, row by row, as `protocol.RowExtras`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, repeat
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vecenvs import _native
from vecenvs.batch.batch_columns import INFO_NUMBERS, BatchColumns
from vecenvs.batch.values import PYTHON_TYPES, copy_containers

TRUNCATED_KEY = "TimeLimit.truncated"
STEP, RESET = 0, 1  # whose info a mark is about: that of the row, that of a reset on the row

_BYTES = 8  # that a number has in its column
_LAST_KEY = "terminal_observation"
_MOST_FORMS = 255  # a mark is a byte; 0 is that of rows whose info has no columns
_TYPES = frozenset({float, int, bool} | {np.dtype(code).type for code in "?bBhHiIlLqQefd"})  # kept bit for bit
_KINDS = _TYPES | {np.ndarray}
_OWN_TYPES: dict[Any, type] = {dtype.type: kind for dtype, kind in PYTHON_TYPES.items()}

Kind = Any  # a type of numbers, or the dtype and the shape of arrays
RowIndex = slice | list[int]


class InfoForm(NamedTuple):
    """The keys of infos of numbers, the kinds of their values, and which columns these have: the first of each."""

    which: int  # STEP or RESET
    keys: tuple[str, ...]
    kinds: tuple[Kind, ...]
    places: tuple[int, ...]


class InfoTable:
    """The columns of one form. Both ends use it: a column is an array (n, ...), which shares memory with the batch."""

    def __init__(self, batch: BatchColumns, form: InfoForm) -> None:
        self.form = form
        self._make = _maker_of(form.keys)
        # By key: the column, its kind, and its single values where these are Python's own, which are read faster there.
        self._columns: list[tuple[str, NDArray[Any], Kind, memoryview | None]] = []
        for key, kind, place in zip(form.keys, form.kinds, form.places, strict=True):
            dtype, shape = kind if isinstance(kind, tuple) else (np.dtype(kind), ())
            block = batch.info_numbers[place : place + _size_of(kind)]
            numbers = block.view(dtype)[:, :: _BYTES // dtype.itemsize]  # each in 8 bytes
            column = np.moveaxis(numbers.reshape(*shape, batch.n), -1, 0)
            self._columns.append((key, column, kind, column.data if kind in (float, int, bool) else None))

    def write(self, rows: RowIndex, columns: Iterable[Any]) -> bool:
        """Write values of these rows, key by key: lists, or arrays (rows, ...). False if they are of other kinds."""
        write_column = _native.chosen.write_column
        for (_, column, kind, cells), values in zip(self._columns, columns, strict=True):
            if type(values) is np.ndarray and values.dtype == column.dtype and values.shape[1:] == column.shape[1:]:
                column[rows] = values
            elif cells is not None:
                if not write_column(column, rows, values):
                    return False
            elif kind_of_all(values) == kind:
                column[rows] = values
            else:
                return False
        return True

    def infos(self, rows: RowIndex) -> list[dict[str, Any]]:
        """Return the infos of these rows, with TRUNCATED_KEY False in each."""
        return self._make(
            [column[rows].tolist() if cells else column[rows].copy() for _, column, _, cells in self._columns]
        )

    def info(self, row: int) -> dict[str, Any]:
        """Return the info of one row."""
        return {
            key: cells[row] if cells is not None else column[row].copy() if column.ndim > 1 else column[row]
            for key, column, _, cells in self._columns
        }

    def arrays(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """Return each key, with a copy of its column of all rows."""
        return ((key, column.copy()) for key, column, _, _ in self._columns)

    def array(self, key: str) -> NDArray[Any]:
        """Return a copy of one key's column."""
        return next(column.copy() for name, column, _, _ in self._columns if name == key)


class InfoWriter:
    """Writes the infos of one worker's rows. Attributes' numbers become Python's own where these are the same."""

    def __init__(self, batch: BatchColumns, shard: slice) -> None:
        # Whether some of the rows may have columns: at first those of another worker.
        self.marked = bool(batch.info_marks[STEP, shard].any())
        self._all_marked: int | None = None  # the mark that all rows have, if it is known that they have the same
        self._batch, self._shard = batch, shard
        self._marks = (batch.info_marks[STEP].data, batch.info_marks[RESET].data)
        self._names = frozenset(batch.info_attrs)
        self._tables: list[InfoTable] = []
        self._recent: list[tuple[int, InfoTable | None]] = [(0, None), (0, None)]  # the last form of either, its number
        self._numbers: dict[tuple[Any, ...], int] = {}  # STEP or RESET, keys and kinds -> the form's number
        self._places: dict[tuple[Any, ...], int] = {}  # STEP or RESET, key and kind -> the first of its columns
        self._width, self._reported = 0, True  # how many columns are taken; whether all forms were returned

    def new_forms(self) -> tuple[InfoForm, ...]:
        """Return all forms, in the order of their numbers, if there are some that were not returned before."""
        if self._reported:
            return ()
        self._reported = True
        return tuple(table.form for table in self._tables)

    def report_again(self) -> None:
        """Let the next `new_forms` return them again: the caller may not have got the last report."""
        self._reported = not self._tables

    def take_over(self, forms: Sequence[InfoForm]) -> None:
        """Go on from the forms of another worker, whose place this one takes: rows may have its marks."""
        for form in forms:
            self._add(form)

    def clear(self, rows: RowIndex) -> None:
        """Note that these rows' infos have no columns."""
        if self.marked:
            self._mark(STEP, rows, 0)
            self.marked = rows != self._shard

    def write_columns(self, which: int, rows: RowIndex, keys: tuple[Any, ...], columns: Sequence[Any]) -> bool:
        """Write infos with the same keys, key by key: lists, or arrays (rows, ...). False if they have no columns."""
        number, table = self._recent[which]
        if table is not None and table.form.keys == keys and table.write(rows, columns):
            return self._mark(which, rows, number)
        kinds = [*map(kind_of_all, columns)]
        for k, key in enumerate(keys):
            if key in self._names and kinds[k] in _OWN_TYPES:
                if type(columns[k]) is not np.ndarray:
                    columns = [*columns[:k], [*map(own_value, columns[k])], *columns[k + 1 :]]
                kinds[k] = _OWN_TYPES[kinds[k]]
        return self._write(which, rows, keys, tuple(kinds), columns)

    def write(
        self,
        which: int,
        rows: RowIndex,
        infos: Sequence[dict[Any, Any]],
        names: tuple[str, ...] = (),
        columns: Sequence[Sequence[Any]] = (),
    ) -> list[tuple[int, dict[Any, Any]]]:
        """Write the infos of these rows; return those that have no columns, each with its slot.

        There is an info for each row, or none at all. `columns` has further values of all rows, for the keys `names`.
        """
        if not (infos or names):
            self.clear(rows)
            return []
        if not infos:
            alike = self.write_columns(which, rows, names, columns)
        else:
            keys = tuple(infos[0])
            alike = (
                not (names and _LAST_KEY in keys)
                and [*chain.from_iterable(infos)] == [*keys] * len(infos)
                and self.write_columns(
                    which, rows, keys + names, [*zip(*map(dict.values, infos), strict=True), *columns]
                )
            )
        if alike:
            return []
        if which == STEP:
            self.clear(rows)
        left: list[tuple[int, dict[Any, Any]]] = []
        groups: dict[tuple[Any, ...], list[tuple[int, dict[Any, Any]]]] = {}
        slots = range(rows.start, rows.stop) if isinstance(rows, slice) else rows
        for slot, info, *values in zip(slots, infos or repeat({}), *columns, strict=False):
            whole = {**info, **dict(zip(names, map(own_value, values), strict=True))}
            if names and _LAST_KEY in whole:  # it comes behind the attributes, as where it does not travel in the info
                whole.update({key: whole.pop(key) for key in (TRUNCATED_KEY, _LAST_KEY) if key in whole})
            if _KINDS.issuperset(map(type, whole.values())):
                kinds = tuple(map(_kind_of, whole.values()))
                groups.setdefault((tuple(whole), kinds), []).append((slot, whole))
            else:
                left.append((slot, whole))
        for (keys, kinds), group in groups.items():
            own = [*zip(*(info.values() for _, info in group), strict=True)]
            if not self._write(which, [slot for slot, _ in group], keys, kinds, own):
                left += group
        return [(slot, info) for slot, info in left if info]

    def _write(
        self, which: int, rows: RowIndex, keys: tuple[Any, ...], kinds: tuple[Kind, ...], columns: Sequence[Any]
    ) -> bool:
        number = self._numbers.get((which, keys, kinds)) or self._open(which, keys, kinds)
        if not (number and self._tables[number - 1].write(rows, columns)):
            return False
        self._recent[which] = number, self._tables[number - 1]
        return self._mark(which, rows, number)

    def _mark(self, which: int, rows: RowIndex, number: int) -> bool:
        if which == STEP:
            if number == self._all_marked:
                return True
            self.marked, self._all_marked = True, number if rows == self._shard else None
        marks = self._marks[which]
        if isinstance(rows, slice):
            marks[rows] = bytes((number,)) * (rows.stop - rows.start)
        else:
            for row in rows:
                marks[row] = number
        return True

    def _open(self, which: int, keys: tuple[Any, ...], kinds: tuple[Kind, ...]) -> int:
        """Give infos of these keys and kinds a form; return its number, or 0 if they get none."""
        if not keys or None in kinds or {*map(type, keys)} != {str} or len(self._tables) == _MOST_FORMS:
            return 0
        places, width = dict(self._places), self._width
        for key, kind in zip(keys, kinds, strict=True):
            if (which, key, kind) not in places:
                places[which, key, kind] = width
                width += _size_of(kind)
        if width > INFO_NUMBERS:
            return 0
        own = tuple(places[which, key, kind] for key, kind in zip(keys, kinds, strict=True))
        self._add(InfoForm(which, keys, kinds, own))
        self._reported = False
        return len(self._tables)

    def _add(self, form: InfoForm) -> None:
        which, keys, kinds, own = form
        self._tables.append(InfoTable(self._batch, form))
        self._numbers[which, keys, kinds] = len(self._tables)
        for key, kind, place in zip(keys, kinds, own, strict=True):
            self._places[which, key, kind] = place
            self._width = max(self._width, place + _size_of(kind))
        self._batch.use_info_numbers(self._shard.start, self._width)


def own_value(value: Any) -> Any:
    """Return a copy of an attribute's value: a number as Python's own where that is the same."""
    return value.item() if type(value) in _OWN_TYPES else copy_containers(value)


def _size_of(kind: Kind) -> int:
    return math.prod(kind[1]) if isinstance(kind, tuple) else 1


def _kind_of(value: Any) -> Kind:
    """Return the kind of a value; None if it has no column."""
    kind = type(value)
    if kind is np.ndarray:
        return (value.dtype, value.shape) if value.ndim and _fits(value.dtype, value.size) else None
    return kind if kind in _TYPES else None


def kind_of_all(values: Any) -> Kind:
    """Return the kind of all of these values, or of the rows of an array; None if they differ or have no column."""
    if type(values) is np.ndarray:
        if values.ndim == 1:
            return values.dtype.type if values.dtype.type in _TYPES else None
        return (values.dtype, values.shape[1:]) if _fits(values.dtype, values[:1].size) else None
    kinds = {*map(type, values)}
    if len(kinds) == 1:
        kinds = {_kind_of(values[0])} if np.ndarray not in kinds else {*map(_kind_of, values)}
    return kinds.pop() if len(kinds) == 1 else None


def _fits(dtype: np.dtype[Any], size: int) -> bool:
    return dtype.kind in "biufc" and dtype.itemsize <= _BYTES and 0 < size <= INFO_NUMBERS


def blank_info() -> dict[str, Any]:
    """Return what every info has."""
    return {TRUNCATED_KEY: False}


def copies(info: dict[str, Any], n: int) -> list[dict[str, Any]]:
    """Copy an info n times: the fastest way to many small dicts."""
    return list(map(dict.copy, repeat(info, n)))


def _maker_of(keys: Iterable[str]) -> Callable[[list[Any]], list[dict[str, Any]]]:
    """Make a function which returns the infos of rows, of the values by key and row, with TRUNCATED_KEY False in each.

    Dicts whose keys stand in code take two thirds of the time of copies which are filled key by key.
    """
    given = [f"value_{k}" for k, _ in enumerate(keys)]
    items = {**dict(zip(keys, given, strict=True)), TRUNCATED_KEY: False}
    shown = ", ".join(f"{key!r}: {value}" for key, value in items.items())
    code = f"lambda columns: [{{{shown}}} for ({', '.join(given)},) in zip(*columns)]"
    found: Callable[[list[Any]], list[dict[str, Any]]] = eval(code)  # noqa: S307
    return found


def completed(infos: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add to infos that stay in this process what those from columns have."""
    for info in infos:
        info[TRUNCATED_KEY] = False
    return infos
