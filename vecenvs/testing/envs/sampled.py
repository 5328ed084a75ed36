"""A random env over any spaces, whose trajectory depends only on the seed and the actions."""

from __future__ import annotations

import copy
import pickle
import zlib
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class SampledEnv(gymnasium.Env[Any, Any]):
    """Return samples of `observation_space`, drawn by generators that each reset seeds.

    The reward mixes a random number with a digest of the action, so that an action that arrives with a wrong value or
    dtype changes the trajectory. An episode ends terminated, truncated or both. Every third info holds an array, the
    others are empty.

    Args:
        observation_space: the space of the observations.
        action_space: the space of the actions; None for Discrete(4).
        end: the probability that a step ends the episode.
    """

    def __init__(
        self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any] | None = None, *, end: float = 0.15
    ) -> None:
        self.observation_space = observation_space
        self.action_space = spaces.Discrete(4) if action_space is None else action_space
        self.end = end
        self._space = copy.deepcopy(observation_space)  # whose generator no other env shares
        self._t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._space.seed(int(self.np_random.integers(2**31)))
        self._t = 0
        return self._space.sample(), {"first": float(self.np_random.random())}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._t += 1
        over = bool(self.np_random.random() < self.end)
        why = self.np_random.integers(3)
        reward = float(self.np_random.normal()) + digest(action) / 2**32
        info = {} if self._t % 3 else {"array": self.np_random.random(2), "t": self._t}
        return self._space.sample(), reward, over and why != 0, over and why != 1, info


def digest(value: Any) -> int:
    """Compute a checksum of the values, dtypes, shapes and nesting in a value.

    Args:
        value: an array, a number, or a dict or tuple of values; anything else is pickled.

    Returns:
        The checksum, from 0 to 2**32 - 1.
    """
    if isinstance(value, dict):
        return zlib.crc32(b"".join(key.encode() + digest(value[key]).to_bytes(4, "little") for key in sorted(value)))
    if isinstance(value, tuple):
        return zlib.crc32(b"(" + b"".join(digest(item).to_bytes(4, "little") for item in value))
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
        return zlib.crc32(f"{array.dtype}{array.shape}".encode() + array.tobytes())
    return zlib.crc32(pickle.dumps(value, protocol=4))
