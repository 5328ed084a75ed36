"""Typical envs whose rows show how a library treats them, for comparisons with that library."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Drawing(gym.Env[Any, Any]):
    """An env with random observations, episodes of `length` steps, and the action's sum as reward."""

    def __init__(self, length: int = 3, high: float = 1.0, actions: spaces.Space[Any] | None = None) -> None:
        self.observation_space: Any = spaces.Box(0.0, high, (2,), np.float32)
        self.action_space: Any = spaces.Discrete(3) if actions is None else actions
        self.length = length
        self.t = 0
        self.rng = np.random.default_rng(0)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.t = 0
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        return self.draw(), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.t += 1
        return self.draw(), float(np.sum(action)), self.t >= self.length, False, {}

    def draw(self) -> Any:
        return self.rng.random(2, np.float32)


class LooksForSeed(Drawing):
    """An env that seeds itself whenever `seed` is passed; None means a seed of its own."""

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        if "seed" in given:
            self.rng = np.random.default_rng(99 if given["seed"] is None else given["seed"])
        self.t = 0
        return self.draw(), {}


class SeedOfItsOwn(Drawing):
    """An env that begins each episode alike unless it gets a seed."""

    def reset(self, *, seed: int | None = 7, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.rng = np.random.default_rng(1234 if seed is None else seed)
        return super().reset()


class Louder(gym.Wrapper[Any, Any, Any, Any]):
    """A wrapper that adds 100 to the reward."""

    def step(self, action: Any) -> Any:
        obs, reward, *rest = self.env.step(action)
        return obs, float(reward) + 100, *rest
