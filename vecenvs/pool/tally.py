"""Count, by worker, the transitions and episodes that callers were given, and keep what workers tell of their load."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vecenvs.errors import describe_indices
from vecenvs.worker.load import WAITING_CPU, WAITING_STEP, Load, total

Rows = Sequence[int] | NDArray[np.int64]  # slots
_log = logging.getLogger("vecenvs")
_ENOUGH = 100  # steps of a worker's envs from which on it is told that they wait
_SUMMED = ("transitions", "episodes", "seconds_waiting", "seconds_stepping")


class Tally:
    """The counts of `stats` by worker.

    A result may be made again, after an exception, so `note` counts its rows from `sums`, those of all results before
    it. Whoever returns the result assigns `new` to `sums`. Steps of all envs are counted elsewhere.
    """

    def __init__(self, shards: Sequence[range]) -> None:
        self._shards = shards
        self._owner = [worker for worker, shard in enumerate(shards) for _ in shard]
        self._owners = np.array(self._owner)
        # By worker: transitions, less those of steps of all envs in which each env has one; and episodes.
        self.sums = self.new = [0] * len(shards), [0] * len(shards)
        self._loads = [Load()] * len(shards)
        self._memory: dict[int, int] = {}  # by worker: its bytes after its first episodes; 0 once they have doubled
        self._told = False  # whether that envs wait
        self.steps = 0  # of all envs, which are not in `sums`
        self._before = [Load()] * len(shards)  # of the workers that were replaced

    def note(self, rows: Rows, idle: Rows, ended: Rows) -> None:
        """Count the rows of a result. Those in `idle` are no transitions, and those in `ended` end episodes."""
        transitions, episodes = [*self.sums[0]], [*self.sums[1]]
        self._add(transitions, rows)
        self._add(transitions, idle, -1)
        self._add(episodes, ended)
        self.new = transitions, episodes

    def note_step(self) -> None:
        """Take note that the result which was noted is that of a step of all envs."""
        transitions, episodes = self.new
        self.new = [count - len(shard) for count, shard in zip(transitions, self._shards, strict=True)], episodes

    def _add(self, counts: list[int], slots: Rows, sign: int = 1) -> None:
        if len(counts) == 1:
            counts[0] += sign * len(slots)
        elif isinstance(slots, np.ndarray):
            for worker, count in enumerate(np.bincount(self._owners[slots], minlength=len(counts)).tolist()):
                counts[worker] += sign * count
        else:
            for slot in slots:
                counts[self._owner[slot]] += sign

    def tell(self, worker: int, load: Load) -> None:
        """Keep what a worker tells of its load. Warn, once, if its memory has doubled since its first episodes."""
        self._loads[worker] = load
        self._look_at_steps(worker, load)
        if load.rss is None or self.episodes(worker) < len(self._shards[worker]):
            return
        before = self._memory.setdefault(worker, load.rss)
        if load.rss >= 2 * before > 0:
            self._memory[worker] = 0
            _log.warning(
                "the memory of worker %d with envs %s has doubled, from %.0f to %.0f MB, since its first episodes: if "
                "it goes on to grow, recycle=vecenvs.Recycle(rss=...) replaces such workers at the end of an episode",
                worker, describe_indices(self._shards[worker]), before / 1e6, load.rss / 1e6,
            )  # fmt: skip

    def _look_at_steps(self, worker: int, load: Load) -> None:
        """Tell, once, that envs wait, after a hundred steps of some ms in which a worker has hardly needed its core."""
        count = self.transitions(worker)
        if load.stepping is None or load.cpu is None or count < _ENOUGH or len(self._shards[worker]) == 1 or self._told:
            return
        if load.stepping > WAITING_STEP * count and load.cpu < WAITING_CPU * load.stepping:
            self._told = True
            _log.info(
                "the envs of worker %d wait: their steps take %.0f ms on average, and %.0f %% of a core. A worker runs "
                "its envs one by one: with concurrency='threads', or 'asyncio' for coroutines, all of them wait at the "
                "same time (docs/waiting.md)",
                worker, 1e3 * load.stepping / count, 100 * load.cpu / load.stepping,
            )  # fmt: skip

    def episodes(self, worker: int) -> int:
        """Return how many episodes a worker's envs have ended."""
        return self.sums[1][worker]

    def resident(self, worker: int) -> int | None:
        """Return the bytes of a worker's process, as far as it has told."""
        return self._loads[worker].rss

    def begin_anew(self, worker: int) -> None:
        """Take note that a worker has replaced another. Repeatable."""
        self._before[worker], self._loads[worker] = self._loads[worker].after(self._before[worker]), Load()
        self._memory.pop(worker, None)

    def transitions(self, worker: int) -> int:
        """Return how many transitions a worker's envs have made."""
        return self.steps * len(self._shards[worker]) + self.sums[0][worker]

    def describe(self, worker: int) -> dict[str, Any]:
        """Return what `stats` says of a worker."""
        counts = {"transitions": self.transitions(worker), "episodes": self.episodes(worker)}
        return counts | self._loads[worker].after(self._before[worker]).describe()


def totals(workers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the sums of what `Tally.describe` says of all workers. Those of one process share its memory."""
    found = {name: total(each[name] for each in workers) for name in _SUMMED}
    memory = {(each["host"], each["pid"]): each["rss_bytes"] for each in workers}
    return {**found, "rss_bytes": total(memory.values())}
