"""Columns of infos from one process to another: numbers travel as bytes, of which columns are made when a program asks.

Pickling the arrays and joining those of the workers would take longer than many a step of a batched env.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vecenvs.batch.info_batches import Columns, InfoColumn, concat_blocks

_NUMBERS = "biufc"  # kinds of dtypes; "b" is bool
_ALIGNED = 8  # bytes


class PackedColumns(NamedTuple):
    """Columns of infos.

    Attributes:
        forms: what the columns are, by name and in order. Of numbers the number of rows (None for all), and the array's
            dtype and shape; for infos within infos None and the forms of these. None for one of the `others`.
        data: the rows and values of these, one after the other.
        others: the other columns.
    """

    forms: dict[Any, Any]
    data: bytes
    others: Columns


def pack(columns: Columns) -> PackedColumns | Columns:
    """Return columns as they travel."""
    arrays: list[NDArray[Any]] = []
    forms: dict[Any, Any] = {}
    others: Columns = {}
    for name, column in columns.items():
        before = len(arrays)
        form = _form(column, arrays)
        if form is None:
            del arrays[before:]
            others[name] = column
        forms[name] = form
    if len(others) == len(columns):
        return columns
    return PackedColumns(
        forms, b"".join([array.tobytes().ljust(_room(array.nbytes), b"\0") for array in arrays]), others
    )


def unpack(packed: PackedColumns | Columns) -> Columns:
    """Return what `pack` was given. The arrays can be written to."""
    if not isinstance(packed, PackedColumns):
        return packed
    memory, at = bytearray(packed.data), 0

    def take(dtype: Any, shape: tuple[int, ...]) -> NDArray[Any]:
        nonlocal at
        array: NDArray[Any] = np.ndarray(shape, dtype, memory, at)
        at += _room(array.nbytes)
        return array

    def column(form: Any) -> InfoColumn:
        count, dtype, shape = form
        rows = None if count is None else take(np.int64, (count,))
        return InfoColumn(rows, {k: column(each) for k, each in shape.items()} if dtype is None else take(dtype, shape))

    return {name: packed.others[name] if form is None else column(form) for name, form in packed.forms.items()}


class Blocks:
    """The columns of n rows, joined of blocks (first row, number of rows, columns or packed ones) when called for."""

    def __init__(self, blocks: Sequence[tuple[int, int, PackedColumns | Columns]], n: int) -> None:
        self._blocks = blocks
        self._n = n
        self._columns: Columns | None = None

    def __call__(self) -> Columns:
        if self._columns is None:
            self._columns = concat_blocks(
                [(first, count, unpack(each)) for first, count, each in self._blocks], self._n
            )
            self._blocks = ()
        return self._columns


def _form(column: InfoColumn, arrays: list[NDArray[Any]]) -> Any:
    """Return the form of a column, and append its arrays; None if it has other values than numbers."""
    rows, values = column
    if rows is not None:
        arrays.append(rows)
    count = None if rows is None else len(rows)
    if isinstance(values, dict):
        inner = {name: _form(each, arrays) for name, each in values.items()}
        return None if None in inner.values() else (count, None, inner)
    if type(values) is not np.ndarray or values.dtype.kind not in _NUMBERS:
        return None
    arrays.append(values)
    return count, values.dtype.str, values.shape


def _room(nbytes: int) -> int:
    return -(-nbytes // _ALIGNED) * _ALIGNED
