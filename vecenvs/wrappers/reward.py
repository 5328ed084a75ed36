"""Rewards clipped and scaled, actions clipped: baselines' last wrappers, over Gymnasium's own."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import TransformAction, TransformReward
from numpy.typing import NDArray

from vecenvs.arguments import parse_number


@dataclass(frozen=True)
class _Scale:
    factor: float

    def __call__(self, reward: Any) -> Any:
        return self.factor * reward


def _sign(reward: SupportsFloat) -> float:
    value = float(reward)
    return 1.0 if value > 0 else -1.0 if value < 0 else value  # 0 and NaN stay


class _Clip:
    def __init__(self, space: gym.spaces.Box) -> None:
        self.low, self.high = space.low, space.high

    def __call__(self, action: NDArray[Any]) -> NDArray[Any]:
        # The two ufuncs cost a third of np.clip on the few numbers of an action.
        clipped: NDArray[Any] = np.minimum(np.maximum(action, self.low), self.high)
        return clipped


def check_scale(scale: Any) -> float:
    """Give `scale` as a float; TypeError if it is no number, ValueError if it is not finite."""
    factor = parse_number("reward_scale", scale)
    if not math.isfinite(factor):
        raise ValueError(f"reward_scale must be finite, not {scale!r}")
    return factor


def scale_reward(env: gym.Env[Any, Any], scale: float) -> gym.Env[Any, Any]:
    """Multiply every reward by `scale` (baselines' RewardScaler); a scale of 1 adds no wrapper."""
    factor = check_scale(scale)
    return env if factor == 1 else TransformReward(env, _Scale(factor))


def clip_reward(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    """Replace every reward by its sign, -1, 0 or 1 (Mnih et al. 2015; baselines' ClipRewardEnv)."""
    return TransformReward(env, _sign)


def clip_action(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    """Clip the actions to the bounds of a Box action space (baselines' ClipActionsWrapper); others add no wrapper.

    `action_space` stays as it is, which Gymnasium's ClipAction widens to infinite bounds. NaN stays NaN, which
    baselines makes 0: an agent that has diverged should not pass for one that stands still.
    """
    space = env.action_space
    if not isinstance(space, gym.spaces.Box) or not (np.isfinite(space.low).any() or np.isfinite(space.high).any()):
        return env
    return TransformAction(env, _Clip(space), space)
