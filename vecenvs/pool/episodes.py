"""What the caller knows of each slot's episode: how it began, which seeds and options wait for the next one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from vecenvs.batch.batch_columns import Allocator, BatchColumns
from vecenvs.batch.columns import Columns
from vecenvs.pool.info_columns import InfoColumns
from vecenvs.transport.protocol import Command


class Episodes:
    """Those of all slots. `reset_infos` has what each one's last reset gave, {} if there was none yet."""

    def __init__(self, shards: Sequence[range], batch: BatchColumns, infos: InfoColumns) -> None:
        self.reset_infos: list[dict[str, Any]] = [{} for _ in range(batch.n)]
        self._shards = shards
        self._batch = batch
        self._infos = infos
        self._seeds: dict[int, int] = {}  # the last seed given to each slot: what a restart's seeds derive from
        self._last_rows: Columns | None = None
        self._begun_before: set[int] = set()  # slots with a first row that is older than what they hold
        self._held: tuple[dict[int, Any], dict[int, Any]] = ({}, {})  # seeds and options for a slot's next reset

    def begin(self, slot: int, reset_info: dict[str, Any] | None = None) -> None:
        """Note an episode whose first row has come."""
        info = dict(reset_info) if reset_info else {}
        if self._infos.names:
            first = self._infos.first(slot)
            info = info | {name: value for name, value in first.items() if name not in info} if info else first
        if slot in self._begun_before:
            self._begun_before.discard(slot)
        else:
            for held in self._held:
                held.pop(slot, None)
        info["episode_start"] = True
        self.reset_infos[slot] = info

    def note_seeds(self, seeds: dict[int, int | None]) -> None:
        """Remember the seeds that resets get."""
        self._seeds.update((slot, seed) for slot, seed in seeds.items() if seed is not None)

    def hold(self, seeds: dict[int, Any], options: dict[int, Any], ready: Collection[int]) -> None:
        """Remember what waits for the next resets, which workers have been told, in case one is replaced before.

        The first rows of `ready` slots have come, and are still to be handed out: those episodes had begun before.
        """
        self._begun_before.update(ready)
        for held, given in zip(self._held, (seeds, options), strict=True):
            held.update((slot, value) for slot, value in given.items() if value is not None)

    def keep_rows(self) -> None:
        """Keep, from now on, a copy of every slot's last row that has been handed out.

        The columns may hold what a worker has written since, when it died.
        """
        observations = self._batch.observations
        self._last_rows = Columns(observations.layout, self._batch.n, Allocator().take)

    def note_rows(self, slots: Sequence[int] | slice) -> None:
        """Note that the rows in the columns of these slots are being handed out."""
        if self._last_rows is not None:
            for last, column in zip(self._last_rows.arrays, self._batch.observations.arrays, strict=True):
                last[slots] = column[slots]

    def briefing(self, worker: int, ready: Collection[int], restarts: int) -> list[tuple[Command, Any]]:
        """Return the first commands of a worker that replaces another, as the `restarts`-th to do so.

        Its envs that were in an episode go through `EnvShard.resume`, with the rows handed out last and new seeds.
        Those of `ready` have a row that has not been handed out.
        """
        shard = self._shards[worker]
        columns = self._batch.observations
        last = self._last_rows or columns
        begun = {
            slot: ((columns if slot in ready else last).rows(slot, 1)[0], self._next_seed(slot, restarts))
            for slot in shard
            if self.reset_infos[slot] or slot in ready
        }
        briefing: list[tuple[Command, Any]] = [(Command.RESUME, begun)]
        held = tuple({slot: given[slot] for slot in shard if slot in given} for given in self._held)
        if any(held):
            briefing.append((Command.PREPARE, held))
        if self._infos.specs is not None:
            briefing.append((Command.OPEN_INFO, self._infos.specs))
        return briefing

    def _next_seed(self, slot: int, restarts: int) -> int | None:
        """A seed for an env whose generator is lost: a new one, but a function of what was seeded."""
        if slot not in self._seeds:
            return None
        return int(np.random.SeedSequence([self._seeds[slot], restarts]).generate_state(1)[0])
