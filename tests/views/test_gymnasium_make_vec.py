"""gym.make_vec over vecenvs."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import VectorizeMode
from gymnasium.error import NameNotFound
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium_parity import assert_parity

from vecenvs import DummyVecEnv, SubprocVecEnv
from vecenvs.testing.compare import assert_same
from vecenvs.views import make_gymnasium_vec, use_for_make_vec
from vecenvs.views.gymnasium.view import GymnasiumView

ENTRY_POINT = "vecenvs.views:make_gymnasium_vec"
MODE = "vector_entry_point"


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Use a separate registry for the test."""
    monkeypatch.setattr("gymnasium.envs.registration.registry", dict(gym.envs.registration.registry))
    for module in (gym, gym.envs.registration):
        monkeypatch.setattr(module, "make_vec", module.make_vec)  # which the test may change
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
    fn = functools.partial(gym.make, "CartPole-v1", sutton_barto_reward=True)
    assert_parity(env, SyncVectorEnv([fn] * 2, autoreset_mode=autoreset_mode), steps=60)


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
    assert assert_parity(env, SyncVectorEnv([functools.partial(gym.make, "Late-v0", g=9.0)] * 2)) == 4


@pytest.mark.parametrize("mode", [None, "vector_entry_point", "sync", "async", VectorizeMode.ASYNC])
def test_what_programs_give_make_vec(mode: Any) -> None:
    """No vectorization mode uses Gymnasium's own classes; wrappers and vector_kwargs apply."""
    use_for_make_vec("CartPole-v1", vec_kwargs={"info_attrs": ["state"]})
    vector_kwargs = {"autoreset_mode": "SameStep", "copy": False}
    wrappers = [gym.wrappers.FlattenObservation, functools.partial(gym.wrappers.TransformReward, func=negative)]
    env = gym.make_vec("CartPole-v1", 2, mode, vector_kwargs, wrappers, sutton_barto_reward=True)
    assert isinstance(env, GymnasiumView)
    assert isinstance(env.vec, DummyVecEnv if mode == "sync" else SubprocVecEnv)
    assert env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert env.vec.copy is False
    theirs = SyncVectorEnv([wrapped] * 2, autoreset_mode="SameStep")
    mine, other = env.reset(seed=1), theirs.reset(seed=1)
    assert_same(mine[0], other[0])
    assert list(mine[1]) == ["state", "_state"]
    for _ in range(30):
        assert_same(env.step(np.array([0, 1]))[:4], theirs.step(np.array([0, 1]))[:4])
    again = gym.make_vec(env.spec)  # type: ignore[arg-type]
    assert type(again.vec) is type(env.vec)  # type: ignore[attr-defined]
    assert again.vec.copy is False  # type: ignore[attr-defined]
    assert again.metadata == env.metadata
    assert_same(again.reset(seed=1)[0], mine[0])
    for one in (env, theirs, again):
        one.close()


def negative(reward: Any) -> Any:
    return -reward


def wrapped() -> Any:
    env = gym.make("CartPole-v1", sutton_barto_reward=True)
    return gym.wrappers.TransformReward(gym.wrappers.FlattenObservation(env), negative)


@pytest.mark.parametrize("mode", [None, "async"])
@pytest.mark.parametrize("name", ["CartPole-v1", "CartPole", "gymnasium:CartPole-v1"])
@pytest.mark.filterwarnings("ignore:.*Using the latest versioned environment")
def test_ways_to_name_the_id(name: str, mode: str | None) -> None:
    use_for_make_vec("CartPole-v1", backend="dummy")
    env = gym.make_vec(name, num_envs=2, vectorization_mode=mode)
    assert isinstance(env, GymnasiumView)
    assert isinstance(env.vec, DummyVecEnv), "the backend that was asked for"
    env.close()


