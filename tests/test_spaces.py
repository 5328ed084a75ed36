"""Random spaces, nested to any depth: rows equal a plain loop's on every backend."""

from __future__ import annotations

import functools
from collections import OrderedDict
from typing import Any

import gymnasium
import numpy as np
import pytest
from conftest import Configuration
from gymnasium import spaces
from hypothesis import given, settings

from vecenvs.batch.actions import parse_actions
from vecenvs.batch.layout import SpaceLayout
from vecenvs.errors import EnvError
from vecenvs.testing import strategies
from vecenvs.testing.envs import CountingEnv, SampledEnv
from vecenvs.testing.lockstep import Lockstep
from vecenvs.vec_env import VecEnv

matrix = "contract"
pytestmark = pytest.mark.timeout(180)
checked = settings(max_examples=12, derandomize=True, database=None)


def run(configuration: Configuration, observation_space, action_space, steps: int) -> None:
    made: list[VecEnv] = []

    def make(*args, **kwargs) -> VecEnv:
        made.append(configuration.make_vec(*args, **kwargs))
        return made[-1]

    try:
        both = Lockstep(make, [functools.partial(SampledEnv, observation_space, action_space)] * 3)
        both.reset(seed=3)
        both.run(steps)
    finally:
        for vec in made:
            vec.close()


@checked
@given(space=strategies.nested())
def test_observations(configuration: Configuration, space) -> None:
    run(configuration, space, spaces.Discrete(3), steps=6)


@checked
@given(space=strategies.nested())
def test_actions(configuration: Configuration, space) -> None:
    run(configuration, spaces.Discrete(3), space, steps=4)


class Narrow(gymnasium.Env[Any, Any]):
    """Its spaces hold small integers; from step 2 on it gives a large one."""

    observation_space = action_space = spaces.Box(-100, 100, (2, 2), np.int8)
    t = 0

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return np.zeros((2, 2), np.int8), {}

    def step(self, action):
        self.t += 1
        return np.full((2, 2), 7 if self.t < 2 else 300), 0.0, False, False, {"action": action.tolist()}


def test_integers_are_never_cut_to_fit(configuration: Configuration) -> None:
    """Of another dtype they are taken where no value changes; else it is an error, of the caller or of the env."""
    with configuration.make_vec([Narrow] * 2) as vec:
        vec.reset()
        obs, _, _, infos = vec.step(np.full((2, 2, 2), 5))
        assert obs.dtype == np.int8
        assert obs.tolist() == np.full((2, 2, 2), 7).tolist()
        assert infos[1]["action"] == [[5, 5], [5, 5]]
        with pytest.raises(TypeError, match="int8"):
            vec.step(np.full((2, 2, 2), 300))
        with pytest.raises(EnvError, match="int8"):
            vec.step(np.full((2, 2, 2), 5))


class Ordered(CountingEnv):
    """Its observations are dicts of another kind than the space's own, inside."""

    def __init__(self) -> None:
        super().__init__()
        counts = self.observation_space
        self.observation_space: Any = spaces.Dict(a=counts, b=spaces.Dict(c=counts, d=counts))

    def _observe(self) -> Any:
        counts = super()._observe()
        return {"a": counts, "b": OrderedDict(d=counts + 2, c=counts + 1)}


def test_mappings_of_any_kind(configuration: Configuration) -> None:
    with configuration.make_vec([Ordered] * 2) as vec:
        vec.reset()
        obs = vec.step([0, 0])[0]
        assert obs["a"].tolist() == [[0, 1, 1]] * 2
        assert [obs["b"][key].tolist() for key in "cd"] == [[[1, 2, 2]] * 2, [[2, 3, 3]] * 2]


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(3),
        spaces.Box(-1, 1, (2,)),
        spaces.Text(5),
        spaces.Tuple((spaces.Discrete(2),)),
        spaces.Dict(a=spaces.Discrete(2), b=spaces.Box(-1, 1, (2,))),
    ],
    ids=str,
)
def test_no_actions_of_no_env(space: Any) -> None:
    """A list of none has no shape."""
    layout = SpaceLayout(space)
    assert [part.shape[0] for part in parse_actions(layout, [], 0)] == [0] * len(layout.leaves)
