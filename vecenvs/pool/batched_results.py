"""The results of steps where some envs are batched: as `StepResults`, but without work for each env."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vecenvs.batch.batch_columns import DONE, FINAL, FIRST, LAST, TRUNCATED
from vecenvs.batch.columns import Columns as BatchRows
from vecenvs.batch.info_batches import BatchInfos, Columns, FinalRows, InfoColumn, info_of, joined, overwritten
from vecenvs.batch.infos import TRUNCATED_KEY
from vecenvs.pool.step_results import StepResults
from vecenvs.transport.protocol import RowExtras
from vecenvs.vec_env import StepReturn
from vecenvs.worker.block_writer import Block

_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
_DONE, _FIRST = np.uint8(DONE), np.uint8(FIRST)
_ACTIVE = bytes(flag & (FIRST | DONE) != FIRST for flag in range(256))  # a reset took the place of the step otherwise


class BatchedResults(StepResults):
    """Makes the results of steps. Infos are a `BatchInfos`: columns, and dicts as soon as they are looked at."""

    @property
    def active(self) -> NDArray[np.bool_]:
        return np.frombuffer(bytearray(self._flags.translate(_ACTIVE)), bool)

    def take(self, prepared: Any, *, copy: bool) -> StepReturn:
        """Return the result of a step of all envs. Raise EnvError if an env has failed."""
        came, batch = self._commands.step_answers, self._batch
        if came.plain and not (came.bodies or came.infos or self._infos.names):
            if self.keep_rows:
                self._episodes.record_rows(slice(None))
            return self.plain(self._infos.blank(), copy=copy)
        flags = batch.flags.copy()
        dones = (flags & _DONE) != 0
        ended, first = dones.nonzero()[0], ((flags & _FIRST) != 0).nonzero()[0]
        given, resets = self._columns()
        extras = came.extras()
        finals = [self._finals(held, ended[(flags[ended] & flag) != 0])
                  for flag, held in ((FINAL, batch.finals), (LAST, batch.observations))
                  if held is not None] if len(ended) else []  # fmt: skip
        infos = BatchInfos(batch.n, partial(_with_flags, given, flags, first, finals))
        for worker in came.infos:
            infos.add(came.shard(worker), came.infos_of(worker))
        self._flags, self._rewards64, self._informed = flags.tobytes(), None, False
        observations = batch.observations.copies() if copy else batch.observations.views()
        rewards = batch.rewards.astype(_FLOAT32)
        if len(first):
            self._episodes.begin_all(first, self._reset_infos(extras, resets, first))
        if extras:
            self._take_extras(extras, infos, ())  # type: ignore[arg-type]  # used like a list
        if self.keep_rows:
            self._episodes.record_rows(slice(None))
        if self._infos.names and not self._infos.whole:
            self._infos.fill(range(batch.n), infos)  # type: ignore[arg-type]  # used like a list
        return observations, rewards, dones, infos  # type: ignore[return-value]  # used like a list

    def take_block(self, block: Block, *, copy: bool) -> StepReturn:
        """Return the result of a step of one batched env, whose rows are not in the columns.

        Without `copy` the observations may be the batched env's own arrays.
        """
        layout = self._batch.observations.layout
        ended, began = block.ended, block.began
        flags, rewards = block.flags(), block.rewards.astype(_FLOAT64)
        if block.last and len(began):
            rewards[began] = 0.0
        assert block.parts is not None
        parts = [part.astype(leaf.dtype, copy=copy) for part, leaf in zip(block.parts, layout.leaves, strict=True)]
        finals = []
        if len(ended) and block.last:
            finals.append(InfoColumn(ended, FinalRows(layout, [part[ended] for part in parts])))
        elif block.finals:
            finals.append(InfoColumn(ended, [layout.copied(each) for each in block.finals]))
        if len(began):
            self._episodes.begin_all(began, self._reset_infos([], block.resets or {}, began))
        self._flags, self._rewards64 = flags.tobytes(), rewards
        infos = BatchInfos(self._batch.n, partial(_with_flags, block.infos, flags, began, finals))
        return layout.unflatten(parts), rewards.astype(_FLOAT32), block.done, infos  # type: ignore[return-value]

    def _finals(self, held: BatchRows, rows: NDArray[np.int64]) -> InfoColumn:
        return InfoColumn(rows, FinalRows(held.layout, held.at(rows)))

    def _columns(self) -> tuple[Columns, Columns]:
        """Return the columns of infos that the workers have sent, and those of resets."""
        came, n = self._commands.step_answers, self._batch.n
        blocks = [
            (came.shard(worker).start, len(came.shard(worker)), body.columns)
            for worker, body in sorted(came.bodies.items())
            if body.columns is not None
        ]
        if not blocks:
            return self._attributes(), {}
        infos, resets = (joined([(first, count, both[k]) for first, count, both in blocks], n) for k in (0, 1))
        return {**infos, **self._attributes()}, resets

    def _attributes(self) -> Columns:
        """Return the columns of `info_attrs`, if all have some."""
        if not self._infos.whole:
            return {}
        return {name: InfoColumn(None, values) for name, values in self._infos.copied().items()}

    def _reset_infos(self, extras: list[RowExtras], resets: Columns, first: Any) -> dict[int, dict[str, Any]]:
        """Return the infos of the resets in this step, where there are some."""
        found = {extra.slot: extra.reset_info for extra in extras if extra.reset_info}
        if resets:
            found.update((slot, info_of(resets, slot)) for slot in first.tolist() if slot not in found)
        return found


def _with_flags(infos: Columns, flags: NDArray[np.uint8], first: Any, finals: list[InfoColumn]) -> Columns:
    """Return the columns of infos with what the rows' flags say."""
    found = {**infos, TRUNCATED_KEY: InfoColumn(None, (flags & _DONE) == TRUNCATED)}
    added = [("terminal_observation", column) for column in finals if len(column.values)]
    if len(first):
        added.append(("episode_start", InfoColumn(first, np.ones(len(first), bool))))
    for name, column in added:
        found[name] = column if name not in found else overwritten(found[name], column, len(flags))
    return found
