"""Turns in rounds, A, B, then B, A, with the limit before each and after the last: a turn is compared with its time."""

from __future__ import annotations

import abc
import gc
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from vecenvs.bench.memory_use import MemoryUse

LIMIT = "limit"
_SETTLE = 0.05  # seconds for the processes of a turn to be gone
_CHECK_EVERY = 1e-3  # seconds between two looks at the clock: reading it then costs next to nothing


@dataclass(frozen=True)
class Timing:
    """A number of env steps and the seconds that they took."""

    steps: int
    seconds: float

    @property
    def rate(self) -> float:
        """Env steps per second."""
        return self.steps / self.seconds


class Stepper(Protocol):
    """Envs that have been made and reset."""

    def step(self, count: int) -> int:
        """Step all envs `count` times with actions drawn beforehand; return the number of transitions.

        This is the tightest loop that a user of the library could write. Rows which are no transitions do not count.
        """

    def close(self) -> None:
        """Close the envs and end every process they started."""


class SelfTimedStepper(abc.ABC):
    """Envs that another process steps. It reads the clock itself, so that the way to it does not count."""

    @abc.abstractmethod
    def run(self, seconds: float) -> Timing:
        """Step until `seconds` are over, as `run_for` does."""

    @abc.abstractmethod
    def close(self) -> None:
        """Close the envs and end the process."""


class Candidate(Protocol):
    """A library, or one of its backends, in one configuration."""

    @property
    def name(self) -> str:
        """The name in tables and charts."""

    def make(self, num_envs: int) -> Stepper | SelfTimedStepper:
        """Make `num_envs` envs and reset them. The duration of this call is the start-up time."""


class Limit(Protocol):
    """The reference that all rates are compared with."""

    def run(self, seconds: float, warmup: float) -> Timing:
        """Step for about `warmup` seconds, then for about `seconds`; return the timing of the latter."""


@dataclass(frozen=True)
class Turn:
    """One reading. If the candidate failed, `timing` is None and `failure` says how, in one line.

    `startup` is in seconds. `unavailable` means that the failure is an ImportError: something is not installed.
    """

    candidate: str
    num_envs: int
    round: int
    timing: Timing | None = None
    startup: float | None = None
    memory: MemoryUse | None = None
    failure: str | None = None
    unavailable: bool = False


def warmup_for(seconds: float) -> float:
    """Return how long to step before the clock counts: caches, CPU frequency and adaptive waits need a moment."""
    return min(1.0, 0.25 * seconds)


def take_turn(candidate: Candidate, num_envs: int, seconds: float) -> Turn:
    """Make the candidate's envs, warm up, step them for `seconds`, and close them. The turn says round 0.

    Whatever the candidate raises, apart from KeyboardInterrupt, is the result of its turn.
    """
    gc.collect()
    try:
        start = time.perf_counter()
        stepper = candidate.make(num_envs)
        try:
            startup = time.perf_counter() - start
            run = stepper.run if isinstance(stepper, SelfTimedStepper) else partial(run_for, stepper.step)
            run(warmup_for(seconds))
            timing = run(seconds)
        finally:
            stepper.close()
    except ImportError as error:
        return Turn(candidate.name, num_envs, 0, failure=" ".join(str(error).split()), unavailable=True)
    except Exception as error:
        return Turn(candidate.name, num_envs, 0, failure=describe(error))
    time.sleep(_SETTLE)
    return Turn(candidate.name, num_envs, 0, timing, startup)


def contest(
    rounds: Iterable[Sequence[Candidate]],
    limit: Limit,
    num_envs: int,
    *,
    seconds: float,
    weigh: Callable[[Candidate, int], MemoryUse | None] | None = None,
    take_turn: Callable[[Candidate, int, float], Turn] = take_turn,
) -> Iterator[Turn]:
    """Let candidates take turns of `seconds`, and yield each reading as soon as it is taken.

    `rounds` has the candidates of each round. Each turn lies between two readings of the limit, since a machine that
    others use changes its speed within seconds. The last reading begins a round without candidates. Every other round
    runs backwards, so that no candidate always follows the same one. A candidate is made anew for each turn: no idle
    processes of others run beside it, and the spread covers what differs from one start to the next. A candidate that
    fails takes no further turns. `weigh` measures the memory, once per candidate. Abandoning or interrupting the
    iteration closes what is open.
    """
    weighed: set[str] = set()
    failed: set[str] = set()
    number = 0
    for number, candidates in enumerate(rounds, 1):
        for candidate in candidates[:: 1 if number % 2 else -1]:
            if candidate.name in failed:
                continue
            yield Turn(LIMIT, num_envs, number - 1, limit.run(seconds, warmup_for(seconds)))
            turn = replace(take_turn(candidate, num_envs, seconds), round=number - 1)
            if turn.failure is not None:
                failed.add(candidate.name)
            elif weigh is not None and candidate.name not in weighed:
                weighed.add(candidate.name)
                turn = replace(turn, memory=weigh(candidate, num_envs))
            yield turn
    yield Turn(LIMIT, num_envs, number, limit.run(seconds, warmup_for(seconds)))


def run_for(step: Callable[[int], int], seconds: float, clock: Callable[[], float] = time.perf_counter) -> Timing:
    """Call `step` with fitting counts until `seconds` are over. The last call is finished and counted."""
    steps, count = 0, 1
    start = now = clock()
    while now - start < seconds:
        begin = now
        steps += step(count)
        now = clock()
        if now - begin < _CHECK_EVERY:
            count *= 2
        elif count > 1 and now - begin > 4 * _CHECK_EVERY:
            count //= 2
    return Timing(steps, now - start)


def describe(error: BaseException) -> str:
    """Describe an exception in one line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
