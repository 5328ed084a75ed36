"""Infos as columns, name -> rows and values, and the list of dicts that is made of them when a program looks at it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vecenvs.batch.attribute_columns import PYTHON_TYPES
from vecenvs.batch.infos import TRUNCATED_KEY
from vecenvs.batch.values import copy_containers
from vecenvs.errors import VecEnvError

Rows = NDArray[np.int64]
Columns = dict[str, "InfoColumn"]


class InfoColumn(NamedTuple):
    """One key of the infos: value k is that of row `rows[k]`; the rows ascend. Without `rows` all rows have one.

    `values` is an array, a list, or for infos within infos a dict of columns, whose rows are numbered in the same way.
    """

    rows: Rows | None
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

    def part(self, chosen: NDArray[np.bool_], every: Rows | None = None) -> InfoColumn | None:
        """Return the column of some rows, the indices of which are `every`; None if there is nothing left."""
        if self.rows is None:
            rows = np.flatnonzero(chosen) if every is None else every
        else:
            rows = self.rows[chosen[self.rows]]
        if not len(rows):
            return None
        if isinstance(self.values, dict):
            return InfoColumn(rows, _parts(self.values, chosen, every))
        if self.rows is None:
            return InfoColumn(rows, _items(self.values, rows))
        return InfoColumn(rows, _items(self.values, np.flatnonzero(chosen[self.rows])))


def _items(values: Any, positions: Rows) -> Any:
    return values[positions] if isinstance(values, np.ndarray) else [values[k] for k in positions.tolist()]


def parts(columns: Columns, chosen: NDArray[np.bool_]) -> Columns:
    """Return the columns of some rows."""
    return _parts(columns, chosen, np.flatnonzero(chosen))


def _parts(columns: Columns, chosen: NDArray[np.bool_], every: Rows | None) -> Columns:
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
            found[name] = column if rows is None else column._replace(values=parts(column.values, column.mask(n)))
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


def _rows_of(mask: str, infos: dict[Any, Any], n: int) -> Rows | None:
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


def as_array(value: Any) -> NDArray[Any]:
    """Return the values of a tensor, on any device, as an array, which shares its memory where that is possible."""
    if isinstance(value, (np.ndarray, list)):
        return np.asarray(value)
    if hasattr(value, "detach") and hasattr(
        value, "cpu"
    ):  # torch's: it may require a gradient, or be on another device
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":  # which NumPy does not have; float32 holds all of its values
            value = value.float()
    if hasattr(value, "__dlpack__") and not isinstance(value, np.generic):
        try:
            return np.from_dlpack(value)
        except (BufferError, TypeError, RuntimeError, ValueError):  # bool tensors of some libraries, other devices
            pass
    return np.asarray(value)


def joined(blocks: Sequence[tuple[int, int, Columns]], n: int) -> Columns:
    """Return the columns of n rows, of blocks (first row, number of rows, columns)."""
    if len(blocks) == 1 and blocks[0][:2] == (0, n):
        return blocks[0][2]
    names = dict.fromkeys(name for _, _, columns in blocks for name in columns)
    return {name: _joined([(a, k, each[name]) for a, k, each in blocks if name in each], n) for name in names}


def _joined(blocks: list[tuple[int, int, InfoColumn]], n: int) -> InfoColumn:
    values = [column.values for _, _, column in blocks]
    whole = all(column.rows is None for _, _, column in blocks) and sum(count for _, count, _ in blocks) == n
    rows = None if whole else np.concatenate([_rows_in(*block) for block in blocks])
    if all(isinstance(each, dict) for each in values):
        return InfoColumn(rows, joined([(first, count, column.values) for first, count, column in blocks], n))
    if all(isinstance(each, np.ndarray) for each in values) and len({(v.dtype, v.shape[1:]) for v in values}) == 1:
        return InfoColumn(rows, np.concatenate(values))
    merged = [column.value(row) for first, count, column in blocks
              for row in (_rows_in(first, count, column) - first).tolist()]  # fmt: skip
    return InfoColumn(rows, merged)


def _rows_in(first: int, count: int, column: InfoColumn) -> Rows:
    """Return the rows of a column that begins at row `first`."""
    return (np.arange(count) if column.rows is None else column.rows) + first


def merged(one: InfoColumn, other: InfoColumn) -> InfoColumn:
    """Return one column of two with different rows."""
    first, second = (column.rows for column in (one, other))
    if first is None or second is None:
        return other if first is None else one
    rows = np.concatenate([first, second])
    order = np.argsort(rows, kind="stable")
    if all(isinstance(column.values, np.ndarray) for column in (one, other)) and one.values.dtype == other.values.dtype:
        return InfoColumn(rows[order], np.concatenate([one.values, other.values])[order])
    values = [column.value(row) for column, own in ((one, first), (other, second)) for row in own.tolist()]
    return InfoColumn(rows[order], [values[k] for k in order.tolist()])


def united(some: Columns, others: Columns) -> Columns:
    """Return the columns of some rows and of other rows."""
    both = {name: merged(some[name], column) for name, column in others.items() if name in some}
    return {**some, **others, **both}


def overwritten(column: InfoColumn, other: InfoColumn, n: int) -> InfoColumn:
    """Return the column of n rows with the values of another one, and those of its own rows which that has not."""
    kept: NDArray[np.bool_] = np.ones(n, bool)
    kept[slice(None) if other.rows is None else other.rows] = False
    left = column.part(kept)
    return other if left is None else merged(left, other)


def map_leaves(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply a function to each array in dicts and tuples."""
    if isinstance(value, dict):
        return {key: map_leaves(function, part) for key, part in value.items()}
    return tuple(map_leaves(function, part) for part in value) if isinstance(value, tuple) else function(value)


