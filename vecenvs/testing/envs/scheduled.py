"""An env with predictable answers, for random schedules of commands."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

FAIL = 9


class ScheduledEnv(gymnasium.Env[NDArray[np.int64], Any]):
    """Observation int64 (3,): [tag, episode, t]; reward: t + action + bonus; an episode lasts 2 + tag % 3 steps.

    Action `FAIL` raises before anything changes. Steps take a little time, more for higher actions, so that envs
    overtake each other.

    Args:
        tag: a number, to tell envs apart.
    """

    def __init__(self, tag: int) -> None:
        self.observation_space = Box(0, 1_000_000, (3,), np.int64)
        self.action_space = Discrete(FAIL + 1)
        self.tag, self.length = tag, 2 + tag % 3
        self.episode = self.t = self.bonus = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.int64], dict[str, Any]]:
        time.sleep(1e-4 * (self.tag % 3))
        self.episode += 1
        self.t = 0
        return self._row(), {"tag": self.tag}

    def step(self, action: Any) -> tuple[NDArray[np.int64], float, bool, bool, dict[str, Any]]:
        time.sleep(5e-5 * int(action))
        if action == FAIL:
            raise ValueError(f"env {self.tag} was told to fail")
        self.t += 1
        return self._row(), float(self.t + int(action) + self.bonus), self.t >= self.length, False, {}

    def _row(self) -> NDArray[np.int64]:
        return np.array([self.tag, self.episode, self.t], np.int64)
