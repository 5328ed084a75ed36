"""Turns in rounds: the limit, A, B, ..., the limit, A, B, ..., so that all meet the same state of the machine."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from vecenvs.bench.weigh import Footprint, weigh

LIMIT = "limit"
_SETTLE = 0.05  # seconds for the last contestant's processes to be gone
_OFTEN = 1e-3  # seconds: how often the clock is read, so that reading it costs next to nothing


@dataclass(frozen=True)
class Timing:
    """So many env steps in so many seconds."""

    steps: int
    seconds: float

    @property
    def rate(self) -> float:
        """Env steps per second."""
        return self.steps / self.seconds


class Stepper(Protocol):
    """Envs that have been made and reset."""

    def step(self, count: int) -> int:
        """Step all envs `count` times with actions drawn beforehand; return how many transitions that made.

        The tightest loop that a user of the library could write; rows which are no transitions do not count.
        """

    def close(self) -> None:
        """End it, and every process it started."""


class Contestant(Protocol):
    """A library, or a backend of one, in one configuration."""

    @property
    def name(self) -> str:
        """What tables and charts call it."""

    def make(self, num_envs: int) -> Stepper:
        """Make `num_envs` envs and reset them: the whole of it is the start-up time."""


class Limit(Protocol):
    """What the machine can give."""

    def run(self, seconds: float, warmup: float) -> Timing:
        """Step for about `warmup` seconds, then for about `seconds`, and tell what the latter gave."""


@dataclass(frozen=True)
class Turn:
    """One reading. `timing` is None if the contestant failed, and `failure` then says how, in one line.

    `unavailable` if it did because something is not installed here (an ImportError).
    """

    contestant: str
    num_envs: int
    round: int
    timing: Timing | None = None
    startup: float | None = None
    memory: Footprint | None = None
    failure: str | None = None
    unavailable: bool = False


def contest(
    contestants: Sequence[Contestant],
    limit: Limit,
    num_envs: int,
    *,
    seconds: float,
    repeats: int,
    weigh: Callable[[Contestant, int], Footprint | None] = weigh,
) -> Iterator[Turn]:
    """Give everybody `repeats` turns of `seconds`, and yield each reading as it is taken.

    The limit comes first in each round and once more after the last one, so that each turn lies between two readings
    of it. A contestant is made anew for each turn: its envs stand alone on the machine, nobody's idle processes beside
    them, and the spread covers what differs from one start to the next. Whoever fails takes no further turns.
    Abandoning or interrupting the iteration closes what is open.
    """
    warmup = warmup_for(seconds)
    failed: set[str] = set()
    for number in range(repeats):
        yield Turn(LIMIT, num_envs, number, limit.run(seconds, warmup))
        for contestant in contestants:
            if contestant.name in failed:
                continue
            turn = _take_turn(contestant, num_envs, number, seconds, warmup)
            if number == 0 and turn.timing is not None:
                turn = replace(turn, memory=weigh(contestant, num_envs))
            if turn.failure is not None:
                failed.add(contestant.name)
            yield turn
    yield Turn(LIMIT, num_envs, repeats, limit.run(seconds, warmup))


def warmup_for(seconds: float) -> float:
    """Tell how long to step before the clock counts: caches, CPU frequency and adaptive waits need a moment."""
    return min(1.0, 0.25 * seconds)


def _take_turn(contestant: Contestant, num_envs: int, number: int, seconds: float, warmup: float) -> Turn:
    gc.collect()
    try:
        start = time.perf_counter()
        stepper = contestant.make(num_envs)
        try:
            startup = time.perf_counter() - start
            run_for(stepper.step, warmup)
            timing = run_for(stepper.step, seconds)
        finally:
            stepper.close()
    except ImportError as error:
        return Turn(contestant.name, num_envs, number, failure=" ".join(str(error).split()), unavailable=True)
    except Exception as error:  # whatever a contestant does wrong is a result of the contest, not the end of it
        return Turn(contestant.name, num_envs, number, failure=describe(error))
    time.sleep(_SETTLE)
    return Turn(contestant.name, num_envs, number, timing, startup)


def run_for(step: Callable[[int], int], seconds: float, clock: Callable[[], float] = time.perf_counter) -> Timing:
    """Call `step` with fitting counts until `seconds` are over; the last call is finished and counted."""
    steps, count = 0, 1
    start = now = clock()
    while now - start < seconds:
        begin = now
        steps += step(count)
        now = clock()
        if now - begin < _OFTEN:
            count *= 2
        elif count > 1 and now - begin > 4 * _OFTEN:
            count //= 2
    return Timing(steps, now - start)


def describe(error: BaseException) -> str:
    """Put an exception into one line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
