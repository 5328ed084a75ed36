"""What the caller knows of each slot's episode: how it began, which seeds and options wait for the next one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from vecenvs.board import Board
from vecenvs.info_columns import InfoColumns
from vecenvs.protocol import Command


class Episodes:
    """Those of all slots. `reset_infos` has what each one's last reset gave, {} if there was none yet."""

    def __init__(self, shards: Sequence[range], board: Board, infos: InfoColumns) -> None:
        self.reset_infos: list[dict[str, Any]] = [{} for _ in range(board.n)]
        self._shards = shards
        self._board = board
        self._infos = infos
        self._seeds: dict[int, int] = {}  # the last seed given to each slot: what a restart's seeds derive from
        self._held: tuple[dict[int, Any], dict[int, Any]] = ({}, {})  # seeds and options for a slot's next reset

    def begin(self, slot: int, reset_info: dict[str, Any] | None = None) -> None:
        """Note an episode whose first row has come."""
        info = dict(reset_info) if reset_info else {}
        if self._infos.names:
            first = self._infos.first(slot)
            info = info | {name: value for name, value in first.items() if name not in info} if info else first
        for held in self._held:
            if held:
                held.pop(slot, None)
        info["episode_start"] = True
        self.reset_infos[slot] = info

    def note_seeds(self, seeds: dict[int, int | None]) -> None:
        """Remember the seeds that resets get."""
        self._seeds.update((slot, seed) for slot, seed in seeds.items() if seed is not None)

    def hold(self, seeds: dict[int, Any], options: dict[int, Any]) -> None:
        """Remember what waits for the next resets, which workers have been told, in case one is replaced before."""
        for held, given in zip(self._held, (seeds, options), strict=True):
            held.update((slot, value) for slot, value in given.items() if value is not None)

    def briefing(self, worker: int, ready: Collection[int], restarts: int) -> list[tuple[Command, Any]]:
        """Give what a worker that replaces another is told, the `restarts`-th to do so.

        Its envs that were in an episode go through `Host.resume`, with the rows last seen and new seeds. Those of
        `ready` have a row that nobody has got yet.
        """
        shard = self._shards[worker]
        rows = self._board.observations.rows(shard.start, len(shard))
        begun = [(slot, row) for slot, row in zip(shard, rows, strict=True) if self.reset_infos[slot] or slot in ready]
        briefing: list[tuple[Command, Any]] = [
            (Command.RESUME, {slot: (row, self._next_seed(slot, restarts)) for slot, row in begun})
        ]
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
