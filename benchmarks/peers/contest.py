"""Turns in rounds within a cell, and cells within a budget of time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks.peers.contestants import Contestant
from benchmarks.peers.grid import Cell
from benchmarks.peers.steppers import Job
from benchmarks.peers.turn import Answer
from vecenvs.bench.measure import LIMIT, Limit, Turn, warmup_for
from vecenvs.bench.workloads import iterations_for

TakeTurn = Callable[[Contestant, Job, float], Answer]
Clock = Callable[[], float]
SLOW_ROUNDS = 2
LEARNER_READINGS = 3  # of the limit: the learner's work must not depend on a moment's disturbance


class Budget:
    """So many seconds for so many cells: what a cell does not use goes to those after it. None is without end."""

    def __init__(self, seconds: float | None, cells: int, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._end = None if seconds is None else clock() + seconds
        self._cells = cells
        self._cell_end: float | None = None

    def begin_cell(self) -> bool:
        """Give the next cell its part; False if there is no time left."""
        if self._end is None:
            return True
        left = self._end - self._clock()
        self._cell_end = self._clock() + left / max(1, self._cells)
        self._cells -= 1
        return left > 0

    def has(self, seconds: float) -> bool:
        """Tell whether this cell has so much left."""
        return self._cell_end is None or self._clock() + seconds <= self._cell_end


def job_of(cell: Cell, limit: Limit, cores: int, seconds: float) -> Job:
    """Tell what is to be stepped. A learner computes per row as long as the limit takes (best of some readings)."""
    think = 0
    if cell.learner:
        rate = max(limit.run(seconds, warmup_for(seconds)).rate for _ in range(LEARNER_READINGS))
        think = iterations_for(1 / rate)
    return Job(cell.env, cell.env_fn(), cell.num_envs, cores, think, cell.attr)


def play(
    job: Job,
    lineup: Sequence[Contestant],
    limit: Limit,
    take_turn: TakeTurn,
    *,
    seconds: float,
    rounds: int,
    budget: Budget,
    clock: Clock = time.monotonic,
) -> Iterator[Turn]:
    """Give everybody up to `rounds` turns, at least one, as far as the budget goes; yield each reading as it is taken.

    The limit comes first in each round and once more after the last: each turn lies between two readings of it. Every
    other round goes through the contestants backwards, so that nobody always follows the same one. Who fails takes no
    further turns, and who is slow only those of the first SLOW_ROUNDS rounds.
    """
    failed: set[str] = set()
    number, took = 0, 0.0
    while number < rounds and (number == 0 or budget.has(took)):
        begun = clock()
        yield Turn(LIMIT, job.num_envs, number, limit.run(seconds, warmup_for(seconds)))
        for contestant in lineup[:: 1 if number % 2 == 0 else -1]:
            if contestant.name in failed or (contestant.slow and number >= SLOW_ROUNDS):
                continue
            answer = take_turn(contestant, job, seconds)
            if answer.timing is None:
                failed.add(contestant.name)
            yield _turn(contestant, job, number, answer)
        number, took = number + 1, clock() - begun
    yield Turn(LIMIT, job.num_envs, number, limit.run(seconds, warmup_for(seconds)))


def _turn(contestant: Contestant, job: Job, number: int, answer: Answer) -> Turn:
    fields: dict[str, Any] = vars(answer)
    return Turn(contestant.name, job.num_envs, number, **fields)
