"""The memory layout of a transition: a row of bytes with all its fields.

Rows are stored, and are sent to the server and to the learner: one array per fragment, and one for several batches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from vecenvs.arguments import parse_int, parse_number
from vecenvs.batch.layout import Leaf, SpaceLayout, cast_rows

Rows = NDArray[np.uint64]
Array = NDArray[Any]

WORD = 8  # bytes: rows are arrays of uint64
OPTIONAL = ("explorer", "episode")  # `pack` writes 0 if they are missing
SCALARS: dict[str, type] = {
    "reward": np.float32,
    "terminated": np.bool_,
    "truncated": np.bool_,
    "explorer": np.int32,
    "episode": np.int64,
    "discount": np.float32,
}
DRAWN = ("weights", "indexes")  # further fields of a prioritised sample


class Column(NamedTuple):
    """One leaf of one field; `label` is its name in errors and checkpoints, such as "obs['image']"."""

    field: str
    label: str
    leaf: Leaf


class Schema:
    """The fields of a transition, and their layout in a packed row; `n_step` > 1 adds the field `discount`.

    Args:
        observation_space: a space whose parts all have a fixed shape.
        action_space: likewise.
        n_step: the number of steps in a transition.
        gamma: the discount per step, from 0 to 1.

    Raises:
        ValueError: a space has a part without a fixed shape, or a number is out of range.
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        n_step: int = 1,
        gamma: float = 0.99,
    ) -> None:
        if not 0.0 <= parse_number("gamma", gamma) <= 1.0:
            raise ValueError(f"gamma must be from 0 to 1, not {gamma!r}")
        self.observation_space = observation_space
        self.action_space = action_space
        self.n_step = parse_int("n_step", n_step, 1)
        self.gamma = float(gamma)
        obs, action = _layout(observation_space, "observation_space"), _layout(action_space, "action_space")
        self.layouts: dict[str, SpaceLayout | None] = {"obs": obs, "action": action, "next_obs": obs}
        scalars = [name for name in SCALARS if name != "discount" or self.n_step > 1]
        self.layouts.update(dict.fromkeys(scalars))
        self.columns = tuple(column for name in self.layouts for column in self._columns_of(name))
        self.dtype = _row_dtype(self.columns)
        self.row_bytes = self.dtype.itemsize
        self.words = self.row_bytes // WORD

    def describe(self) -> dict[str, Any]:
        """Return the layout as JSON types. Equal descriptions mean equal rows."""
        return {
            "n_step": self.n_step,
            "gamma": self.gamma if self.n_step > 1 else None,  # without n steps, rows do not depend on it
            "columns": [[column.label, column.leaf.dtype.str, list(column.leaf.shape)] for column in self.columns],
        }

    def difference(self, other: Mapping[str, Any]) -> str | None:
        """Compare this layout with another one.

        Args:
            other: the other schema's `describe()`.

        Returns:
            The first difference in words, or None if rows are equal.
        """
        mine, theirs = _by_name(self.describe()), _by_name(other)
        for name in (*mine, *theirs):
            found, own = theirs.get(name, "missing"), mine.get(name, "not stored")
            if found != own:
                return f"its {name} is {found}, here it is {own}"
        return None if list(mine) == list(theirs) else "its columns are in another order"

    def empty(self, n: int) -> Rows:
        """Return rows of zeros, so that the padding has defined values.

        Args:
            n: the number of rows.

        Returns:
            Rows, uint64 (n, words).
        """
        return np.zeros((n, self.words), np.uint64)

    def fields(self, rows: Rows) -> dict[str, Array]:
        """Return the columns of packed rows.

        Args:
            rows: rows, uint64 (n, words).

        Returns:
            An array `(n, *leaf.shape)` for each label, such as "obs['image']": views of `rows` if these are contiguous.
        """
        records = np.ascontiguousarray(rows).view(self.dtype)[:, 0]
        return {column.label: records[f"c{k}"] for k, column in enumerate(self.columns)}

    def pack(self, transitions: Mapping[str, Any]) -> Rows:
        """Pack transitions into rows.

        Args:
            transitions: a dict of columns, structured as a batch. `explorer` and `episode` are optional.

        Returns:
            Rows, uint64 (n, words).

        Raises:
            ValueError: a field is missing, unknown, or has another shape or length.
            TypeError: a field's dtype would lose values.
        """
        unknown = sorted(set(transitions) - set(self.layouts))
        if unknown:
            raise ValueError(f"unknown fields {unknown}: a transition has {list(self.layouts)}")
        missing = [name for name in self.layouts if name not in transitions and name not in OPTIONAL]
        if missing:
            hint = f" (with n_step={self.n_step}, an Explorer makes them)" if missing == ["discount"] else ""
            raise ValueError(f"fields {missing} are missing{hint}: a transition has {list(self.layouts)}")
        n = np.shape(transitions["reward"])[0] if np.ndim(transitions["reward"]) else -1
        if n < 0:
            raise ValueError("reward has no rows: give one per transition, shape (n,)")
        rows = self.empty(n)
        targets = self.fields(rows)
        for name, layout in self.layouts.items():
            if name not in transitions:
                continue
            for column, part in zip(self._columns_of(name), _parts(name, layout, transitions[name]), strict=True):
                targets[column.label][...] = _checked(column, part, n)
        return rows

    def unpack(self, rows: Rows) -> dict[str, Any]:
        """Unpack rows.

        Args:
            rows: rows from `pack`, uint64 (n, words).

        Returns:
            A batch: contiguous arrays with n rows, structured as the spaces.
        """
        return self._structure([np.array(column) for column in self.fields(rows).values()])

    def batches(self, rows: Rows, batch_size: int) -> list[dict[str, Any]]:
        """Unpack drawn rows.

        Args:
            rows: rows, uint64 (n, words), or (n, words + 2) with a weight (float64) and an index in the last words.
            batch_size: the number of rows of a batch; n is a multiple of it.

        Returns:
            The batches, structured as the spaces. They own their arrays.
        """
        arrays = [np.array(column) for column in self.fields(rows[:, : self.words]).values()]
        if rows.shape[1] > self.words:
            weights, indexes = (rows[:, k].copy() for k in (self.words, self.words + 1))
            arrays += [weights.view(np.float64).astype(np.float32), indexes.view(np.int64)]
        split = [array.reshape(len(rows) // batch_size, batch_size, *array.shape[1:]) for array in arrays]
        return [self._structure(parts) for parts in zip(*split, strict=True)]

    def _structure(self, arrays: Sequence[Array]) -> dict[str, Any]:
        """Return a batch of these arrays, one for each of `columns` and perhaps of DRAWN."""
        batch: dict[str, Any] = {}
        rest = list(arrays)
        for name, layout in self.layouts.items():
            count = 1 if layout is None else len(layout.leaves)
            taken, rest = rest[:count], rest[count:]
            batch[name] = taken[0] if layout is None else layout.unflatten(taken)
        return {**batch, **dict(zip(DRAWN, rest, strict=False))}

    def check_rows(self, rows: Any) -> Rows:
        """Check packed rows.

        Args:
            rows: the rows.

        Returns:
            The same rows.

        Raises:
            ValueError: they are not an array uint64 (n, words).
        """
        if not isinstance(rows, np.ndarray) or rows.dtype != np.uint64 or rows.shape[1:] != (self.words,):
            what = f"{rows.dtype} {rows.shape}" if isinstance(rows, np.ndarray) else type(rows).__name__
            raise ValueError(f"packed rows are uint64 (n, {self.words}) here, not {what}: make them with Schema.pack")
        return rows

    def _columns_of(self, name: str) -> list[Column]:
        layout = self.layouts[name]
        if layout is None:
            return [Column(name, name, Leaf((), np.dtype(SCALARS[name]), ()))]
        return [Column(name, f"{name}{leaf}", leaf) for leaf in layout.leaves]


def _layout(space: spaces.Space[Any], which: str) -> SpaceLayout:
    layout = SpaceLayout(space)
    for leaf in layout.leaves:
        if leaf.is_object:
            where = f" at {leaf}" if leaf.path else ""
            raise ValueError(
                f"the {which} has no fixed shape{where} ({space}): replay stores rows of one size. Wrap the envs so "
                "that they return arrays"
            )
    return layout


def _row_dtype(columns: Sequence[Column]) -> np.dtype[Any]:
    """Return a row's dtype: columns by descending alignment, so that each is aligned, and whole words."""
    order = sorted(range(len(columns)), key=lambda k: -columns[k].leaf.dtype.alignment)
    offsets, end = [0] * len(columns), 0
    for k in order:
        leaf = columns[k].leaf
        offsets[k] = end = -(-end // leaf.dtype.alignment) * leaf.dtype.alignment
        end += leaf.dtype.itemsize * math.prod(leaf.shape)
    return np.dtype(
        {
            "names": [f"c{k}" for k in range(len(columns))],
            "formats": [(column.leaf.dtype, column.leaf.shape) for column in columns],
            "offsets": offsets,
            "itemsize": -(-end // WORD) * WORD,
        }
    )


def _parts(name: str, layout: SpaceLayout | None, value: Any) -> list[Any]:
    if layout is None:
        return [value]
    try:
        return layout.flatten(value)
    except (TypeError, ValueError) as exc:
        raise ValueError(f"{name} does not fit its space: {exc}") from None


def _checked(column: Column, part: Any, n: int) -> Array:
    leaf, given = column.leaf, np.asarray(part)
    if given.shape != (n, *leaf.shape):
        raise ValueError(f"{column.label} has shape {given.shape}, but {n} transitions take {(n, *leaf.shape)}")
    return cast_rows(f"the rows of {column.label}", given, leaf)


def _by_name(described: Mapping[str, Any]) -> dict[str, str]:
    """Return the parts of a schema's `describe()` as text, first those that change columns."""
    columns = {label: f"{np.dtype(dtype)} {tuple(shape)}" for label, dtype, shape in described["columns"]}
    return {"n_step": f"{described['n_step']}", "gamma": f"{described['gamma']}", **columns}
