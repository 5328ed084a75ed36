"""Trajectories equal those of a plain loop, bit for bit."""

from __future__ import annotations

import functools

import gymnasium
import pytest

from vecenvs.testing.envs import NESTED, CountingEnv, SampledEnv, counting_fns
from vecenvs.testing.lockstep import Lockstep
from vecenvs.testing.oracle import EnvFn
from vecenvs.testing.suite.base import Conformance, Make

NUM_ENVS = 7
"""Not divisible by 2 to 5, so that shards have different sizes."""


def gym_fn(env_id: str, max_episode_steps: int) -> EnvFn:
    """Return an env function of a registered env with short episodes."""
    return functools.partial(gymnasium.make, env_id, max_episode_steps=max_episode_steps, disable_env_checker=True)


WORLDS: dict[str, EnvFn] = {
    "CartPole": gym_fn("CartPole-v1", 12),  # ends both ways
    "Pendulum": gym_fn("Pendulum-v1", 9),
    "HalfCheetah": gym_fn("HalfCheetah-v5", 7),
    "nested": functools.partial(SampledEnv, NESTED, NESTED),
}


class WorldConformance(Conformance):
    """Trajectories of real envs."""

    @pytest.mark.parametrize("world", WORLDS)
    def test_equals_a_plain_loop(self, make: Make, world: str) -> None:
        both = Lockstep(make, [WORLDS[world]] * NUM_ENVS)
        both.reset(seed=123)
        both.run(40)
        both.reset(seed=7)
        both.run(5)
        both.reset()
        both.run(5)


class RowConformance(Conformance):
    """Shapes and types of the results of a step."""

    def test_shapes_and_types_of_a_step(self, make: Make) -> None:
        vec = make(counting_fns(3))
        assert vec.num_envs == 3
        assert vec.observation_space == CountingEnv().observation_space
        assert vec.action_space == CountingEnv().action_space
        vec.reset(seed=0)
        obs, rewards, dones, infos = vec.step([0, 1, 2])
        assert [part.shape for part in (obs, rewards, dones)] == [(3, 3), (3,), (3,)]
        assert [str(part.dtype) for part in (obs, rewards, dones)] == ["int64", "float32", "bool"]
        assert type(infos) is list
        assert [type(info) for info in infos] == [dict] * 3
        assert rewards.flags.writeable
        rewards += 1  # as SB3 does with time limits

    def test_one_env(self, make: Make) -> None:
        both = Lockstep(make, counting_fns(1))
        both.reset(seed=0)
        both.run(12)