class FinalRows:
    """The terminal observations of some rows, each put together when it is looked at."""

    def __init__(self, layout: Any, leaves: list[Any]) -> None:
        self.layout = layout
        self.leaves = leaves

    def __getitem__(self, k: int) -> Any:
        return self.layout.unflatten([leaf[k] for leaf in self.leaves])

    def __len__(self) -> int:
        return len(self.leaves[0])


class BatchInfos(Sequence[dict[str, Any]]):
    """The infos of n rows: a list of dicts, each made when it is first looked at.

    A dict belongs to the caller from then on, and what the caller changes in it stays. `columns` has the values by
    name.

    Args:
        n: the number of rows.
        given: returns what the envs have put into their infos.
        complete: makes of `given` what the infos have, beside "TimeLimit.truncated", once that is asked for.
    """

    def __init__(self, n: int, given: Callable[[], Columns], complete: Callable[[Columns], Columns]) -> None:
        self._given = given
        self._columns: Columns | None = None
        self._complete = complete
        self._n = n
        self._made: dict[int, dict[str, Any]] = {}

    @property
    def columns(self) -> Columns:
        """What the infos have by name."""
        if self._columns is None:
            self._columns = self._complete(self.given)
        return self._columns

    @property
    def given(self) -> Columns:
        """What the envs have put into their infos."""
        return self._given()

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return [self[k] for k in range(*row.indices(self._n))]
        row = range(self._n)[row]  # IndexError, and negative ones
        info = self._made.get(row)
        if info is None:
            info = info_of(self.columns, row)
            info.setdefault(TRUNCATED_KEY, False)
            self._made[row] = info
        return info

    def __setitem__(self, row: int, info: dict[str, Any]) -> None:
        self._made[range(self._n)[row]] = info

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(self.__getitem__, range(self._n))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (list, BatchInfos)):
            return NotImplemented
        return len(other) == self._n and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # as a list's

    def __repr__(self) -> str:
        return repr(list(self))

    @property
    def looked_at(self) -> dict[int, dict[str, Any]]:
        """The dicts that were made, by row. `columns` have everything about the other rows."""
        return self._made

    def flagged(self, key: str) -> NDArray[np.bool_]:
        """Return which rows have True under a key, as a loop over the dicts would."""
        found: NDArray[np.bool_] = np.zeros(self._n, bool)
        column = self.columns.get(key)
        if column is not None and not isinstance(column.values, dict):
            trues = [value is True or (isinstance(value, np.bool_) and bool(value)) for value in column.values]
            found[slice(None) if column.rows is None else column.rows] = trues
        for row, info in self._made.items():
            found[row] = info.get(key) is True
        return found

    def add(self, rows: Iterable[int], infos: Iterable[dict[str, Any]]) -> None:
        """Add further keys to some rows; those that a row has already stay."""
        for row, info in zip(rows, infos, strict=True):
            self._made[row] = {**info, **self[row]}


class BegunInfos(Sequence[dict[str, Any]]):
    """The info of each env's last reset: {} before the first, otherwise a dict with "episode_start"."""

    def __init__(self, n: int) -> None:
        self._begun: NDArray[np.bool_] = np.zeros(n, bool)
        self._all_begun = False
        self._made: dict[int, dict[str, Any]] = {}
        self._unmade: dict[int, Callable[[], Columns]] = {}  # by row: the infos of the resets of which its own is one

    def __len__(self) -> int:
        return len(self._begun)

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return [self[k] for k in range(*row.indices(len(self)))]
        row = range(len(self))[row]
        if row not in self._made:
            info = info_of(self._unmade.pop(row, dict)(), row)
            self._made[row] = {**info, "episode_start": True} if self._begun[row] else {}
        return self._made[row]

    def __setitem__(self, row: int, info: dict[str, Any]) -> None:
        self._begun[row] = True
        self._unmade.pop(row, None)
        if len(info) > 1:  # than "episode_start"
            self._made[row] = info
        else:
            self._made.pop(row, None)

    def own(self, row: int) -> dict[str, Any]:
        """Return the info of a reset that had more than "episode_start", else {}: without making a dict."""
        return self[row] if row in self._unmade else self._made.get(row, {})

    @property
    def steady(self) -> bool:
        """Whether each env has begun an episode, and no info has more than "episode_start"."""
        return self._all_begun and not (self._made or self._unmade)

    def begin(self, rows: Rows, infos: Callable[[], Columns] | None) -> None:
        """Note episodes that began, with what their resets' infos have, if there are any."""
        self._begun[rows] = True
        self._all_begun = self._all_begun or bool(self._begun.all())
        if self._made:
            for row in rows.tolist():
                self._made.pop(row, None)
        if infos is not None:
            self._unmade.update(dict.fromkeys(rows.tolist(), infos))
        elif self._unmade:
            for row in rows.tolist():
                self._unmade.pop(row, None)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (list, BegunInfos)):
            return NotImplemented
        return len(other) == len(self) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # as a list's

    def __repr__(self) -> str:
        return repr(list(self))
