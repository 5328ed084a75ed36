"""Stand-ins for an env: they return the transitions that were recorded from it, in full or in part, at no cost."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import gymnasium as gym
import numpy as np

from vecenvs.batch.values import copy_containers
from vecenvs.bench.workloads import Workload

_MAX_TRANSITIONS = 512
_MAX_BYTES = 32 << 20  # of observations, about
_MAX_SECONDS = 1.0
_BLANK = gym.spaces.Box(0.0, 1.0, (1,), np.float32)

Transition = tuple[Any, Any, bool, bool, dict[str, Any]]


@dataclass(frozen=True)
class StandIn:
    """An env function: its envs return the recorded transitions over and over, each env from the first one on.

    Without `rows` an observation is one float, without `infos` infos are empty, without `ends` no episode ends.
    """

    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    first: Any
    transitions: list[Transition]
    rows: bool = True
    infos: bool = True
    ends: bool = True

    def only(self, *, rows: bool = False, infos: bool = False, ends: bool = False) -> StandIn:
        """Return a stand-in with only the parts that are asked for."""
        return replace(self, rows=rows, infos=infos, ends=ends)

    def __call__(self) -> gym.Env[Any, Any]:
        return StandInEnv(self)


class StandInEnv(gym.Env[Any, Any]):
    """Return the transitions of a `StandIn`."""

    def __init__(self, source: StandIn) -> None:
        blank = np.zeros(1, np.float32)
        self.observation_space = source.observation_space if source.rows else _BLANK
        self.action_space = source.action_space
        self._first = source.first if source.rows else blank
        self._transitions: list[Transition] = [
            (
                obs if source.rows else blank,
                reward,
                terminated and source.ends,
                truncated and source.ends,
                info if source.infos else {},
            )
            for obs, reward, terminated, truncated, info in source.transitions
        ]
        self._next = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self._first, {}

    def step(self, action: Any) -> Transition:
        turn = self._next
        self._next = turn + 1 if turn + 1 < len(self._transitions) else 0
        return self._transitions[turn]


def record(env_fn: Workload) -> StandIn:
    """Step an env with random actions for up to a second, and record its transitions: at most some hundred."""
    env = env_fn()
    try:
        env.action_space.seed(0)
        first = copy_containers(env.reset(seed=0)[0])
        most = max(8, min(_MAX_TRANSITIONS, _MAX_BYTES // max(1, _nbytes(first))))
        transitions: list[Transition] = []
        start = time.perf_counter()
        while not transitions or (len(transitions) < most and time.perf_counter() - start < _MAX_SECONDS):
            obs, reward, terminated, truncated, info = env.step(env.action_space.sample())
            # An env may write into its arrays again.
            transitions.append((copy_containers(obs), reward, bool(terminated), bool(truncated), dict(info)))
            if terminated or truncated:
                env.reset()
        return StandIn(env.observation_space, env.action_space, first, transitions)
    finally:
        env.close()


def _nbytes(obs: Any) -> int:
    if isinstance(obs, dict):
        return sum(map(_nbytes, obs.values()))
    if isinstance(obs, tuple):
        return sum(map(_nbytes, obs))
    return int(getattr(obs, "nbytes", 8))
