"""The loops over actions drawn beforehand, and the description of what they step.

`step(count)` makes `count` batched steps (as many rows, where batches are smaller) and returns how many rows were
transitions. A row that a library returns for a reset is none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

import gymnasium as gym
import numpy as np

from vecenvs.bench.candidates import draw_actions
from vecenvs.bench.workloads import Workload, spin


@dataclass(frozen=True)
class Job:
    """What to step. `think`: iterations of `spin` that the learner computes per row. `attr`: read the attribute."""

    env: str
    env_fn: Workload
    num_envs: int
    cores: int
    think: int = 0
    attr: bool = False

    def env_fns(self) -> list[Workload]:
        return [self.env_fn] * self.num_envs

    def actions(self, space: gym.Space[Any], num_envs: int | None = None) -> list[Any]:
        """Draw batches of actions from the action space of one env."""
        return draw_actions(space, self.num_envs if num_envs is None else num_envs)

    def learn(self, rows: int) -> None:
        """Compute, as a learner would with this many rows."""
        spin(rows * self.think)


@dataclass
class LockStep:
    """Step all envs; every row is a transition."""

    job: Job
    advance: Callable[[Any], Any]
    batches: list[Any]
    close: Callable[[], Any]
    read: Callable[[], Any] | None = None

    def __post_init__(self) -> None:
        self.actions = cycle(self.batches)

    def step(self, count: int) -> int:
        advance, read, job = self.advance, self.read, self.job
        if read is None and not job.think:
            for actions in islice(self.actions, count):
                advance(actions)
            return count * job.num_envs
        for actions in islice(self.actions, count):
            advance(actions)
            if read is not None:
                read()
            job.learn(job.num_envs)
        return count * job.num_envs


@dataclass
class NextStep(LockStep):
    """Step envs which are reset by the step after an episode's end.

    `advance` returns obs, rewards, terminated, truncated, ...
    """

    over: int = 0

    def step(self, count: int) -> int:
        advance, read, job, over, resets = self.advance, self.read, self.job, self.over, 0
        for actions in islice(self.actions, count):
            resets += over
            _, _, terminated, truncated, *_ = advance(actions)
            over = int(np.count_nonzero(terminated | truncated))
            if read is not None:
                read()
            if job.think:
                job.learn(job.num_envs)
        self.over = over
        return count * job.num_envs - resets


@dataclass
class InPart:
    """Step half of the envs at a time, whichever half is ready.

    `exchange` waits for a half, learns, and sends it on. It returns the number of rows and of transitions among them.
    """

    job: Job
    exchange: Callable[[], tuple[int, int]]
    close: Callable[[], Any]

    def step(self, count: int) -> int:
        rows = made = 0
        while rows < count * self.job.num_envs:
            got, transitions = self.exchange()
            rows += got
            made += transitions
        return made
