"""vecenvs.compat.ray_multiprocess_env: what its users write."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from later import Later
from ray_session import kill, no_leaks, ray_session  # noqa: F401

from vecenvs.compat.ray_multiprocess_env import RayVectorEnv, make_remote_class
from vecenvs.errors import EnvError, WorkerDied
from vecenvs.testing.envs import CountingEnv

pytestmark = pytest.mark.usefixtures("ray_session")
N = 2
ray = Later("ray")


class Holder:
    """What a user writes around an env that exists."""

    def __init__(self) -> None:
        import gymnasium

        self.env = gymnasium.make("CartPole-v1")

    def length(self) -> float:
        """Only the holder has it."""
        return float(self.env.unwrapped.length)


@pytest.fixture
def cartpoles(no_leaks: None) -> Any:  # noqa: F811
    kind = make_remote_class(Holder, "env", type(gym.make("CartPole-v1")))
    actors = [kind.options(num_cpus=0).remote() for _ in range(N)]
    yield actors
    kill(*actors)


def test_an_env_that_exists(cartpoles: Any) -> None:
    batch_env = RayVectorEnv(cartpoles)
    obs = batch_env.reset()
    assert isinstance(obs, list)
    assert [row.shape for row in obs] == [(4,)] * N
    obs, reward, done, info = batch_env.step([1] * N)
    assert all(isinstance(part, tuple) and len(part) == N for part in (obs, reward, done, info))
    assert reward == (1.0,) * N
    assert done == (False,) * N
    assert info == ({"TimeLimit.truncated": False},) * N
    obs[0][:] = 0.0  # the caller's own
    assert ray.get(cartpoles[0].length.remote()) == 0.5


def test_attributes_and_properties(cartpoles: Any) -> None:
    batch_env = RayVectorEnv(cartpoles)
    assert batch_env.action_space == gym.spaces.Discrete(2)
    assert batch_env.observation_space.shape == (4,)
    assert batch_env.spec.id == "CartPole-v1"
    assert batch_env.num_envs == N
    assert batch_env.remote_envs == cartpoles
    ray.get(cartpoles[1].set_attr.remote("tag", 7))
    assert ray.get(cartpoles[1].get_attr.remote("tag")) == 7
    assert ray.get(cartpoles[1].get_attr.remote("unwrapped.gravity")) == 9.8


@pytest.mark.long
def test_attributes_through_wrappers(cartpoles: Any) -> None:
    """What is set reaches the env that has it, not the wrapper around it."""
    actor = cartpoles[0]
    assert ray.get(actor.get_attr.remote("gravity")) == 9.8
    ray.get(actor.set_attr.remote("gravity", 3.5))
    assert ray.get(actor.get_attr.remote("unwrapped.gravity")) == 3.5
    ray.get(actor.set_attr.remote("unwrapped.force_mag", 4.0))
    assert ray.get(actor.get_attr.remote("force_mag")) == 4.0
    ray.get(actor.set_attr.remote("_max_episode_steps", 2))
    ray.get(actor.reset.remote())
    assert [ray.get(actor.step.remote(0))[3] for _ in range(2)] == [False, True]
    with pytest.raises(AttributeError, match="neither CartPoleEnv nor its wrappers have an attribute 'moon'"):
        ray.get(actor.get_attr.remote("moon"))


@pytest.mark.long
def test_pfrl_interface(cartpoles: Any) -> None:
    """Seeds, masks that skip, last observations."""
    batch_env = RayVectorEnv(cartpoles)
    batch_env.seed([3, 4])
    first = batch_env.reset()
    expected = [gym.make("CartPole-v1").reset(seed=seed)[0] for seed in (3, 4)]
    np.testing.assert_array_equal(first, expected)
    obs, *_ = batch_env.step([0, 1])
    again = batch_env.reset(np.array([True, False]))
    np.testing.assert_array_equal(again[0], obs[0])
    assert not np.array_equal(again[1], obs[1])
    np.testing.assert_array_equal(batch_env.reset(mask=[True, True])[1], again[1])
    with pytest.raises(ValueError, match="2 envs"):
        batch_env.step([0])
    with pytest.raises(ValueError, match="2 envs"):
        batch_env.seed([0])
    batch_env.seed(3)
    assert batch_env.reset()[1].tolist() == batch_env.last_obs[0].tolist() == expected[0].tolist()
    with pytest.raises(TypeError, match="seeds must be an int or a sequence of one int per env, not '34'"):
        batch_env.seed("34")
    batch_env.close()


class SimpleEnv:
    """No spaces, no info, int rewards: what a notebook may have."""

    def __init__(self, bad: bool = False) -> None:
        self.number = np.zeros(1, dtype=np.int64)
        self.bad = bad

    def reset(self, start: int = 0) -> Any:
        self.number = np.full(1, start)
        return self.number

    def step(self, action: int) -> Any:
        if self.bad:
            raise ValueError("this one is bad")
        self.number = self.number + action
        return self.number, 0, False, None


@pytest.mark.long
def test_duck_typed_envs_and_subclasses() -> None:
    kind = ray.remote(num_cpus=0)(SimpleEnv)
    actors = [kind.remote(), kind.remote()]

    class More(RayVectorEnv):
        def resets(self) -> list[Any]:
            return ray.get([env.reset.remote(5) for env in self.remote_envs])

    batch_env = More(actors)
    assert batch_env.resets() == [np.array([5])] * 2
    assert batch_env.reset(4) == [np.array([4])] * 2
    obs, reward, done, info = batch_env.step([10] * 2)
    assert obs == (np.array([14]),) * 2
    assert reward == (0, 0)
    assert done == (False, False)
    assert info == (None, None)
    with pytest.raises(AttributeError, match="action_space"):
        _ = batch_env.action_space
    batch_env.close()
    kill(*actors)


@pytest.mark.long
def test_an_env_that_raises_or_dies() -> None:
    kind = ray.remote(num_cpus=0)(SimpleEnv)
    actors = [kind.remote(), kind.remote(bad=True)]
    batch_env = RayVectorEnv(actors)
    batch_env.reset()
    with pytest.raises(EnvError, match="env 1 raised ValueError: this one is bad") as caught:
        batch_env.step([1, 1])
    assert isinstance(caught.value.__cause__, ValueError)
    kill(actors[0])
    with pytest.raises(WorkerDied) as died:
        batch_env.reset()
    assert died.value.indices == (0,)
    kill(actors[1])


@pytest.mark.long
def test_a_class_of_vecenvs_own_envs() -> None:
    class Counting:
        def __init__(self) -> None:
            self.env = CountingEnv(3, length=2)

    actor = make_remote_class(Counting, "env", CountingEnv).options(num_cpus=0).remote()
    batch_env = RayVectorEnv([actor])
    assert batch_env.reset()[0].tolist() == [3, 1, 0]
    batch_env.step([0])
    assert batch_env.step([0])[2] == (True,)
    assert batch_env.reset_infos == [{"tag": 3, "episode": 1}]
    kill(actor)
