"""The wrapper of baselines' retro envs that Gymnasium lacks."""

from __future__ import annotations

from typing import Any, SupportsFloat

import gymnasium as gym
from gymnasium.core import ActType, ObsType


class StochasticFrameSkip(gym.Wrapper[ObsType, ActType, ObsType, ActType], gym.utils.RecordConstructorArgs):
    """Hold each action for `n` frames, as baselines' wrapper of this name.

    With probability `stickprob` the previous action still holds in the first of these frames.
    The reward is the sum over the frames, the observation that of the last one. Random numbers come from the env's own
    generator, so a reset with a seed determines them.

    Args:
        env: the env to wrap.
        n: frames per step.
        stickprob: the probability, from 0 to 1.
    """

    def __init__(self, env: gym.Env[ObsType, ActType], n: int, stickprob: float) -> None:
        gym.utils.RecordConstructorArgs.__init__(self, n=n, stickprob=stickprob)
        super().__init__(env)
        self._n = n
        self._stickprob = stickprob
        self._last_action: Any = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[ObsType, dict[str, Any]]:
        self._last_action = None
        return self.env.reset(seed=seed, options=options)

    def step(self, action: ActType) -> tuple[ObsType, SupportsFloat, bool, bool, dict[str, Any]]:
        sticks = self._last_action is not None and self.np_random.random() < self._stickprob
        first, self._last_action = (self._last_action if sticks else action), action
        obs, reward, terminated, truncated, info = self.env.step(first)
        total = float(reward)
        for _ in range(self._n - 1):
            if terminated or truncated:
                break
            obs, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
        return obs, total, terminated, truncated, info
