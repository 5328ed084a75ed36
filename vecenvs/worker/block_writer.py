"""Write what a batched env returns into the rows of a batch, as blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vecenvs.batch.batch_columns import FINAL, BatchColumns
from vecenvs.batch.info_batches import Columns, InfoColumn, as_array, info_of
from vecenvs.batch.layout import casting, coerce
from vecenvs.batch.values import copy_containers
from vecenvs.errors import VecEnvError
from vecenvs.transport.protocol import RowExtras, RowsBody

Rows = NDArray[np.int64]
Mask = NDArray[np.bool_]


class BlockWriter:
    """The rows first, first + 1, ... of a batch, those of one batched env. Rows count from its first one."""

    def __init__(self, batch: BatchColumns, first: int, count: int) -> None:
        self.slots = slice(first, first + count)
        self.first = first
        self.count = count
        self._batch = batch

    def actions(self) -> Any:
        """Return a copy of the actions, in the structure of the action space."""
        actions = self._batch.actions
        return actions.layout.unflatten([self._copied(column) for column in actions.arrays])

    def _copied(self, column: NDArray[Any]) -> Any:
        block = column[self.slots]
        return tuple(map(copy_containers, block)) if block.dtype == object else block.copy()

    def write(self, obs: Any, mask: Mask | None = None) -> None:
        """Write observations of all envs, or those of `mask`. Raise an error if they do not fit the space."""
        columns = self._batch.observations
        for leaf, part, array in zip(columns.layout.leaves, columns.layout.observed(obs), columns.arrays, strict=True):
            block = array[self.slots]
            if leaf.is_object:
                if len(part) != len(block):
                    raise ValueError(f"{len(part)} observations{leaf} of {len(block)} envs")
                for row in range(len(block)) if mask is None else np.flatnonzero(mask).tolist():
                    block[row] = copy_containers(part[row])
                continue
            given = as_array(part)
            if given.shape != block.shape or not np.can_cast(given.dtype, leaf.dtype, casting(leaf.dtype)):
                given = coerce(given, leaf._replace(shape=block.shape))
            if mask is None:
                block[...] = given
            else:
                block[mask] = given[mask]

    def checked(self, values: NDArray[Any], what: str, kinds: str) -> NDArray[Any]:
        """Return values, one for each env. ValueError if they are of another shape, or of another kind of dtype."""
        if values.shape != (self.count,) or values.dtype.kind not in kinds:
            raise ValueError(f"{what} have shape {values.shape} and dtype {values.dtype}, for {self.count} envs")
        return values

    def with_objects(self, body: RowsBody | None, rows: list[int] | None = None) -> RowsBody | None:
        """Add the rows of object leaves to the body of an answer: all of them, or those of some slots."""
        objects = self._batch.observations.objects(self.slots if rows is None else rows)
        return body if objects is None else (body or RowsBody([]))._replace(objects=objects)

    def with_extras(self, some: Sequence[int], body: RowsBody) -> RowsBody:
        """Turn columns of infos into extras, for rows that are answered one by one."""
        infos, resets = body.columns or ({}, {})
        extras = list(body.extras)
        for local in some:
            info, reset_info = info_of(infos, local), info_of(resets, local)
            if info or reset_info:
                extras.append(RowExtras(self.first + local, info, reset_info or None))
        return body._replace(extras=extras, columns=None)

    def put(self, columns: dict[str, NDArray[Any]], attributes: Columns, mask: Mask | None = None) -> Columns:
        """Write attributes to their columns; return those that have none."""
        left: Columns = {}
        for name, column in attributes.items():
            if name not in columns:
                left[name] = column
                continue
            block = columns[name][self.slots]
            values = np.asarray(column.values)
            if values.shape != block.shape or values.dtype.kind != block.dtype.kind:
                was, now = (f"{array.dtype} {array.shape}" for array in (block, values))
                raise VecEnvError(f"info_attrs {name!r} was {was}, and is {now} now: a column keeps its type")
            if mask is None:
                block[...] = values
            else:
                block[mask] = values[mask]
        return left

    def keep_final(self, observations: Any, rows: Rows, infos: Columns, flags: NDArray[np.uint8]) -> None:
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
        flags[rows] |= FINAL
