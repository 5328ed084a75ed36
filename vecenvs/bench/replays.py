"""Stand-ins for an env: they give what it gave, at no cost, as a whole or in part."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import gymnasium as gym
import numpy as np

from vecenvs.bench.workloads import Workload

_MOST = 512  # transitions
_BYTES = 32 << 20  # of observations, about
_SECONDS = 1.0
_BLANK = gym.spaces.Box(0.0, 1.0, (1,), np.float32)

Transition = tuple[Any, Any, bool, bool, dict[str, Any]]


@dataclass(frozen=True)
class Replay:
    """Makes envs that give recorded transitions, over and over, beginning with the same one.

    Without `rows` an observation is one float, without `infos` infos are empty, without `ends` no episode ends.
    """

    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    first: Any
    transitions: list[Transition]
    rows: bool = True
    infos: bool = True
    ends: bool = True

    def only(self, *, rows: bool = False, infos: bool = False, ends: bool = False) -> Replay:
        """Leave out the rest."""
        return replace(self, rows=rows, infos=infos, ends=ends)

    def __call__(self) -> gym.Env[Any, Any]:
        return ReplayEnv(self)


class ReplayEnv(gym.Env[Any, Any]):
    """Gives the transitions of a `Replay`."""

    def __init__(self, replay: Replay) -> None:
        blank = np.zeros(1, np.float32)
        self.observation_space = replay.observation_space if replay.rows else _BLANK
        self.action_space = replay.action_space
        self._first = replay.first if replay.rows else blank
        self._transitions: list[Transition] = [
            (
                obs if replay.rows else blank,
                reward,
                terminated and replay.ends,
                truncated and replay.ends,
                info if replay.infos else {},
            )
            for obs, reward, terminated, truncated, info in replay.transitions
        ]
        self._turn = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self._first, {}

    def step(self, action: Any) -> Transition:
        turn = self._turn
        self._turn = turn + 1 if turn + 1 < len(self._transitions) else 0
        return self._transitions[turn]


def record(env_fn: Workload) -> Replay:
    """Step an env with random actions and keep what it gives: some hundred transitions, or what a second gives."""
    env = env_fn()
    try:
        env.action_space.seed(0)
        first = _own(env.reset(seed=0)[0])
        most = max(8, min(_MOST, _BYTES // max(1, _nbytes(first))))
        transitions: list[Transition] = []
        begun = time.perf_counter()
        while not transitions or (len(transitions) < most and time.perf_counter() - begun < _SECONDS):
            obs, reward, terminated, truncated, info = env.step(env.action_space.sample())
            transitions.append((_own(obs), reward, bool(terminated), bool(truncated), dict(info)))
            if terminated or truncated:
                env.reset()
        return Replay(env.observation_space, env.action_space, first, transitions)
    finally:
        env.close()


def _own(obs: Any) -> Any:
    """Copy an observation that the env may write into again."""
    if isinstance(obs, dict):
        return {key: _own(part) for key, part in obs.items()}
    if isinstance(obs, tuple):
        return tuple(_own(part) for part in obs)
    return obs.copy() if isinstance(obs, np.ndarray) else obs


def _nbytes(obs: Any) -> int:
    if isinstance(obs, dict):
        return sum(map(_nbytes, obs.values()))
    if isinstance(obs, tuple):
        return sum(map(_nbytes, obs))
    return int(getattr(obs, "nbytes", 8))
