"""Clip and scale rewards, clip actions: baselines' outermost wrappers, made of Gymnasium's."""

from __future__ import annotations

import math
import operator
from functools import partial
from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import TransformAction, TransformReward
from numpy.typing import NDArray

from vecenvs.arguments import parse_number


def _sign(reward: SupportsFloat) -> float:
    value = float(reward)
    return 1.0 if value > 0 else -1.0 if value < 0 else value  # 0 and NaN stay


def _clipped(low: NDArray[Any], high: NDArray[Any], action: NDArray[Any]) -> NDArray[Any]:
    # The two ufuncs cost a third of np.clip on the few numbers of an action.
    clipped: NDArray[Any] = np.minimum(np.maximum(action, low), high)
    return clipped


def check_scale(scale: Any) -> float:
    """Return `scale` as a float; TypeError if it is not a number, ValueError if it is not finite."""
    factor = parse_number("reward_scale", scale)
    if not math.isfinite(factor):
        raise ValueError(f"reward_scale must be finite, not {scale!r}")
    return factor


def scale_reward(env: gym.Env[Any, Any], scale: float) -> gym.Env[Any, Any]:
    """Multiply every reward by a factor, as baselines' RewardScaler.

    Args:
        env: the env to wrap.
        scale: the factor, finite.

    Returns:
        The wrapped env, or `env` itself if the factor is 1.

    Raises:
        TypeError: `scale` is not a number.
        ValueError: `scale` is not finite.
    """
    factor = check_scale(scale)
    return env if factor == 1 else TransformReward(env, partial(operator.mul, factor))


def clip_reward(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    """Replace every reward by its sign, -1.0, 0.0 or 1.0 (Mnih et al. 2015; baselines' ClipRewardEnv). NaN stays NaN.

    Args:
        env: the env to wrap.

    Returns:
        The wrapped env.
    """
    return TransformReward(env, _sign)


def clip_action(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    """Clip the actions to the bounds of a Box action space, as baselines' ClipActionsWrapper.

    The action space stays the same; Gymnasium's ClipAction makes its bounds infinite. NaN stays NaN; baselines makes it
    0, but an agent that has diverged should not look like one that does nothing.

    Args:
        env: the env to wrap.

    Returns:
        The wrapped env, or `env` itself if its action space is not a Box with a finite bound.
    """
    space = env.action_space
    if not isinstance(space, gym.spaces.Box) or not (np.isfinite(space.low).any() or np.isfinite(space.high).any()):
        return env
    return TransformAction(env, partial(_clipped, space.low, space.high), space)
