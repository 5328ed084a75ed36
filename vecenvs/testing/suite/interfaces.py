"""Objects that do not have the interface of a single Gymnasium env."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv

from vecenvs.backends.dummy import DummyVecEnv
from vecenvs.errors import EnvError
from vecenvs.testing.envs import CountingEnv
from vecenvs.testing.suite.base import Conformance, Make


class WithinDict(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Return observations as {"counts": ...}."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.observation_space = spaces.Dict({"counts": env.observation_space})

    def observation(self, observation: Any) -> Any:
        return {"counts": observation}


class Bare:
    """An object with `step` and an old Gym space, without the other parts of an env."""

    action_space = "Discrete(2)"

    def step(self, action: Any) -> Any:
        return 0


def make_with(member: str) -> Bare:
    """Make an object that is no env and has another member."""
    made = Bare()
    setattr(made, member, None)
    return made


class OfSeveral(CountingEnv):
    """An object that steps several envs, like a VecEnv of Stable-Baselines3 or baselines."""

    num_envs = 2

    def step_async(self, actions: Any) -> None: ...


class OldGymEnv(CountingEnv):
    """Use the interface of Gym before 0.26 in `old`: "seed", "reset" or "step". Observations have `size` numbers."""

    def __init__(self, tag: int, old: str, size: int) -> None:
        super().__init__(tag)
        self.observation_space: Any = spaces.Box(0, 99, (size,), np.int64)
        if old == "seed":
            self.reset = self._observe  # type: ignore[method-assign, assignment]
        self.old = old

    def reset(self, **given: Any) -> Any:
        obs, info = super().reset(**given)
        return obs if self.old == "reset" else (obs, info)

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        return (obs, reward, terminated or truncated, info) if self.old == "step" else (obs, reward, False, False, info)

    def _observe(self) -> Any:
        return super()._observe()[: self.observation_space.shape[0]]


class NoOptionsEnv(CountingEnv):
    """An env whose `reset` takes only a seed, which is enough for Stable-Baselines3."""

    def reset(self, seed: int | None = None) -> Any:  # type: ignore[override]
        return super().reset(seed=seed)


class Unpacking(CountingEnv):
    """An env with an unpacking error in its own `step`."""

    def step(self, action: Any) -> Any:
        result: Any = super().step(action)
        _, _, _, _, _ = result[:4]


def make_within_dict(make_env: Callable[[], gymnasium.Env[Any, Any]]) -> gymnasium.Env[Any, Any]:
    return WithinDict(make_env())


class InterfaceConformance(Conformance):
    """EnvError for vector envs, for envs of the old Gym and for objects that lack parts of an env."""

    @pytest.mark.parametrize(
        ("given", "way"),
        [
            (functools.partial(gymnasium.make_vec, "CartPole-v1", num_envs=2), "from_gymnasium makes a VecEnv of it"),
            (
                functools.partial(AsyncVectorEnv, [CountingEnv], context="fork"),
                "give vecenvs.SubprocVecEnv the functions",
            ),
            (functools.partial(DummyVecEnv, [CountingEnv]), "it is a VecEnv already"),
            (OfSeveral, "give the functions that make its single envs"),
        ],
        ids=["gymnasium", "processes", "ours", "theirs"],
    )
    def test_a_vector_env_as_an_env(self, make: Make, given: Callable[[], Any], way: str) -> None:
        """The object is closed, with its processes."""
        with pytest.raises(EnvError, match=f"env 1 gave a .*steps several envs at once.*{way}") as caught:
            make([CountingEnv, given, CountingEnv])
        assert caught.value.index == 1

    def test_all_that_an_env_lacks(self, make: Make) -> None:
        """One error names all missing parts."""
        lacks = (
            "a Bare, which is no gymnasium.Env, without 'reset', 'close', 'observation_space' and whose action_space"
        )
        with pytest.raises(EnvError, match=f"env 1 gave {lacks} is a builtins.str") as caught:
            make([CountingEnv, Bare, CountingEnv])
        assert caught.value.index == 1

    @pytest.mark.parametrize(("member", "way"), [("action_spec", "shimmy's Dm"), ("possible_agents", "multi_agent")])
    def test_envs_of_other_interfaces(self, make: Make, member: str, way: str) -> None:
        with pytest.raises(EnvError, match=f"env 1 gave a .*{way}.*it must return a new gymnasium.Env"):
            make([CountingEnv, functools.partial(make_with, member), CountingEnv])

    @pytest.mark.parametrize("wrapped", [False, True])
    @pytest.mark.parametrize("old", ["seed", "reset", "step"])
    def test_envs_of_the_old_gym(self, make: Make, old: str, wrapped: bool) -> None:
        """The error says what to do, whichever call meets the old interface first."""
        size = 3 if wrapped else 2  # a tuple of two looks like (obs, info)
        fns: list[Any] = [functools.partial(OldGymEnv, tag, old, size) for tag in range(2)]
        vec = make([functools.partial(make_within_dict, fn) for fn in fns] if wrapped else fns)
        wanted = r"step\(self, action\) -> \(obs, rew" if old == "step" else r"reset\(self, \*, seed=None, opt"
        with pytest.raises(EnvError, match=f"{wanted}.* write it so, or put shimmy's") as caught:
            vec.reset(seed=0)
            vec.step([0, 0])
        assert [one.index for one in caught.value.errors] == [0, 1]

    def test_an_envs_own_mistake(self, make: Make) -> None:
        """An unpacking error in the env is not reported as the old interface."""
        vec = make([Unpacking])
        vec.reset()
        with pytest.raises(EnvError, match=r"expected 5, got 4") as caught:
            vec.step([0])
        assert "shimmy" not in str(caught.value)

    @pytest.mark.parametrize("mode", ["same_step", "next_step", "async"])
    def test_options_go_to_the_envs_that_are_given_some(self, make: Make, mode: str) -> None:
        vec = make([functools.partial(NoOptionsEnv, tag, 2) for tag in range(2)], autoreset=mode)
        vec.reset(seed=3)
        for _ in range(6):
            vec.step([0, 0])
        assert min(vec.get_attr("episode")) > 1
        with pytest.raises(EnvError, match=r"'options'.* write it so"):
            vec.reset(options={"level": 1})
