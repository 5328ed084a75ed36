"""The results of steps where some envs are batched: as `StepResults`, but without work for each env."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vecenvs.batch.batch_columns import DONE, FINAL, FIRST, LAST, TERMINATED, TRUNCATED
from vecenvs.batch.columns import Columns as BatchRows
from vecenvs.batch.info_batches import BatchInfos, Columns, FinalRows, InfoColumn, Rows, joined, overwritten
from vecenvs.batch.infos import TRUNCATED_KEY
from vecenvs.pool.step_results import Extras, StepResults
from vecenvs.transport.protocol import RowExtras
from vecenvs.vec_env import Batch, StepReturn
from vecenvs.worker.block_writer import Block

_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
_DONE, _FIRST = np.uint8(DONE), np.uint8(FIRST)


class BatchedResults(StepResults):
    """Makes the results of steps. Infos are a `BatchInfos`: columns, and dicts as soon as they are looked at."""

    _block: Block | None = None  # of the last step, if that has not gone through the columns
    _seen: NDArray[np.uint8] | None = None  # else the flags of its rows, if there were some

    def flagged(self, flag: int) -> NDArray[np.bool_]:
        if self._block is not None:
            return (self._block.terminated if flag == TERMINATED else self._block.truncated).copy()
        return self._no_dones.copy() if self._seen is None else (self._seen & np.uint8(flag)) != 0

    @property
    def active(self) -> NDArray[np.bool_]:
        block, active = self._block, np.ones(self._batch.n, bool)
        if block is not None and block.last:
            active[block.began] = False
        return active if self._seen is None else (self._seen & (_FIRST | _DONE)) != _FIRST

    @property
    def rewards64(self) -> NDArray[np.float64]:
        block = self._block
        if block is None:
            return super().rewards64
        rewards: NDArray[np.float64] = block.rewards.astype(_FLOAT64)
        if block.last and len(block.began):
            rewards[block.began] = 0.0
        return rewards

    def plain(self, infos: Any, *, copy: bool) -> StepReturn:
        self._block = self._seen = None
        return super().plain(infos, copy=copy)

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
        names = self._infos.names
        odd = any(name in info for info in (given, *(extra.info for extra in extras)) for name in names)
        whole = self._infos.whole and not odd
        if whole:
            given = {**given, **{name: InfoColumn(None, values) for name, values in self._infos.copied().items()}}
        finals = [self._finals(held, ended[(flags[ended] & flag) != 0])
                  for flag, held in ((FINAL, batch.finals), (LAST, batch.observations))
                  if held is not None] if len(ended) else []  # fmt: skip
        infos = BatchInfos(batch.n, partial(_with_flags, given, flags, first, finals))
        for worker in came.infos:
            infos.add(came.shard(worker), came.infos_of(worker))
        self._seen, self._block, self._informed = flags, None, False
        observations = batch.observations.copies() if copy else batch.observations.views()
        rewards = batch.rewards.astype(_FLOAT32)
        if len(first):
            self._episodes.begin_all(first, _reset_infos(extras), resets)
        if extras:
            self._take_extras(extras, infos, ())  # type: ignore[arg-type]  # used like a list
        if self.keep_rows:
            self._episodes.record_rows(slice(None))
        if names and not whole:
            self._infos.fill(range(batch.n), infos)  # type: ignore[arg-type]  # used like a list
        return observations, rewards, dones, infos  # type: ignore[return-value]  # used like a list

    def batch_of(
        self, slots: Sequence[int], extras: Extras, indices: Rows | None = None, *, begin: bool = True
    ) -> Batch:
        """Return the rows of some envs as a batch; see `StepResults.batch_of`."""
        batch = self._batch
        rows = np.array(slots, np.int64) if indices is None else indices
        flags = batch.flags.take(rows)
        ended, first = ((flags & _DONE) != 0).nonzero()[0], ((flags & _FIRST) != 0).nonzero()[0]
        finals = [InfoColumn(at, FinalRows(held.layout, held.at(rows[at])))
                  for flag, held in ((FINAL, batch.finals), (LAST, batch.observations))
                  if held is not None and len(at := ended[(flags[ended] & flag) != 0])]  # fmt: skip
        infos = BatchInfos(len(rows), partial(_with_flags, {}, flags, first, finals))
        if extras:
            brought = [(j, extra.info) for j, slot in enumerate(slots) if (extra := extras.get(slot)) and extra.info]
            infos.add([j for j, _ in brought], [info for _, info in brought])
        if begin and len(first):
            begun = rows[first]
            given = _reset_infos(extras[slot] for slot in begun.tolist() if slot in extras) if extras else {}
            self._episodes.begin_all(begun, given, {})
        if self.keep_rows:
            self._episodes.record_rows(slots)
        if self._infos.names:
            self._infos.fill(slots, infos)  # type: ignore[arg-type]  # used like a list
        return Batch(
            rows,
            batch.observations.batch(rows),
            batch.rewards.take(rows).astype(_FLOAT32),
            (flags & TERMINATED).astype(bool),
            (flags & TRUNCATED).astype(bool),
            infos,  # type: ignore[arg-type]  # used like a list
            active=(flags & (_FIRST | _DONE)) != _FIRST,
        )

    def take_block(self, block: Block, *, copy: bool) -> StepReturn:
        """Return the result of a step of one batched env, whose rows are not in the columns.

        Without `copy` the observations may be the batched env's own arrays.
        """
        layout = self._batch.observations.layout
        ended, began = block.ended, block.began
        exact = block.rewards.dtype in (_FLOAT32, _FLOAT64)  # integers are rounded as those in the columns are
        rewards = (block.rewards if exact else block.rewards.astype(_FLOAT64)).astype(_FLOAT32)
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
            self._episodes.begin_all(began, {}, block.resets or {})
        # What may be asked later of a step shares no memory with the batched env, but for the rewards.
        kept = block._replace(parts=None, terminated=block.terminated.copy(), truncated=block.truncated.copy())
        self._block, self._seen = kept, None
        infos = BatchInfos(self._batch.n, lambda: _with_flags(kept.infos, kept.flags(), began, finals))
        return layout.unflatten(parts), rewards, block.done.copy(), infos  # type: ignore[return-value]

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
        infos, resets = (joined([(first, count, both[k]) for first, count, both in blocks], n) for k in (0, 1))
        return infos, resets


def _reset_infos(extras: Iterable[RowExtras]) -> dict[int, dict[str, Any]]:
    return {extra.slot: extra.reset_info for extra in extras if extra.reset_info}


def _with_flags(infos: Columns, flags: NDArray[np.uint8], first: Any, finals: list[InfoColumn]) -> Columns:
    """Return the columns of infos with what the rows' flags say."""
    found = {**infos, TRUNCATED_KEY: InfoColumn(None, (flags & _DONE) == TRUNCATED)}
    added = [("terminal_observation", column) for column in finals if len(column.values)]
    if len(first):
        added.append(("episode_start", InfoColumn(first, np.ones(len(first), bool))))
    for name, column in added:
        found[name] = column if name not in found else overwritten(found[name], column, len(flags))
    return found
