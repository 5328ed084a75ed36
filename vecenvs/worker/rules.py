"""What the workers of a VecEnv do where episodes begin and end: the arguments that every engine passes on to them."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from vecenvs.transport.reset_arguments import NUMBER, SEED, SeedStream
from vecenvs.worker.identity import Told
from vecenvs.worker.pace import Pace


class TimeLimits(NamedTuple):
    """The seconds after which a step and a reset are too late: `step_timeout` and `reset_timeout`."""

    step: float = math.inf
    reset: float = math.inf

    @property
    def shortest(self) -> float:
        """The shorter one; infinity if there is none."""
        return min(self)


class WorkShare(NamedTuple):
    """How many envs of one worker may be at work at once, and how many may begin in a second, with `work_limit`."""

    at_once: float = math.inf
    per_second: float = math.inf


class Rules(NamedTuple):
    """The same for all workers.

    With `episode_seeds` there is a `root` seed of slots that are given none. `own_resets` are arguments that need each
    reset to be the worker's. Each worker is `told` who it is.
    """

    autoreset: str
    root: int | None = None
    on_error: str = "raise"
    max_errors: int = 10
    own_resets: tuple[str, ...] = ()
    told: Told | None = None
    concurrency: str | None = None
    limits: TimeLimits = TimeLimits()
    restarts: int = 0  # with `concurrency`: how many envs of a worker may be late until that is raised
    pace: Pace | None = None  # of the making of envs
    work: WorkShare = WorkShare()
    spares: int = 0


class EpisodeSeeds:
    """The seeds of the episodes of one worker's envs: slot first + local has `root` + its number until it gets one."""

    def __init__(self, root: int, first: int) -> None:
        self._root, self._first = root, first
        self._next: dict[int, SeedStream] = {}  # by env: its next episode, unless that is the first one

    def of(self, local: int, given: int | None) -> SeedStream:
        """Return the episode that begins with an env's next reset, which has `given` a seed, or has none of its own."""
        if given is not None:
            return SeedStream(given, 0)
        return self._next.get(local) or SeedStream(self._root + self._first + local, 0)

    def put(self, local: int, stream: SeedStream) -> None:
        """Set the next episode of an env."""
        self._next[local] = stream

    def begin(self, local: int, stream: SeedStream) -> dict[str, Any]:
        """Take note that the reset of an episode has succeeded; return what the info of the reset tells of it."""
        self._next[local] = stream.after()
        return {SEED: stream.seed(self._first + local), NUMBER: stream.number}
