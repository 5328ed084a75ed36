"""Columns of the info channel's attributes: which values have columns, and how they are written to them.

A column is for numbers, or arrays of numbers, of one dtype and shape. Whatever an env's attribute is, a value that
its column does not hold exactly is not written: it travels pickled.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vecenvs.batch.batch_columns import INFO_BYTES, Specs

_PLAIN = frozenset({bool, int, float, complex, np.ndarray})
PYTHON_TYPES: dict[np.dtype[Any], type] = {np.dtype(float): float, np.dtype(np.int64): int, np.dtype(bool): bool}


def specs_of(names: Iterable[str], infos: Sequence[dict[str, Any]]) -> Specs:
    """Return the dtypes and shapes of those attributes that are alike in the reset infos of all envs."""
    specs: Specs = {}
    for name in names:
        kinds = set()
        for info in infos:
            value = info.get(name)
            array = np.asarray(value) if _fits_columns(type(value)) else None
            numeric = array is not None and array.dtype.kind in "biufc"
            kinds.add((array.dtype, array.shape) if array is not None and numeric else None)
        found = kinds.pop() if len(kinds) == 1 else None
        if found is not None and found[0].itemsize * math.prod(found[1]) <= INFO_BYTES:
            specs[name] = found
    return specs


def stack(values: list[Any]) -> NDArray[Any]:
    """Return one array of all envs' values: numbers stacked, anything else as an object array (n,)."""
    if all(_fits_columns(type(value)) for value in values):
        arrays = [np.asarray(value) for value in values]
        if len({(array.dtype.kind, array.shape) for array in arrays}) == 1:
            return np.array(values)
    column = np.empty(len(values), dtype=object)
    for i, value in enumerate(values):
        column[i] = value
    return column


def _fits_columns(kind: type) -> bool:
    """Tell whether an array keeps all of such a value: not so of an IntEnum or a masked array, say."""
    return kind in _PLAIN or issubclass(kind, np.generic)


class AttributeColumn:
    """One attribute's column, and the rows `shard` of one worker in it.

    Values of the Python type that the column was made for take a shorter way than others.
    """

    def __init__(self, array: NDArray[Any], shard: slice) -> None:
        self._array = array
        self._shard = array[shard]
        self._kind = PYTHON_TYPES.get(array.dtype) if array.ndim == 1 else None
        self._kinds = {self._kind}
        self._cells: Any = array.data  # an item of a memoryview costs less than one of an array

    def put(self, slot: int, value: Any) -> bool:
        """Write one value. Return False if the column cannot hold it."""
        if type(value) is not self._kind:
            return self.put_all([slot], [value])
        try:
            self._cells[slot] = value
        except ValueError:  # an int of more than 64 bits
            return False
        return True

    def put_whole(self, values: list[Any]) -> bool:
        """Write one value for each env of the shard. Return False if one is not of the column's own Python type."""
        if {*map(type, values)} != self._kinds:
            return False
        try:
            self._shard[:] = values
        except OverflowError:  # an int of more than 64 bits
            return False
        return True

    def put_all(self, slots: Sequence[int] | NDArray[np.int64], values: list[Any] | NDArray[Any]) -> bool:
        """Write values to these rows. Return False if the column does not take all in one block.

        Values that are taken in one block are also taken one by one, so that an env's value does not depend on the
        others in its shard. An array has the values of a batched env.
        """
        kind = type(values) if isinstance(values, np.ndarray) else type(values[0])
        if isinstance(values, list) and (
            {*map(type, values)} != {kind} or (kind is np.ndarray and len({value.dtype for value in values}) > 1)
        ):
            return False  # numpy would find a common type for them
        if not _fits_columns(kind):
            return False
        block: Any = values
        if kind is not self._kind:
            try:
                given = np.asarray(values)
                with np.errstate(all="ignore"):
                    block = given.astype(self._array.dtype)
            except Exception:  # arrays of different shapes, or values that numpy cannot convert
                return False
            if given.dtype.kind != block.dtype.kind or block.shape[1:] != self._array.shape[1:]:
                return False
            if given.dtype != block.dtype and not np.array_equal(block, given, equal_nan=True):  # another value
                return False
        try:
            self._array[slice(slots.start, slots.stop) if isinstance(slots, range) else slots] = block
        except OverflowError:  # an int of more than 64 bits
            return False
        return True