def test_other_ids_are_gymnasiums() -> None:
    use_for_make_vec("CartPole-v1")
    own = gym.envs.registration.make_vec.__wrapped__  # type: ignore[attr-defined]
    for args in (("Acrobot-v1", 2, "sync"), ("Acrobot-v1", 2, None, {"copy": False}), (gym.spec("Acrobot-v1"), 2)):
        env = gym.make_vec(*args)
        assert type(env) is SyncVectorEnv
        env.close()
    for wrong in (("Nothing-v0",), ("no.such.module:Env-v0",), (5,), ("Acrobot-v1", 2, "no")):
        raised = []
        for make_vec in (gym.make_vec, own):
            with pytest.raises((gym.error.Error, ImportError, ValueError)) as caught:
                make_vec(*wrong)
            raised.append((type(caught.value), str(caught.value)))
        assert raised[0] == raised[1]


def test_arguments_that_only_gymnasiums_classes_have() -> None:
    use_for_make_vec("CartPole-v1")
    for name, hint in (("shared_memory", ""), ("context", r" \(did you mean 'start_method'\?\)")):
        with pytest.raises(TypeError, match=f"SubprocVecEnv has no argument '{name}'{hint}"):
            gym.make_vec("CartPole-v1", 2, "async", vector_kwargs={name: None})
    with pytest.raises(ValueError, match="not a valid VectorizeMode"):
        gym.make_vec("CartPole-v1", 2, "no")


class Unmakeable(gym.Env[Any, Any]):
    """A function that fails to make an env."""

    def __init__(self) -> None:
        gym.make("Nothing-v7")


@pytest.mark.parametrize("backend", ["dummy", "subproc"])
def test_what_making_an_env_raises(backend: str) -> None:
    """The exception is the env's own, as with gym.make_vec."""
    gym.register("Unmakeable-v0", Unmakeable)
    wrong: list[dict[str, Any]] = [{"env_id": "Unmakeable-v0"}, {"env_id": "Nothing-v7"}]
    wrong += [{"env_id": "CartPole-v1", "no": 1}, {"env_id": "CartPole-v1", "env_wrappers": [fail]}]
    for given, raised in zip(wrong, (NameNotFound, NameNotFound, TypeError, ZeroDivisionError), strict=True):
        with pytest.raises(raised):
            make_gymnasium_vec(2, backend=backend, **given)


def fail(env: Any) -> Any:
    raise ZeroDivisionError


def test_without_env_id() -> None:
    gym.register("Bare-v0", vector_entry_point=ENTRY_POINT)
    with pytest.raises(TypeError, match="env_id"):
        gym.make_vec("Bare-v0", num_envs=2)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"autoreset_mode": "same_step"}, "autoreset_mode 'same_step' is none of 'NextStep', 'SameStep', 'Disabled'"),
        ({"autoreset_mode": None}, "autoreset_mode None is none of"),
        ({"vec_kwargs": {"autoreset": "same_step"}}, "'autoreset', which is given by autoreset_mode here"),
        ({"vec_kwargs": {"env_fns": []}}, "'env_fns', which is given by num_envs and env_id here"),
        ({"autoreset_mode": np.array(["NextStep", "x"])}, "autoreset_mode .* is none of"),
        ({"num_envs": 2**63}, "num_envs must be at most"),
        ({"env_id": np.array("CartPole-v1")}, "env_id must be the id of a registered env"),
        ({"backend": np.array(["dummy", "x"])}, "unknown backend .*there are dummy"),
        ({"env_wrappers": [3]}, "env_wrappers must be a list of functions that wrap an env"),
        ({"env_wrappers": None}, "env_wrappers must be a list of functions that wrap an env"),
        ({"vec_kwargs": 3}, "vec_kwargs must be a mapping of names to values, not 3"),
    ],
)
def test_wrong_arguments(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises((TypeError, ValueError), match=says):
        make_gymnasium_vec(**{"num_envs": 2, "env_id": "CartPole-v1", "backend": "dummy", **wrong})
