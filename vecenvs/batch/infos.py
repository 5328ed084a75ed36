"""The infos of a whole shard's rows on their way to the caller.

Most envs with infos return the same keys with numbers of the same types at every step. Such infos travel in columns:
the worker reports their keys and types, an `InfoForm`, once. All other infos travel pickled, as `protocol.RowExtras`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, repeat
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vecenvs.batch.batch_columns import INFO_NUMBERS, BatchColumns

TRUNCATED_KEY = "TimeLimit.truncated"

_PYTHON = frozenset({float, int, bool})
_TYPES = _PYTHON | {np.dtype(code).type for code in "?bBhHiIlLqQefd"}  # those which an array keeps, bit for bit


class InfoForm(NamedTuple):
    """The keys of infos of numbers, and the types of their values."""

    keys: tuple[str, ...]
    types: tuple[type, ...]


class InfoWriter:
    """Writes the infos of one worker's envs to columns, if they have the same keys and types as at the step before."""

    def __init__(self, batch: BatchColumns, shard: slice) -> None:
        self._batch = batch
        self._shard = shard
        self._keys: list[Any] = []  # of the last step, one env's after another's; so are the types
        self._types: list[type] = []
        self._new = False  # whether columns have yet to be opened for these
        self._values: struct.Struct | None = None  # None if they get none
        self._cells: NDArray[np.int64] = batch.info_numbers[:0, shard]

    def write(self, infos: Sequence[dict[Any, Any]]) -> InfoForm | bool:
        """Write the infos of all envs.

        Returns:
            False if they have to be pickled. Otherwise the form of the columns that the caller has to open, or True if
            that has been returned before.
        """
        values = list(chain.from_iterable(map(dict.values, infos)))
        keys, types = list(chain.from_iterable(infos)), list(map(type, values))
        if keys != self._keys or types != self._types:
            self._keys, self._types, self._values, self._new = keys, types, None, True
            return False  # the next step's may differ again
        form = self._open(infos) if self._new else None
        if self._values is None:
            return False
        try:
            self._cells.T[:] = np.frombuffer(self._values.pack(*values), np.int64).reshape(len(infos), -1)
        except struct.error:  # an integer beyond 64 bits
            self._new = form is not None
            return False
        return form or True

    def report_again(self) -> None:
        """Let the next infos in these columns come with their form."""
        self._new = True

    def _open(self, infos: Sequence[dict[Any, Any]]) -> InfoForm | None:
        """Open columns and return their form; None if envs differ in keys or types, or a value is no number."""
        self._new = False
        count, form = len(infos), InfoForm(tuple(infos[0]), tuple(map(type, infos[0].values())))
        if self._keys != list(form.keys) * count or self._types != list(form.types) * count:
            return None
        if len(form.keys) > INFO_NUMBERS or not _TYPES.issuperset(form.types) or {*map(type, form.keys)} != {str}:
            return None
        # Each value in 8 bytes, as in the columns.
        values = "".join(f"{dtype.char}{8 - dtype.itemsize}x" for dtype in map(np.dtype, form.types))
        self._values = struct.Struct("@" + values * count)
        self._cells = self._batch.info_numbers[: len(form.keys), self._shard]
        self._batch.info_width = len(form.keys)
        return form


class InfoTable:
    """Makes dicts of what InfoWriters have written to columns of these rows."""

    def __init__(self, batch: BatchColumns, form: InfoForm, rows: slice) -> None:
        self.form = form
        self._blank = blank_info(form.keys)
        self._count = len(batch.rewards[rows])
        self._columns: list[tuple[str, Callable[[Any], list[Any]], NDArray[Any]]] = []
        for key, kind, cells in zip(*form, batch.info_numbers, strict=False):
            dtype = np.dtype(kind)
            read = np.ndarray.tolist if kind in _PYTHON else list  # which has the dtype's own scalars
            self._columns.append((key, read, cells[rows].view(dtype)[:: cells.itemsize // dtype.itemsize]))

    def infos(self) -> list[dict[str, Any]]:
        """Return what was written, with TRUNCATED_KEY False in every info."""
        infos = copies(self._blank, self._count)
        for key, read, column in self._columns:
            if key != TRUNCATED_KEY:
                fill_in(infos, key, read(column))
        return infos


def blank_info(keys: Iterable[str] = ()) -> dict[str, Any]:
    """Return what every info has, and room for these keys."""
    return {**dict.fromkeys(keys), TRUNCATED_KEY: False}


def copies(info: dict[str, Any], n: int) -> list[dict[str, Any]]:
    """Copy an info n times: the fastest way to many small dicts."""
    return list(map(dict.copy, repeat(info, n)))


def fill_in(infos: Iterable[dict[str, Any]], key: str, values: Iterable[Any]) -> None:
    """Set `key` in each info to its value."""
    for info, info[key] in zip(infos, values, strict=True):  # noqa: B007  this writes: one value into each info
        pass


def completed(infos: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add to infos that stay in this process what `InfoTable` adds."""
    for info in infos:
        info[TRUNCATED_KEY] = False
    return infos
