"""Write what a batched env returns into the rows of a batch, as blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vecenvs.batch.batch_columns import FINAL, FIRST, LAST, TRUNCATED, BatchColumns
from vecenvs.batch.info_batches import Columns, InfoColumn, as_array, info_of
from vecenvs.batch.layout import Leaf, casting, coerce
from vecenvs.batch.values import copy_containers
from vecenvs.transport.protocol import RowExtras, RowsBody

Rows = NDArray[np.int64]
Mask = NDArray[np.bool_]


_TRUNCATED = np.uint8(TRUNCATED)


class Block(NamedTuple):
    """The rows of a step of one batched env, checked. Its arrays may be the env's own, until that is stepped again.

    `parts` has the observations by leaf, or None if they are in the columns. `ended` has the rows whose episodes have
    ended, `began` those with the first observation of an episode. With `last` the rows of `ended` are themselves the
    last observations, and the rewards of `began` count as 0; otherwise `finals` has the last observations, if the env
    has kept them: a tuple of leaves, or a list.
    """

    parts: Sequence[Any] | None
    rewards: NDArray[Any]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    done: NDArray[np.bool_]
    ended: Rows
    began: Rows
    last: bool
    infos: Columns
    finals: tuple[Any, ...] | list[Any] | None = None
    resets: Columns | None = None

    def flags(self) -> NDArray[np.uint8]:
        """Return the flags of all rows, without those about last observations."""
        flags: NDArray[np.uint8] = self.truncated.view(np.uint8) * _TRUNCATED
        flags |= self.terminated.view(np.uint8)
        if len(self.began):
            flags[self.began] |= FIRST
        return flags


class BlockWriter:
    """The rows first, first + 1, ... of a batch, those of one batched env. Rows count from its first one."""

    def __init__(self, batch: BatchColumns, first: int, count: int) -> None:
        self.slots = slice(first, first + count)
        self.first = first
        self.count = count
        self._shape = (count,)
        self._batch = batch
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

    def parts(self, obs: Any) -> list[Any]:
        """Return observations of all envs leaf by leaf. Raise an error if they do not fit the space."""
        layout = self._batch.observations.layout
        return [self._part(leaf, part) for leaf, part in zip(layout.leaves, layout.observed(obs), strict=True)]

    def _part(self, leaf: Leaf, part: Any) -> Any:
        if leaf.is_object:
            if len(part) != self.count:
                raise ValueError(f"{len(part)} observations{leaf} of {self.count} envs")
            return part
        given = as_array(part)
        shape = (self.count, *leaf.shape)
        if given.shape == shape and (
            given.dtype == leaf.dtype or np.can_cast(given.dtype, leaf.dtype, casting(leaf.dtype))
        ):
            return given
        return coerce(given, leaf._replace(shape=shape))

    def write(self, parts: Sequence[Any], mask: Mask | None = None) -> None:
        """Write what `parts` has returned, of all envs or those of `mask`."""
        columns = self._batch.observations
        for leaf, part, array in zip(columns.layout.leaves, parts, columns.arrays, strict=True):
            block = array[self.slots]
            if leaf.is_object:
                for row in range(len(block)) if mask is None else np.flatnonzero(mask).tolist():
                    block[row] = copy_containers(part[row])
            elif mask is not None:
                block[mask] = part[mask]
            elif part.ndim == 2 and part.strides[0] < part.strides[1]:  # numpy would take rows of few numbers at a time
                for k in range(part.shape[1]):
                    block[:, k] = part[:, k]
            else:
                block[...] = part

    def write_block(self, block: Block) -> RowsBody | None:
        """Write the rows of a step; return what there is besides, for the answer."""
        slots, infos = self.slots, block.infos
        if block.parts is not None:
            self.write(block.parts)
        rewards, flags = self._batch.rewards[slots], self._batch.flags[slots]
        rewards[:] = block.rewards
        if not (len(block.ended) or len(block.began)):
            flags[:] = 0
        else:
            flags[:] = block.flags()
            if block.last:
                rewards[block.began] = 0.0
                flags[block.ended] |= LAST
            elif block.finals is not None:
                self.keep_final(block.finals, block.ended, infos, flags)
        return self.with_objects(RowsBody([], columns=(infos, block.resets or {})) if infos or block.resets else None)

    def bools(self, values: Any, what: str) -> NDArray[np.bool_]:
        """Return flags, one for each env, as an array of bools."""
        found: Mask = self.checked(values, what, "biu")
        return found if found.dtype == np.bool_ else found != 0

    def checked(self, values: Any, what: str, kinds: str) -> NDArray[Any]:
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

    def with_extras(self, some: Sequence[int], body: RowsBody) -> RowsBody:
        """Turn columns of infos into extras, for rows that are answered one by one."""
        infos, resets = body.columns or ({}, {})
        extras = list(body.extras)
        for local in some if infos or resets else ():
            info, reset_info = info_of(infos, local), info_of(resets, local)
            if info or reset_info:
                extras.append(RowExtras(self.first + local, info, reset_info or None))
        return body._replace(extras=extras, columns=None)

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
