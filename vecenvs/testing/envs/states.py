"""Envs whose states are kept in different ways."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.spaces import Discrete
from gymnasium.vector import SyncVectorEnv

from vecenvs.testing.envs.failing import ToyError


class StateEnv(gymnasium.Env[Any, Any]):
    """Random walks whose rows tell all that has happened in an episode; it ends at a random step.

    Observation: an int below 2**31 that is drawn anew with each action. Reward: the sum of the actions so far.

    Args:
        end: the probability that a step ends the episode.
    """

    def __init__(self, end: float = 0.1) -> None:
        self.observation_space = Discrete(2**31)
        self.action_space = Discrete(4)
        self.end = end
        self.sum = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.sum = int((options or {}).get("sum", 0))
        return self.draw(), {"begins_with": self.sum}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.sum += int(action)
        over = bool(self.np_random.random() < self.end)
        return self.draw(), float(self.sum), over, False, {}

    def draw(self) -> int:
        """Return the next observation."""
        return int(self.np_random.integers(2**31))


class BrittleEnv(StateEnv):
    """The same, which fails for reasons that its seed and its actions have.

    Args:
        where: "step": any action 3 raises. "reset": any reset with a large seed does, as those of later episodes have.
        end: the probability that a step ends the episode.
    """

    def __init__(self, where: str = "step", end: float = 0.1) -> None:
        super().__init__(end)
        self.where = where

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if self.where == "reset" and seed is not None and seed >= 1000:
            raise ToyError("a large seed")
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.where == "step" and action == 3:
            raise ToyError("action 3")
        return super().step(action)


class OpaqueEnv(StateEnv):
    """The same with an iterator in C, which is no plain data: an episode can only be replayed."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        vars(self).pop("numbers", None)
        obs, info = super().reset(seed=seed, options=options)
        self.numbers = iter(self.np_random.integers(2**31, size=1000).tolist())
        return obs, info

    def draw(self) -> int:
        """Return the next number of the iterator."""
        return int(next(self.numbers)) if hasattr(self, "numbers") else super().draw()


class OwnStateEnv(OpaqueEnv):
    """The same with a state of its own, which is how many numbers of the iterator are left."""

    def get_state(self) -> dict[str, Any]:
        """Return the state."""
        left = list(self.numbers)
        self.numbers = iter(left)
        return {"left": np.array(left), "sum": self.sum}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        self.numbers = iter(state["left"].tolist())
        self.sum = state["sum"]


class HiddenStateEnv(StateEnv):
    """The same with a sum that no attribute of its objects has, so that its states are silently wrong."""

    sums: ClassVar[dict[int, int]] = {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.sums[id(self)] = self.sums.get(id(self), 0) + int(action)
        obs, _, terminated, truncated, info = super().step(action)
        return obs, float(self.sums[id(self)]), terminated, truncated, info


class StateBatch(SyncVectorEnv):
    """StateEnvs as a batched env that can read and set the states of single ones.

    Args:
        env_fns: the functions of the single envs.
        **kwargs: as of SyncVectorEnv.
    """

    def get_state(self, indices: list[int]) -> list[Any]:
        """Return the states of these envs."""
        envs: list[Any] = [self.envs[index].unwrapped for index in indices]
        ended = self._autoreset_envs[indices].tolist()
        return [[env.sum, env.np_random.bit_generator.state, end] for env, end in zip(envs, ended, strict=True)]

    def set_state(self, states: list[Any], indices: list[int]) -> None:
        """Put these envs into the states."""
        for index, (total, generator, ended) in zip(indices, states, strict=True):
            env: Any = self.envs[index].unwrapped
            env.sum, self._autoreset_envs[index] = total, ended
            env.np_random.bit_generator.state = generator
