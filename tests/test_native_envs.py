"""`make_vec_env(vectorization=...)`: batched envs by an id's vector_entry_point."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import SyncVectorEnv

from vecenvs import Batched, EnvError, VecMonitor, as_gymnasium, make_vec_env
from vecenvs.testing.envs import SampledEnv


@pytest.mark.parametrize("backend", ["dummy", "subproc"])
def test_an_id_with_batched_envs(backend: str) -> None:
    kwargs: dict[str, Any] = {} if backend == "dummy" else {"num_workers": 2}
    with make_vec_env("CartPole-v1", num_env=7, seed=3, vectorization="native", backend=backend, **kwargs) as vec:
        assert vec.autoreset == "next_step"
        assert vec.num_envs == 7
        first = vec.reset()
        vec.seed(3)
        np.testing.assert_array_equal(vec.reset(), first)
        ends = 0
        for _ in range(60):
            _, rewards, dones, infos = vec.step([1] * 7)
            ends += int(dones.sum())
            assert all("terminal_observation" in infos[k] for k in np.flatnonzero(dones))
            assert set(rewards.tolist()) <= {0.0, 1.0}
        assert ends > 7


def test_it_equals_the_batched_env_itself() -> None:
    bare = gymnasium.make_vec("CartPole-v1", num_envs=5, vectorization_mode="vector_entry_point")
    view = as_gymnasium(make_vec_env("CartPole-v1", num_env=5, vectorization="native", backend="dummy"))
    rng = np.random.default_rng(0)
    np.testing.assert_array_equal(view.reset(seed=4)[0], bare.reset(seed=4)[0])
    for _ in range(80):
        actions = rng.integers(0, 2, 5)
        ours, theirs = view.step(actions), bare.step(actions)
        for mine, other in zip(ours[:4], theirs[:4], strict=True):
            np.testing.assert_array_equal(mine, other)
        assert ours[4] == theirs[4] == {}
    view.close()
    bare.close()


def test_start_index_counts_in_seeds() -> None:
    make = partial(make_vec_env, "CartPole-v1", vectorization="native", backend="dummy")
    with make(num_env=5, seed=3) as vec:
        whole = vec.reset()
    with make(num_env=5, seed=1, start_index=2) as vec:
        np.testing.assert_array_equal(vec.reset(), whole)
    with make(num_env=5, seed=1) as vec:
        assert (vec.reset() != whole).any()


def test_a_monitor_around_batched_envs() -> None:
    with VecMonitor(make_vec_env("CartPole-v1", num_env=4, vectorization="native", backend="dummy")) as vec:
        vec.reset(seed=0)
        episodes = []
        for _ in range(40):
            *_, infos = vec.step([0] * 4)
            episodes += [info["episode"]["l"] for info in infos if "episode" in info]
        assert len(episodes) >= 8
        assert 5 < min(episodes) <= max(episodes) < 20


class PartsVectorEnv(SyncVectorEnv):
    """Batched envs with Dict observations."""

    def __init__(self, num_envs: int, **kwargs: Any) -> None:
        space = spaces.Dict(a=spaces.Discrete(3), b=spaces.Box(0, 1, (2,)))
        super().__init__([partial(SampledEnv, space)] * num_envs)


@pytest.mark.parametrize("how", ["native", "auto"])
def test_dict_observations_are_not_flattened(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = EnvSpec("Parts-v0", vector_entry_point=PartsVectorEnv)
    monkeypatch.setitem(gymnasium.registry, spec.id, spec)
    make = partial(make_vec_env, spec.id, num_env=3, vectorization=how, backend="dummy")
    with pytest.raises(EnvError, match="Parts-v0's batched envs stay dicts: give flatten_dict_observations=False"):
        make()
    with make(flatten_dict_observations=False) as vec:
        assert vec.reset()["b"].shape == (3, 2)


def test_auto_falls_back_to_single_envs() -> None:
    with make_vec_env("Pendulum-v1", num_env=2, vectorization="auto", force_dummy=True) as vec:
        assert vec.autoreset == "same_step"
    with make_vec_env("CartPole-v1", num_env=2, vectorization="auto", force_dummy=True) as vec:
        assert vec.autoreset == "next_step"


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="Pendulum-v1 has no vector_entry_point"):
        make_vec_env("Pendulum-v1", num_env=2, vectorization="native")
    with pytest.raises(ValueError, match="no single envs for wrapper_class"):
        make_vec_env("CartPole-v1", num_env=2, vectorization="native", wrapper_class=lambda env: env)
    for kwargs, message in (
        ({"num_workers": 0}, "num_workers must be at least 1"),
        ({"num_workers": 0, "backend": "subproc"}, "num_workers must be at least 1"),
        ({"num_workers": 3, "backend": "subproc"}, "num_workers=3 for 2 envs"),
        ({"num_workers": 2, "backend": "dummy"}, "backend 'dummy' has no workers: leave num_workers out"),
    ):
        with pytest.raises(ValueError, match=message):
            make_vec_env("CartPole-v1", num_env=2, vectorization="native", **kwargs)
    with pytest.raises(TypeError, match="flatten_dict_observations must be True or False"):
        make_vec_env("CartPole-v1", num_env=2, vectorization="native", flatten_dict_observations=np.arange(3))
    with pytest.raises(ValueError, match="vectorization"):
        make_vec_env("CartPole-v1", num_env=2, vectorization="yes")
    with pytest.raises(ValueError, match="needs an env id"):
        make_vec_env(lambda: None, num_env=2, vectorization="native")
    made = Batched(lambda: None, 2)
    for env_id in (made, [made, made]):
        with pytest.raises(TypeError, match="a list of these to DummyVecEnv"):
            make_vec_env(env_id)
