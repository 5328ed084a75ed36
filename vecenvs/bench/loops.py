"""The bare loop over several envs by turns, in one process."""

from __future__ import annotations

from itertools import cycle, islice
from typing import Any

from vecenvs.bench.contestants import draw_actions
from vecenvs.bench.measure import Stepper
from vecenvs.bench.workloads import Workload


class LoopContestant:
    """The bare loop over all envs by turns, in this process: what stepping in one process cannot go below."""

    def __init__(self, name: str, env_fn: Workload, num_envs: int | None = None) -> None:
        self.name = name
        self._env_fn = env_fn
        self._num_envs = num_envs  # in place of what is asked for

    def make(self, num_envs: int) -> Stepper:
        """Make and reset the envs."""
        return LoopStepper([self._env_fn() for _ in range(self._num_envs or num_envs)])


class LoopStepper:
    """Steps envs by turns, and resets those whose episodes end."""

    def __init__(self, envs: list[Any]) -> None:
        self._envs = envs
        self._actions = cycle([list(batch) for batch in _columns(envs[0].action_space, len(envs))])
        for seed, env in enumerate(envs):
            env.reset(seed=seed)

    def step(self, count: int) -> int:
        """Step each env `count` times."""
        envs = self._envs
        for actions in islice(self._actions, count):
            for env, action in zip(envs, actions):  # noqa: B905  equal lengths by construction
                _, _, terminated, truncated, _ = env.step(action)
                if terminated or truncated:
                    env.reset()
        return count * len(envs)

    def close(self) -> None:
        """Close the envs."""
        for env in self._envs:
            env.close()


def _columns(space: Any, num_envs: int) -> list[Any]:
    """Draw batches of one action per env: as rows of an array, or one by one where a batch is no array."""
    batches = draw_actions(space, num_envs)
    if isinstance(batches[0], (dict, tuple)):
        return [[space.sample() for _ in range(num_envs)] for _ in range(8)]
    return batches
