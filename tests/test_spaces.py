"""Random spaces, nested to any depth: rows equal a plain loop's on every backend."""

from __future__ import annotations

import functools

import pytest
from conftest import Configuration
from gymnasium import spaces
from hypothesis import HealthCheck, given, settings

from vecenvs.testing import strategies
from vecenvs.testing.envs import SampledEnv
from vecenvs.testing.lockstep import Lockstep
from vecenvs.vec_env import VecEnv

matrix = "fast"
pytestmark = pytest.mark.timeout(180)
checked = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


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
