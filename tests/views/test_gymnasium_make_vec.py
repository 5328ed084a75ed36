"""gym.make_vec over vecenvs: vectorization_mode="vector_entry_point"."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.envs.registration import VectorizeMode
from gymnasium.vector import AutoresetMode
from gymnasium_parity import assert_parity

from vecenvs import DummyVecEnv, SubprocVecEnv
from vecenvs.views import make_gymnasium_vec, use_for_make_vec

ENTRY_POINT = "vecenvs.views:make_gymnasium_vec"
MODE = "vector_entry_point"


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give the test a registry of its own."""
    monkeypatch.setattr("gymnasium.envs.registration.registry", dict(gym.envs.registration.registry))
    before = gym.spec("CartPole-v1").vector_entry_point
    yield
    gym.spec("CartPole-v1").vector_entry_point = before


@pytest.mark.parametrize("num_envs", [1, 3])
def test_an_id_of_its_own(num_envs: int) -> None:
    gym.register("Ours-v0", vector_entry_point=ENTRY_POINT, kwargs={"env_id": "CartPole-v1", "max_episode_steps": 15})
    env = gym.make_vec("Ours-v0", num_envs=num_envs, vectorization_mode=MODE)
    assert isinstance(env.vec, DummyVecEnv if num_envs == 1 else SubprocVecEnv)  # type: ignore[attr-defined]
    assert env.spec is not None
    assert env.spec.id == "Ours-v0"
    assert repr(env) == f"GymnasiumView(Ours-v0, num_envs={num_envs})"
    theirs = gym.make_vec("CartPole-v1", num_envs=num_envs, vectorization_mode="sync", max_episode_steps=15)
    assert assert_parity(env, theirs, steps=40) > 0


@pytest.mark.parametrize("autoreset_mode", ["NextStep", AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_in_place_of_the_ids_own_entry_point(autoreset_mode: Any) -> None:
    use_for_make_vec("CartPole-v1", backend="dummy", autoreset_mode=autoreset_mode)
    env = gym.make_vec(
        "CartPole-v1", num_envs=2, vectorization_mode=VectorizeMode.VECTOR_ENTRY_POINT, sutton_barto_reward=True
    )
    assert isinstance(env.vec, DummyVecEnv)  # type: ignore[attr-defined]
    theirs = gym.make_vec(
        "CartPole-v1",
        num_envs=2,
        vectorization_mode="sync",
        vector_kwargs={"autoreset_mode": AutoresetMode(autoreset_mode)},
        sutton_barto_reward=True,
    )
    assert_parity(env, theirs, steps=60)


def test_the_spec_makes_it_again() -> None:
    use_for_make_vec("CartPole-v1", vec_kwargs={"num_workers": 2, "start_method": "fork"})
    env = gym.make_vec("CartPole-v1", num_envs=3)
    again = gym.make_vec(env.spec)  # type: ignore[arg-type]
    assert again.num_envs == 3
    assert again.vec.stats()["num_workers"] == 2  # type: ignore[attr-defined]
    assert_parity(env, again)


def test_an_env_registered_at_run_time_reaches_fresh_workers() -> None:
    gym.register("Late-v0", entry_point="gymnasium.envs.classic_control.pendulum:PendulumEnv", max_episode_steps=9)
    use_for_make_vec("Late-v0", backend="subproc", vec_kwargs={"start_method": "spawn", "num_workers": 1})
    env = gym.make_vec("Late-v0", num_envs=2, g=9.0)
    assert assert_parity(env, gym.make_vec("Late-v0", num_envs=2, vectorization_mode="sync", g=9.0)) == 4


def test_without_env_id() -> None:
    gym.register("Bare-v0", vector_entry_point=ENTRY_POINT)
    with pytest.raises(TypeError, match="env_id"):
        gym.make_vec("Bare-v0", num_envs=2)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"autoreset_mode": "same_step"}, "autoreset_mode 'same_step' is none of 'NextStep', 'SameStep', 'Disabled'"),
        ({"autoreset_mode": None}, "autoreset_mode None is none of"),
        ({"vec_kwargs": {"autoreset": "same_step"}}, "'autoreset', which is told by autoreset_mode here"),
        ({"vec_kwargs": {"env_fns": []}}, "'env_fns', which is told by num_envs and env_id here"),
        ({"vec_kwargs": 3}, "vec_kwargs must be a mapping of names to values, not 3"),
    ],
)
def test_wrong_arguments(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises((TypeError, ValueError), match=says):
        make_gymnasium_vec(2, env_id="CartPole-v1", backend="dummy", **wrong)
