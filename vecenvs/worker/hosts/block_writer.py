"""Write what a batched env returns into the rows of a batch, as blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vecenvs import _native
from vecenvs.batch.batch_columns import FINAL, BatchColumns
from vecenvs.batch.info_batches import Columns, InfoColumn
from vecenvs.batch.layout import Leaf, casting, coerce
from vecenvs.batch.values import as_array, copy_containers
from vecenvs.errors import VecEnvError
from vecenvs.transport.protocol import RowsBody
from vecenvs.worker.final_infos import split_infos

RowIndex = NDArray[np.int64]
Mask = NDArray[np.bool_]


class BlockWriter:
    """The rows first, first + 1, ... of a batch, those of one batched env. Rows count from its first one."""

    def __init__(self, batch: BatchColumns, first: int, count: int) -> None:
        self.slots = slice(first, first + count)
        self.first = first
        self.count = count
        self._shape = (count,)
        self._batch = batch
        self._rewards, self._flags = batch.rewards[self.slots], batch.flags[self.slots]
        self._leaves = [(leaf, array[self.slots], (count, *leaf.shape))
                        for leaf, array in zip(batch.observations.layout.leaves, batch.observations.arrays, strict=True)
        ]  # fmt: skip
        flat = batch.observations.layout.is_flat and not batch.observations.layout.has_objects
        self._dtype: Any = self._leaves[0][0].dtype if flat else None
        self._whole = (count, *self._leaves[0][0].shape) if flat else ()
        self._take_batch, self._write_outcomes = _native.chosen.take_batch, _native.chosen.write_outcomes
        self._actions = batch.actions.shard(first, count).view

    def actions(self) -> Any:
        """Return a copy of the actions, in the structure of the action space."""
        if self._actions is not None:
            return self._actions.copy()
        actions = self._batch.actions
        return actions.layout.unflatten([self._copied(column) for column in actions.arrays])

    def _copied(self, column: NDArray[Any]) -> Any:
        block = column[self.slots]
        return tuple(map(copy_containers, block)) if block.dtype == object else block.copy()

    def parts(self, obs: Any, mask: Mask | None = None) -> list[Any]:
        """Return observations of all envs leaf by leaf. Raise an error if they do not fit the space.

        With a `mask` only its rows count: the others may be anything.
        """
        if type(obs) is np.ndarray and obs.dtype == self._dtype and obs.shape == self._whole:
            return [obs]
        parts = self._batch.observations.layout.observed(obs)
        return [self._part(leaf, part, shape, mask) for (leaf, _, shape), part in zip(self._leaves, parts, strict=True)]

    def _part(self, leaf: Leaf, part: Any, shape: tuple[int, ...], mask: Mask | None) -> Any:
        if leaf.is_object:
            if len(part) != self.count:
                raise ValueError(f"{len(part)} observations{leaf} of {self.count} envs")
            return part
        given = as_array(part)
        narrows = given.dtype.kind == "f" and given.dtype.itemsize > leaf.dtype.itemsize  # what may overflow
        if given.shape == shape and not narrows and np.can_cast(given.dtype, leaf.dtype, casting(leaf.dtype)):
            return given
        if mask is not None and given.shape == shape:
            given = given.copy()
            given[~mask] = 0
        return coerce(given, leaf._replace(shape=shape))

    def write(self, parts: Sequence[Any], mask: Mask | None = None) -> None:
        """Write what `parts` has returned, of all envs or those of `mask`."""
        for (leaf, block, _), part in zip(self._leaves, parts, strict=True):
            if leaf.is_object:
                for row in range(len(block)) if mask is None else np.flatnonzero(mask).tolist():
                    block[row] = copy_containers(part[row])
            elif mask is not None:
                block[mask] = part[mask]
            elif not self._take_batch(block, part):
                block[...] = part

    def write_outcomes(self, rewards: Any, terminated: Any, truncated: Any, began: RowIndex, mark: int) -> RowIndex:
        """Write rewards and flags of all envs; return the rows whose episodes have ended. See `twin.write_outcomes`."""
        ended: RowIndex | None = self._write_outcomes(
            self._rewards, self._flags, rewards, terminated, truncated, began, mark
        )
        if ended is None:
            given = self._checked(rewards, "rewards", "biuf").astype(np.float64)
            flags = (self._bools(terminated, "terminated"), self._bools(truncated, "truncated"))
            ended = self._write_outcomes(self._rewards, self._flags, given, *flags, began, mark)
            assert ended is not None
        return ended

    def _bools(self, values: Any, what: str) -> Mask:
        """Return flags, one for each env, as an array of bools."""
        found = self._checked(values, what, "biu")
        if (wrong := found[(found != 0) & (found != 1)]).size:
            raise ValueError(f"{what} must be True or False, not {wrong[0]}")
        return np.ascontiguousarray(found != 0)

    def _checked(self, values: Any, what: str, kinds: str) -> NDArray[Any]:
        """Return values, one for each env. ValueError if they are of another shape, or of another kind of dtype."""
        found = as_array(values)
        if found.shape != self._shape or found.dtype.kind not in kinds:
            kind = "number" if "f" in kinds else "bool"
            raise ValueError(
                f"{what} have shape {found.shape} and dtype {found.dtype}: {self.count} envs need one {kind} each, "
                f"{self._shape}"
            )
        return found

    def with_objects(self, body: RowsBody | None, rows: list[int] | None = None) -> RowsBody | None:
        """Add the rows of object leaves to the body of an answer: all of them, or those of some slots."""
        objects = self._batch.observations.objects(self.slots if rows is None else rows)
        return body if objects is None else (body or RowsBody([]))._replace(objects=objects)

    def keep_final(self, observations: Any, rows: RowIndex, infos: Columns) -> None:
        """Keep last observations, a list or blocks of the leaves, in their columns; or in the infos without these."""
        finals = self._batch.finals
        if finals is None:
            layout = self._batch.observations.layout
            if isinstance(observations, tuple):
                observations = [layout.unflatten([block[k] for block in observations]) for k in range(len(rows))]
            infos["terminal_observation"] = InfoColumn(rows, [layout.copied(obs) for obs in observations])
            return
        if isinstance(observations, tuple):
            for column, block in zip(finals.arrays, observations, strict=True):
                column[rows + self.first] = block
        else:
            for row, obs in zip(rows.tolist(), observations, strict=True):
                finals.store_row(self.first + row, obs)
        self._flags[rows] |= FINAL

    def keep_final_rows(self, parts: Sequence[Any], rows: RowIndex, infos: Columns) -> None:
        """Keep the last observations of these rows, of what `parts` has returned."""
        self.keep_final(tuple(_rows_of(part, rows) for part in parts), rows, infos)

    def split_final(self, rows: RowIndex, infos: Columns, *, as_gymnasium: bool) -> tuple[Columns, Columns]:
        """Keep the last observations of these rows, which are in the infos; return the others and those of resets."""
        infos, resets, finals = split_infos(infos, rows, self.count, as_gymnasium=as_gymnasium)
        if finals is not None:
            self.keep_final(finals, rows, infos)
        elif as_gymnasium:
            raise VecEnvError(f"the batched env's infos have no 'final_obs' for env {self.first + int(rows[0])}")
        return infos, resets


def _rows_of(part: Any, rows: RowIndex) -> Any:
    return part[rows] if isinstance(part, np.ndarray) else [copy_containers(part[row]) for row in rows.tolist()]
