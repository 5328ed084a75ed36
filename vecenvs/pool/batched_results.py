"""The results of steps where some envs are batched: as `StepResults`, but without work for each env."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vecenvs import _native
from vecenvs.batch.batch_columns import DONE, FINAL, FIRST, LAST, TERMINATED, TRUNCATED, BatchColumns
from vecenvs.batch.info_batches import Columns, InfoColumn, LazyTerminalObs, RowIndex, replace_rows
from vecenvs.batch.infos import TRUNCATED_KEY
from vecenvs.batch.lazy_infos import LazyInfos
from vecenvs.batch.packed_infos import Blocks
from vecenvs.pool.step_results import Extras, StepResults
from vecenvs.transport.protocol import RowExtras
from vecenvs.vec_env import Batch, StepReturn

_FLOAT32 = np.dtype(np.float32)
_DONE, _FIRST = np.uint8(DONE), np.uint8(FIRST)


class BatchedResults(StepResults):
    """Makes the results of steps. Infos are a `LazyInfos`: columns, and dicts as soon as they are looked at."""

    def __init__(self, batch: BatchColumns, *args: Any, **kwargs: Any) -> None:
        super().__init__(batch, *args, **kwargs)
        self._take_outcomes, self._take_batch = _native.chosen.take_outcomes, _native.chosen.take_batch
        self._seen: NDArray[np.uint8] = np.zeros(batch.n, np.uint8)  # the flags of the last step's rows
        self._flags = self._no_flags = b""  # as bytes they are not needed

    def flagged(self, flag: int) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = _native.chosen.flagged(self._seen, flag)
        return found

    @property
    def active(self) -> NDArray[np.bool_]:
        active: NDArray[np.bool_] = (self._seen & (_FIRST | _DONE)) != _FIRST
        return active

    def prepare(self) -> None:
        """Prepare nothing: infos are columns."""

    def take(self, prepared: Any, *, copy: bool, parts: Sequence[Any] | None = None) -> StepReturn:
        """Return the result of a step of all envs. Raise EnvError if an env has failed.

        `parts` are the observations, leaf by leaf, if they are not in the columns. Without `copy` the result may share
        memory with them.
        """
        came, batch, n = self._commands.step_answers, self._batch, self._batch.n
        layout = batch.observations.layout
        rewards, dones, flags, begun, last, final = self._take_outcomes(batch.rewards, batch.flags)
        leaves = [
            self._copied_leaf(part, leaf.dtype) if copy else part.astype(leaf.dtype, copy=False)[:]
            for part, leaf in zip(batch.observations.arrays if parts is None else parts, layout.leaves, strict=True)
        ]
        finals = []
        if len(final) and batch.finals is not None:
            finals.append(InfoColumn(final, LazyTerminalObs(layout, batch.finals.at(final))))
        if len(last):
            rows = [leaf.take(last, axis=0) if copy else leaf[last] for leaf in leaves]
            finals.append(InfoColumn(last, LazyTerminalObs(layout, rows)))
        given: Callable[[], Columns] = self._brought(0) or dict
        extras = came.extras() if came.bodies else []
        table = self._infos.all_alike() if self._infos.used else None
        if table is not None:
            given = partial(operator.or_, given(), {key: InfoColumn(None, column) for key, column in table.arrays()})
        infos = LazyInfos(n, given, partial(_with_flags, flags, finals))
        if table is None and self._infos.used:
            infos.add(range(n), self._infos.infos(range(n)))
        for worker, body in came.bodies.items():
            if body.infos:
                infos.add(self._commands.shards[worker], body.infos)
        self._seen = flags
        if begun and (came.bodies or not self._episodes.nothing_changes):
            self._episodes.begin_all((flags & _FIRST).nonzero()[0], _reset_infos(extras), self._brought(1))
        self._count(flags, dones, begun)
        if extras:
            self._take_extras(extras, infos, ())
        if self.keep_rows:
            self._episodes.record_rows(slice(None))
        if self._infos.names:
            self._infos.note_step(range(n), infos)
        if self.notes:
            self._note_flagged(range(n), flags, infos)
        return layout.unflatten(leaves), rewards, dones, infos

    def _count(self, flags: NDArray[np.uint8], dones: NDArray[np.bool_], begun: int) -> None:
        """Count the rows of a step of all envs, where `begun` tells whether episodes have begun."""
        ended = dones.nonzero()[0]
        if begun or len(ended):
            self._tally.note((), (flags == _FIRST).nonzero()[0] if begun else (), ended)

    def _note_flagged(self, slots: Sequence[int], flags: NDArray[np.uint8], infos: LazyInfos) -> None:
        flagged = flags.nonzero()[0].tolist()
        self.note(flagged, [slots[j] for j in flagged], flags.tobytes(), infos)

    def _copied_leaf(self, part: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
        found: NDArray[Any] = np.empty(part.shape, dtype)
        if not self._take_batch(found, part):
            found[...] = part
        return found

    def batch_of(
        self, slots: Sequence[int], extras: Extras, indices: RowIndex | None = None, *, begin: bool = True
    ) -> Batch:
        """Return the rows of some envs as a batch; see `StepResults.batch_of`."""
        batch = self._batch
        rows = np.array(slots, np.int64) if indices is None else indices
        flags = batch.flags.take(rows)
        ended, first = ((flags & _DONE) != 0).nonzero()[0], ((flags & _FIRST) != 0).nonzero()[0]
        finals = [InfoColumn(at, LazyTerminalObs(held.layout, held.at(rows[at])))
                  for flag, held in ((FINAL, batch.finals), (LAST, batch.observations))
                  if held is not None and len(at := ended[(flags[ended] & flag) != 0])]  # fmt: skip
        infos = LazyInfos(len(rows), dict, partial(_with_flags, flags, finals))
        if self._infos.used:
            infos.add(range(len(rows)), self._infos.infos(slots))
        if extras:
            brought = [(j, extra.info) for j, slot in enumerate(slots) if (extra := extras.get(slot)) and extra.info]
            infos.add([j for j, _ in brought], [info for _, info in brought])
        if begin and len(first):
            begun = rows[first]
            given = _reset_infos(extras[slot] for slot in begun.tolist() if slot in extras) if extras else {}
            self._episodes.begin_all(begun, given)
        self._tally.note(rows, rows[(flags & (_FIRST | _DONE)) == _FIRST], rows[ended])
        if self.keep_rows:
            self._episodes.record_rows(slots)
        if self._infos.names:
            self._infos.note(slots, infos)
        if self.notes:
            self._note_flagged(slots, flags, infos)
        return Batch(
            rows,
            batch.observations.batch(rows),
            batch.rewards.take(rows).astype(_FLOAT32),
            (flags & TERMINATED).astype(bool),
            (flags & TRUNCATED).astype(bool),
            infos,
            active=(flags & (_FIRST | _DONE)) != _FIRST,
        )

    def _brought(self, which: int) -> Blocks | None:
        """Return the columns of infos that the workers have sent (0), or of those of resets (1); None without any."""
        shards = self._commands.shards
        blocks = [
            (shards[worker].start, len(shards[worker]), columns)
            for worker, body in sorted(self._commands.step_answers.bodies.items())
            if body.columns is not None and (columns := body.columns[which])
        ]
        return Blocks(blocks, self._batch.n) if blocks else None


def _reset_infos(extras: Iterable[RowExtras]) -> dict[int, dict[str, Any]]:
    return {extra.slot: extra.reset_info for extra in extras if extra.reset_info}


def _with_flags(flags: NDArray[np.uint8], finals: list[InfoColumn], infos: Columns) -> Columns:
    """Return the columns of infos with what the rows' flags say."""
    found = {**infos, TRUNCATED_KEY: InfoColumn(None, (flags & _DONE) == TRUNCATED)}
    added = [("terminal_observation", column) for column in finals]
    first = (flags & _FIRST).nonzero()[0]
    if len(first):
        added.append(("episode_start", InfoColumn(first, np.ones(len(first), bool))))
    for name, column in added:
        found[name] = column if name not in found else replace_rows(found[name], column, len(flags))
    return found
