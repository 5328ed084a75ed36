"""Cells within a budget of time: the rounds of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from benchmarks.peers.lineup import Entrant

Clock = Callable[[], float]
SLOW_ROUNDS = 2


class Budget:
    """A number of seconds for a number of cells. A cell leaves unused time to the next ones. None means no limit."""

    def __init__(self, seconds: float | None, cells: int, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._end = None if seconds is None else clock() + seconds
        self._cells = cells
        self._cell_end: float | None = None

    def begin_cell(self) -> bool:
        """Assign the next cell its part of the time; return False if there is no time left."""
        if self._end is None:
            return True
        left = self._end - self._clock()
        self._cell_end = self._clock() + left / max(1, self._cells)
        self._cells -= 1
        return left > 0

    def rounds(self, most: int) -> Iterator[int]:
        """Yield the numbers of up to `most` rounds, at least one, as long as another one fits into the cell's time."""
        took = 0.0
        for number in range(most):
            begun = self._clock()
            if number and self._cell_end is not None and begun + took > self._cell_end:
                return
            yield number
            took = self._clock() - begun


def entrants_of(rounds: Iterable[int], entrants: Sequence[Entrant]) -> Iterator[Sequence[Entrant]]:
    """Yield the entrants of each round. A slow one takes part in the first SLOW_ROUNDS rounds only."""
    for number in rounds:
        yield [one for one in entrants if not one.contestant.slow or number < SLOW_ROUNDS]
