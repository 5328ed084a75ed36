"""Envs of other kinds than Gymnasium's single ones: each error names the way to use them here."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from vecenvs import DummyVecEnv, EnvError, make_vec_env

OBS = np.zeros(2, np.float32)


class Objectives(gymnasium.Env[Any, Any]):
    """An env of MO-Gymnasium: its rewards are vectors."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return OBS, {}

    def step(self, action: Any) -> Any:
        return OBS, np.arange(2.0), False, False, {}


class AsyncStep(Objectives):
    async def step(self, action: Any) -> Any:
        return OBS, 0.0, False, False, {}


class AsyncReset(AsyncStep):
    async def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return OBS, {}


class Brax:
    observation_size = 3

    def reset(self, rng: Any) -> None: ...
    def step(self, state: Any, action: Any) -> None: ...


class Gymnax:
    def reset(self, key: Any, params: Any = None) -> None: ...
    def step(self, key: Any, state: Any, action: Any, params: Any = None) -> None: ...
    def observation_space(self, params: Any) -> None: ...


class Jumanji:
    action_spec = None  # dm_env's envs have one, too

    def reset(self, key: Any) -> None: ...
    def step(self, state: Any, action: Any) -> None: ...


class Parallel:
    """An env of PettingZoo."""

    possible_agents = ("a", "b")

    def reset(self, seed: Any = None, options: Any = None) -> None: ...
    def step(self, actions: Any) -> None: ...
    def observation_space(self, agent: Any) -> None: ...
    def action_space(self, agent: Any) -> None: ...


class SB3:
    """A vector env of Stable-Baselines3 or baselines."""

    num_envs = 3
    observation_space, action_space = Objectives.observation_space, Objectives.action_space

    def reset(self) -> None: ...
    def step_async(self, actions: Any) -> None: ...
    def step(self, actions: Any) -> None: ...


@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
@pytest.mark.parametrize("make", [make_vec_env, lambda env: DummyVecEnv([env])], ids=["make_vec_env", "DummyVecEnv"])
@pytest.mark.parametrize(
    ("env", "way"),
    [
        (Objectives, r"LinearReward\(env, weight\)"),
        (AsyncStep, r"need concurrency='asyncio'"),
        (AsyncReset, r"need concurrency='asyncio'"),
        (Brax, r"vecenvs\.Batched\(make, num_envs\)"),
        (Gymnax, r"vecenvs\.Batched\(make, num_envs\)"),
        (Jumanji, r"vecenvs\.Batched\(make, num_envs\)"),
        (Parallel, r"vecenvs\.make_multi_agent"),
        (SB3, r"functions that make its single envs.*vecenvs\.views\.as_sb3"),
    ],
)
def test_errors_name_the_way(env: type, way: str, make: Callable[..., Any]) -> None:
    def play() -> None:
        with make(env) as vec:
            vec.reset()
            vec.step([0])

    with pytest.raises(EnvError, match=way) as caught:
        play()
    del caught
    gc.collect()  # coroutines complain when they are freed
