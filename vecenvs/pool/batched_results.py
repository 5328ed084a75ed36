"""The results of steps where some envs are batched: as `StepResults`, but without work for each env."""

from __future__ import annotations

from typing import Any

import numpy as np

from vecenvs.batch.batch_columns import DONE, FINAL, FIRST, TRUNCATED
from vecenvs.batch.info_batches import BatchInfos, Columns, InfoColumn, info_of, joined
from vecenvs.batch.infos import TRUNCATED_KEY
from vecenvs.pool.step_results import StepResults
from vecenvs.transport.protocol import RowExtras
from vecenvs.vec_env import StepReturn

_FLOAT32 = np.dtype(np.float32)


class BatchedResults(StepResults):
    """Makes the results of steps. Infos are a `BatchInfos`: columns, and dicts as soon as they are looked at."""

    def take(self, prepared: Any, *, copy: bool) -> StepReturn:
        """Return the result of a step of all envs. Raise EnvError if an env has failed."""
        came, batch = self._commands.step_answers, self._batch
        if came.plain and not (came.bodies or came.infos or self._infos.names):
            if self.keep_rows:
                self._episodes.record_rows(slice(None))
            return self.plain(self._infos.blank(), copy=copy)
        flags = batch.flags
        rows = flags.nonzero()[0]
        of_rows = flags[rows]
        first, ended = rows[(of_rows & FIRST) != 0], (of_rows & DONE) != 0
        dones = self._no_dones.copy()
        dones[rows[ended]] = True
        columns, resets = self._columns()
        extras = came.extras()
        if len(rows):
            self._add_flags(columns, rows, of_rows, first)
        infos = BatchInfos(batch.n, columns)
        for worker in came.infos:
            infos.add(came.shard(worker), came.infos_of(worker))
        self._flags, self._rewards64, self._informed = flags.tobytes(), None, False
        self._inactive = rows[~ended].tolist() if len(rows) else []
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

    def _add_flags(self, columns: Columns, rows: Any, flags: Any, first: Any) -> None:
        """Add what these rows' flags say. What is False is added by `BatchInfos`."""
        finals = self._batch.finals
        columns[TRUNCATED_KEY] = InfoColumn(rows, (flags & DONE) == TRUNCATED)
        kept = rows[(flags & FINAL) != 0]
        if len(kept) and finals is not None:
            columns["terminal_observation"] = InfoColumn(kept, FinalRows(finals.layout, finals.at(kept)))
        if len(first):
            columns["episode_start"] = InfoColumn(first, np.ones(len(first), bool))

    def _reset_infos(self, extras: list[RowExtras], resets: Columns, first: Any) -> dict[int, dict[str, Any]]:
        """Return the infos of the resets in this step, where there are some."""
        found = {extra.slot: extra.reset_info for extra in extras if extra.reset_info}
        if resets:
            found.update((slot, info_of(resets, slot)) for slot in first.tolist() if slot not in found)
        return found


class FinalRows:
    """The terminal observations of some rows, each put together when it is looked at."""

    def __init__(self, layout: Any, leaves: list[Any]) -> None:
        self.layout = layout
        self.leaves = leaves

    def __getitem__(self, k: int) -> Any:
        return self.layout.unflatten([leaf[k] for leaf in self.leaves])

    def __len__(self) -> int:
        return len(self.leaves[0])
