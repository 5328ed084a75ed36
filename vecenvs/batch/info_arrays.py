"""`info_columns`: the infos of a step as one array for each key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vecenvs.batch.info_batches import Columns, InfoColumn, LazyTerminalObs, RowIndex, replace_rows, select_rows
from vecenvs.batch.infos import TRUNCATED_KEY
from vecenvs.batch.lazy_infos import LazyInfos

_NUMBERS = (bool, int, float, np.bool_, np.number)


class InfoArray(NamedTuple):
    """One key of the infos of n rows.

    Attributes:
        values: (n, ...), an array of numbers if the rows have numbers of one type, or arrays of one dtype and shape; 0
            where a row lacks the key. A dict of InfoArrays if they have dicts. Else an object array, with None.
        mask: whether each row has the key, bool (n,).
    """

    values: Any
    mask: NDArray[np.bool_]


def info_columns(infos: Sequence[dict[str, Any]]) -> dict[str, InfoArray]:
    """Return infos by key instead of by env: for batched envs without a dict, or any other work, for each env.

    What a wrapper or you have put into the dicts is there, too.

    Args:
        infos: those that `step`, `step_wait` or `recv` has returned.

    Returns:
        The values of each key, and which rows have it. They may share memory with `infos`.
    """
    n = len(infos)
    if not isinstance(infos, LazyInfos):
        return _arrays(columns_of_dicts(infos), n)
    columns, made = infos.columns, infos.materialized
    if TRUNCATED_KEY not in columns:
        columns = {**columns, TRUNCATED_KEY: InfoColumn(None, np.zeros(n, bool))}
    if made:
        rows = np.array(sorted(made))
        left: NDArray[np.bool_] = np.ones(n, bool)
        left[rows] = False
        columns = select_rows(columns, left)
        for name, column in columns_of_dicts([made[row] for row in rows.tolist()], rows).items():
            columns[name] = column if name not in columns else replace_rows(columns[name], column, n)
    return _arrays(columns, n)


def columns_of_dicts(infos: Sequence[dict[str, Any]], rows: RowIndex | None = None) -> Columns:
    """Return the columns of some infos, which are those of `rows`, or of all rows."""
    found: dict[str, tuple[list[int], list[Any]]] = {}
    for row, info in zip(range(len(infos)) if rows is None else rows.tolist(), infos, strict=True):
        for name, value in info.items():
            at, values = found.setdefault(name, ([], []))
            at.append(row)
            values.append(value)
    return {
        name: InfoColumn(None if rows is None and len(at) == len(infos) else np.array(at), values)
        for name, (at, values) in found.items()
    }


def _arrays(columns: Columns, n: int) -> dict[str, InfoArray]:
    return {name: info_array(column, n) for name, column in columns.items()}


def info_array(column: InfoColumn, n: int) -> InfoArray:
    """Return the column of n rows as an array of all of them."""
    rows, values = column
    mask = column.mask(n)
    if isinstance(values, dict):
        return InfoArray(_arrays(values, n), mask)
    if isinstance(values, LazyTerminalObs) and values.layout.is_flat:
        values = values.leaves[0]
    given = values if isinstance(values, np.ndarray) else _as_one(values)
    if given is None and values and all(type(value) is dict for value in values):
        return InfoArray(_arrays(columns_of_dicts(values, np.arange(n) if rows is None else rows), n), mask)
    if given is None:
        given = np.empty(len(values), object)
        for k, value in enumerate(values):
            given[k] = value
    if rows is None:
        return InfoArray(given, mask)
    filled = np.full(n, None) if given.dtype == object else np.zeros((n, *given.shape[1:]), given.dtype)
    filled[rows] = given
    return InfoArray(filled, mask)


def _as_one(values: Sequence[Any]) -> NDArray[Any] | None:
    """Return values as one array of numbers; None if they are no numbers, or differ in type, dtype or shape."""
    first = values[0] if len(values) else None
    if isinstance(first, np.ndarray):
        alike = all(
            type(value) is np.ndarray and value.dtype == first.dtype and value.shape == first.shape for value in values
        )
        return np.stack(list(values)) if alike and first.dtype != object else None
    if not isinstance(first, _NUMBERS) or {*map(type, values)} != {type(first)}:
        return None
    try:
        found = np.array(values)
    except OverflowError:
        return None
    return found if found.dtype.kind in ("iu" if type(first) is int else "biufc") else None  # floats would round ints
