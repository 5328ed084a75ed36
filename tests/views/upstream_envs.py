"""Envs as people write them, whose rows tell how a library treats them; for comparisons with that library."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Drawing(gym.Env[Any, Any]):
    """Shows random numbers; episodes of `length` steps. Its reward is what the action comes to."""

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
    """Seeds itself whenever it is given the argument, also None, for which it takes a seed of its own."""

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        if "seed" in given:
            self.rng = np.random.default_rng(99 if given["seed"] is None else given["seed"])
        self.t = 0
        return self.draw(), {}


class SeedOfItsOwn(Drawing):
    """Begins each episode alike unless it is told otherwise."""

    def reset(self, *, seed: int | None = 7, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.rng = np.random.default_rng(1234 if seed is None else seed)
        return super().reset()


class Louder(gym.Wrapper[Any, Any, Any, Any]):
    """Adds 100 to the reward."""

    def step(self, action: Any) -> Any:
        obs, reward, *rest = self.env.step(action)
        return obs, float(reward) + 100, *rest
