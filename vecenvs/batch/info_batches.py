"""Infos as columns: name -> rows and values. `lazy_infos` makes dicts of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vecenvs.batch.values import PYTHON_TYPES, as_array, copy_containers
from vecenvs.errors import VecEnvError

RowIndex = NDArray[np.int64]
Columns = dict[str, "InfoColumn"]


class InfoColumn(NamedTuple):
    """One key of the infos: value k is that of row `rows[k]`; the rows ascend. Without `rows` all rows have one.

    `values` is an array, a list, or for infos within infos a dict of columns, whose rows are numbered in the same way.
    """

    rows: RowIndex | None
    values: Any

    def has(self, row: int) -> bool:
        """Tell whether a row has the key."""
        return self.rows is None or self._position(row) >= 0

    def mask(self, n: int) -> NDArray[np.bool_]:
        """Return which of n rows have the key."""
        found: NDArray[np.bool_] = np.full(n, self.rows is None)
        if self.rows is not None:
            found[self.rows] = True
        return found

    def value(self, row: int) -> Any:
        """Return the value of a row that has the key: numbers as Python's own where these are the same."""
        if isinstance(self.values, dict):
            return info_of(self.values, row)
        item = self.values[row if self.rows is None else self._position(row)]
        if isinstance(self.values, np.ndarray) and isinstance(item, np.generic):
            return item.item() if item.dtype in PYTHON_TYPES else item
        return copy_containers(item)

    def _position(self, row: int) -> int:
        if self.rows is None:
            return row
        at = int(np.searchsorted(self.rows, row))
        return at if at < len(self.rows) and self.rows[at] == row else -1

    def part(self, chosen: NDArray[np.bool_], every: RowIndex | None = None) -> InfoColumn | None:
        """Return the column of some rows, the indices of which are `every`; None if there is nothing left."""
        if self.rows is None:
            rows = np.flatnonzero(chosen) if every is None else every
        else:
            rows = self.rows[chosen[self.rows]]
        if not len(rows):
            return None
        if isinstance(self.values, dict):
            return InfoColumn(rows, _select_rows(self.values, chosen, every))
        if self.rows is None:
            return InfoColumn(rows, _items(self.values, rows))
        return InfoColumn(rows, _items(self.values, np.flatnonzero(chosen[self.rows])))


def _items(values: Any, positions: RowIndex) -> Any:
    return values[positions] if isinstance(values, np.ndarray) else [values[k] for k in positions.tolist()]


def select_rows(columns: Columns, chosen: NDArray[np.bool_]) -> Columns:
    """Return the columns of some rows."""
    return _select_rows(columns, chosen, np.flatnonzero(chosen))


def _select_rows(columns: Columns, chosen: NDArray[np.bool_], every: RowIndex | None) -> Columns:
    found = ((name, column.part(chosen, every)) for name, column in columns.items())
    return {name: column for name, column in found if column is not None}


def info_of(columns: Columns, row: int) -> dict[str, Any]:
    """Return the info of one row."""
    return {name: column.value(row) for name, column in columns.items() if column.has(row)}


def columns_of(infos: dict[str, Any], n: int) -> Columns:
    """Return the columns of infos as Gymnasium's vector envs give them: name -> values, and "_name" -> mask.

    Without a mask, as from EnvPool, each env has the key if the value has one item per env; any other value is left
    out, and so is a dict of nothing else. The columns share no memory with `infos`.
    """
    found: Columns = {}
    masks = {f"_{name}" for name in infos}
    for name, value in infos.items():
        if name in masks:
            continue
        rows = _rows_of(f"_{name}", infos, n)
        if rows is not None and len(rows) in (0, n):
            if not len(rows):
                continue
            rows = None
        if isinstance(value, dict):
            column = InfoColumn(rows, columns_of(value, n))
            if value and not column.values:
                continue
            found[name] = column if rows is None else column._replace(values=select_rows(column.values, column.mask(n)))
            continue
        try:
            values = value if isinstance(value, (list, tuple)) else as_array(value)
        except Exception as exc:  # whatever a foreign library raises
            raise VecEnvError(f"infos[{name!r}] does not become an array ({exc}): convert it, or leave it out") from exc
        if (isinstance(values, np.ndarray) and not values.ndim) or len(values) != n:
            continue
        if isinstance(values, np.ndarray) and values.dtype != object:
            found[name] = InfoColumn(rows, values.copy() if rows is None else values[rows])
        else:
            chosen = range(n) if rows is None else rows.tolist()
            found[name] = InfoColumn(rows, [copy_containers(values[row]) for row in chosen])
    return found


