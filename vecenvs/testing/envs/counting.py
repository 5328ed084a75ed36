"""An env whose rows identify their env, episode and step."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

Observation = NDArray[np.int64]


class CountingEnv(gymnasium.Env[Observation, Any]):
    """Count steps and episodes; nothing in it is random.

    Observation int64 (3,): [tag, episode, t]; episodes count from 1, t from 0. Reward: t + tag / 8, exact in float32.

    Args:
        tag: a number, to tell envs apart.
        length: steps per episode.
        ends: the flags of the last step: "terminated", "truncated" or "both".
        closed_file: a file to which `close` appends the tag and a newline; None for no file.

    Attributes:
        seeds: the seed of every reset.
        options: the options of every reset.
        actions: the action of every step.
        kinds: the type and dtype of each action, such as "int64:int64".
    """

    def __init__(
        self, tag: int = 0, length: int = 5, *, ends: str = "terminated", closed_file: Path | None = None
    ) -> None:
        self.observation_space = Box(-1, 1_000_000, (3,), np.int64)
        self.action_space = Discrete(3)
        self.tag, self.length, self.ends = tag, length, ends
        self.episode = self.t = self.steps = 0
        self.seeds: list[int | None] = []
        self.options: list[dict[str, Any] | None] = []
        self.actions: list[Any] = []
        self.kinds: list[str] = []
        self.closed_file = closed_file

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.options.append(options)
        self.episode += 1
        self.t = 0
        return self._observe(), {"tag": self.tag, "episode": self.episode}

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        self.actions.append(action)
        self.kinds.append(f"{type(action).__name__}:{getattr(action, 'dtype', None)}")
        self.t += 1
        self.steps += 1
        over = self.t >= self.length
        terminated, truncated = over and self.ends != "truncated", over and self.ends != "terminated"
        return self._observe(), self.t + self.tag / 8, terminated, truncated, {"tag": self.tag, "t": self.t}

    def close(self) -> None:
        if self.closed_file is not None:
            with self.closed_file.open("a") as file:
                file.write(f"{self.tag}\n")

    def add(self, amount: int, *, times: int = 1) -> int:
        """Compute a number: a method for `env_method`.

        Args:
            amount: a number.
            times: another.

        Returns:
            tag + amount * times.
        """
        return self.tag + amount * times

    def _observe(self) -> Observation:
        return np.array([self.tag, self.episode, self.t])


class TriggeredEnv(CountingEnv):
    """Do something at one of its calls, before it does what CountingEnv does: a subclass says what, in `_act`.

    Args:
        tag: a number, to tell envs apart.
        where: the call: "init", "reset", "step", "method" (`add`), "close"; any other word for none.
        at: at which of these calls, counted from 1.
        length: steps per episode.
    """

    def __init__(self, tag: int, where: str, at: int, length: int = 5) -> None:
        super().__init__(tag, length)
        self.where, self.at = where, at
        self._calls = 0
        self._begin("init")

    def reset(self, **given: Any) -> tuple[Observation, dict[str, Any]]:
        self._begin("reset")
        return super().reset(**given)

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        self._begin("step")
        return super().step(action)

    def close(self) -> None:
        self._begin("close")
        super().close()

    def add(self, amount: int, *, times: int = 1) -> int:
        self._begin("method")
        return super().add(amount, times=times)

    def _begin(self, call: str) -> None:
        if call == self.where:
            self._calls += 1
            if self._calls == self.at:
                self._act()

    def _act(self) -> None:
        raise NotImplementedError


def counting_fns(num_envs: int, **kwargs: Any) -> list[Callable[[], CountingEnv]]:
    """Make env functions of CountingEnvs.

    Args:
        num_envs: their number. Env i has the tag i.
        **kwargs: further arguments of CountingEnv.

    Returns:
        The functions, a list.
    """
    return [functools.partial(CountingEnv, tag, **kwargs) for tag in range(num_envs)]


def pid_of(_: Any) -> int:
    """Return the process of an env: for a call with a time limit, as workers have this module already."""
    return os.getpid()
