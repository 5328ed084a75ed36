"""vecenvs.compat.ray_env_wrapper: what its users write."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from ray_session import OPTIONS, no_leaks, ray_session  # noqa: F401

from vecenvs.compat.ray_env_wrapper import WrapperRayVecEnv
from vecenvs.vec_env import VecEnv

pytestmark = pytest.mark.usefixtures("ray_session")
WORKERS, EACH = 2, 2


def make_and_seed(seed: int) -> gym.Env[Any, Any]:
    env = gym.make("CartPole-v1")
    env = gym.wrappers.RecordEpisodeStatistics(env)
    env.seed(seed)  # the old gym's way
    return env


def make_and_reset(seed: int) -> gym.Env[Any, Any]:
    env = gym.make("CartPole-v1")
    env.reset(seed=seed)
    return env


def test_as_its_users_write_it() -> None:
    vec_env = WrapperRayVecEnv(make_and_seed, WORKERS, EACH, actor_options=OPTIONS)
    assert isinstance(vec_env, VecEnv)
    obs = vec_env.reset()
    assert obs.shape == (WORKERS * EACH, 4)
    np.testing.assert_array_equal(obs, [gym.make("CartPole-v1").reset(seed=seed)[0] for seed in range(4)])
    obs, rewards, dones, infos = vec_env.step([vec_env.action_space.sample() for _ in range(WORKERS * EACH)])
    assert obs.shape == (4, 4)
    assert obs.dtype == np.float32
    assert rewards.dtype == np.float32
    assert dones.dtype == bool
    assert isinstance(infos, list)
    assert not np.array_equal(vec_env.reset(), obs), "a second reset"
    assert len({tuple(row) for row in vec_env.reset()}) == 4, "no two envs alike"
    assert vec_env.get_attr("spec")[3].id == "CartPole-v1"
    vec_env.set_attr("tag", 5, indices=[1])
    assert vec_env.get_attr("tag", [1]) == [5]
    assert vec_env.env_is_wrapped(gym.wrappers.RecordEpisodeStatistics) == [True] * 4
    for _ in range(60):  # episodes end and begin by themselves
        infos = vec_env.step([0] * 4)[3]
    vec_env.close()
    assert not hasattr(gym.Env, "seed")


def test_seeding_as_gymnasium_does() -> None:
    with WrapperRayVecEnv(make_and_reset, 1, 2, actor_options=OPTIONS) as vec_env:
        rows = vec_env.reset()
        assert not np.array_equal(rows[0], rows[1])


@pytest.mark.parametrize(("workers", "each"), [(0, 1), (1, 0)])
def test_wrong_numbers(workers: int, each: int) -> None:
    with pytest.raises(ValueError, match="number_of_workers must be at least 1|envs_per_worker must be at least 1"):
        WrapperRayVecEnv(make_and_reset, workers, each)


def test_no_function() -> None:
    with pytest.raises(TypeError, match="make_and_seed"):
        WrapperRayVecEnv(gym.make("CartPole-v1"), 1, 1)  # type: ignore[arg-type]