def _rows_of(mask: str, infos: dict[Any, Any], n: int) -> RowIndex | None:
    """Return the rows of a mask, None if there is none. VecEnvError if that has not one bool for each of n rows."""
    if mask not in infos:
        return None
    given = as_array(infos[mask])
    if given.shape != (n,) or given.dtype.kind not in "bui":
        raise VecEnvError(
            f"infos[{mask!r}] has shape {given.shape} and dtype {given.dtype}: as the mask of infos[{mask[1:]!r}] it "
            f"needs one bool for each of {n} envs, ({n},)"
        )
    return np.flatnonzero(given)


def concat_blocks(blocks: Sequence[tuple[int, int, Columns]], n: int) -> Columns:
    """Return the columns of n rows, of blocks (first row, number of rows, columns)."""
    if len(blocks) == 1 and blocks[0][:2] == (0, n):
        return blocks[0][2]
    names = dict.fromkeys(name for _, _, columns in blocks for name in columns)
    return {name: _concat_column([(a, k, each[name]) for a, k, each in blocks if name in each], n) for name in names}


def _concat_column(blocks: list[tuple[int, int, InfoColumn]], n: int) -> InfoColumn:
    values = [column.values for _, _, column in blocks]
    whole = all(column.rows is None for _, _, column in blocks) and sum(count for _, count, _ in blocks) == n
    rows = None if whole else np.concatenate([_rows_in(*block) for block in blocks])
    if all(isinstance(each, dict) for each in values):
        return InfoColumn(rows, concat_blocks([(first, count, column.values) for first, count, column in blocks], n))
    if all(isinstance(each, np.ndarray) for each in values) and len({(v.dtype, v.shape[1:]) for v in values}) == 1:
        return InfoColumn(rows, np.concatenate(values))
    merged = [column.value(row) for first, count, column in blocks
              for row in (_rows_in(first, count, column) - first).tolist()]  # fmt: skip
    return InfoColumn(rows, merged)


def _rows_in(first: int, count: int, column: InfoColumn) -> RowIndex:
    """Return the rows of a column that begins at row `first`."""
    return (np.arange(count) if column.rows is None else column.rows) + first


def _merge_columns(one: InfoColumn, other: InfoColumn) -> InfoColumn:
    """Return one column of two with different rows."""
    first, second = (column.rows for column in (one, other))
    if first is None or second is None:
        return other if first is None else one
    rows = np.concatenate([first, second])
    order = np.argsort(rows, kind="stable")
    forms = {isinstance(v, np.ndarray) and (v.dtype, v.shape[1:]) for v in (one.values, other.values)}
    if len(forms) == 1 and False not in forms:
        return InfoColumn(rows[order], np.concatenate([one.values, other.values])[order])
    values = [column.value(row) for column, own in ((one, first), (other, second)) for row in own.tolist()]
    return InfoColumn(rows[order], [values[k] for k in order.tolist()])


def merge_disjoint(some: Columns, others: Columns) -> Columns:
    """Return the columns of some rows and of other rows."""
    both = {name: _merge_columns(some[name], column) for name, column in others.items() if name in some}
    return {**some, **others, **both}


def replace_rows(column: InfoColumn, other: InfoColumn, n: int) -> InfoColumn:
    """Return the column of n rows with the values of another one, and those of its own rows which that has not."""
    kept: NDArray[np.bool_] = np.ones(n, bool)
    kept[slice(None) if other.rows is None else other.rows] = False
    left = column.part(kept)
    return other if left is None else _merge_columns(left, other)


def map_leaves(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply a function to each array in dicts and tuples."""
    if isinstance(value, dict):
        return {key: map_leaves(function, part) for key, part in value.items()}
    return tuple(map_leaves(function, part) for part in value) if isinstance(value, tuple) else function(value)


class LazyTerminalObs:
    """The terminal observations of some rows, each put together when it is looked at."""

    def __init__(self, layout: Any, leaves: list[Any]) -> None:
        self.layout = layout
        self.leaves = leaves

    def __getitem__(self, k: int) -> Any:
        return self.layout.unflatten([leaf[k] for leaf in self.leaves])

    def __len__(self) -> int:
        return len(self.leaves[0])
