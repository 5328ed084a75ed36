"""as_gymnasium against Gymnasium's own vector envs, step by step, on every kind of space."""

from __future__ import annotations

import copy
import functools
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv, VectorEnv
from gymnasium_parity import (
    MODES,
    InfoEnv,
    ReservedKeysEnv,
    assert_parity,
    asynchronous,
    info_fns,
    ours,
    sampled_fns,
    sync,
)
from hypothesis import given, settings

from vecenvs import DummyVecEnv, VecEnvWrapper
from vecenvs.testing import strategies
from vecenvs.testing.compare import assert_same
from vecenvs.testing.envs import SPACES, BufferReusingEnv, LabelSpace
from vecenvs.testing.envs.batches import batched_fns
from vecenvs.views import as_gymnasium

matrix = "contract"
every_mode = pytest.mark.parametrize("mode", list(MODES))


@pytest.mark.sparse("name")
@every_mode
@pytest.mark.parametrize("name", list(SPACES))
def test_every_space_as_observation_and_action(mode: str, name: str) -> None:
    fns = sampled_fns(SPACES[name], SPACES[name])
    assert assert_parity(as_gymnasium(DummyVecEnv(fns, autoreset=mode)), sync(fns, mode)) > 3


@pytest.mark.parametrize("case", list(SPACES))
def test_every_space_on_other_backends(configuration: Any, case: str) -> None:
    fns = sampled_fns(SPACES[case], SPACES[case])
    assert_parity(ours(configuration, fns, "same_step"), sync(fns, "same_step"), steps=12)


@pytest.mark.sparse
@settings(max_examples=25)
@given(space=strategies.nested(), action_space=strategies.nested())
@every_mode
def test_any_space(mode: str, space: spaces.Space[Any], action_space: spaces.Space[Any]) -> None:
    fns = sampled_fns(space, action_space, n=2)
    try:
        theirs = sync(fns, mode)
        theirs.reset()
        theirs.step(theirs.action_space.sample())
    except Exception:  # spaces that Gymnasium itself cannot batch or sample: those without elements
        return
    assert_parity(as_gymnasium(DummyVecEnv(fns, autoreset=mode)), theirs, steps=8)


@every_mode
@pytest.mark.parametrize("name", ["nested", "uint8"])
def test_equals_async_vector_env(configuration: Any, mode: str, name: str) -> None:
    fns = sampled_fns(SPACES[name])
    assert assert_parity(ours(configuration, fns, mode), asynchronous(fns, mode)) > 3


@pytest.mark.parametrize("space", [LabelSpace(), SPACES["text"]], ids=["custom", "text"])
def test_equals_async_vector_env_without_shared_memory(space: spaces.Space[Any]) -> None:
    fns = sampled_fns(space)
    vec = DummyVecEnv(fns, autoreset="same_step")
    assert_parity(as_gymnasium(vec), asynchronous(fns, "same_step", shared_memory=False))


@every_mode
def test_infos_of_every_kind(configuration: Any, mode: str) -> None:
    assert assert_parity(ours(configuration, info_fns(), mode), sync(info_fns(), mode), seed=[5, None, 7, 8]) > 10


class OddKeysEnv(InfoEnv):
    """An env whose infos have, on random rows, keys that Gymnasium's dict of arrays reserves."""

    VALUES: ClassVar[dict[str, Any]] = {"final_obs": np.ones(2, np.float32), "_final_obs": True, "a": 2}
    VALUES |= {"final_info": {"a": 1}, "_final_info": True, "_a": False, "__a": 3, "nested": {"final_obs": 1, "_a": {}}}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return super().reset(seed=seed, options=options)[0], self._odd()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return *super().step(action)[:4], self._odd()

    def _odd(self) -> dict[str, Any]:
        random = np.random.default_rng([self.tag, self.t, self.episode])
        return {str(key): self.VALUES[key] for key in random.permutation(list(self.VALUES))[: random.integers(4)]}


@every_mode
def test_infos_with_gymnasiums_own_keys(mode: str) -> None:
    fns = [functools.partial(OddKeysEnv, tag) for tag in range(4)]
    assert assert_parity(as_gymnasium(DummyVecEnv(fns, autoreset=mode)), sync(fns, mode), steps=60) > 30


@every_mode
def test_an_envs_own_keys_end_no_episode(mode: str) -> None:
    """Such keys are dropped without an effect."""
    fns = [functools.partial(ReservedKeysEnv, tag) for tag in range(4)]
    view, plain = as_gymnasium(DummyVecEnv(fns, autoreset=mode)), as_gymnasium(DummyVecEnv(info_fns(), autoreset=mode))
    assert_parity(view, plain, steps=30)


@every_mode
def test_infos_as_async_vector_env_builds_them(mode: str) -> None:
    vec = DummyVecEnv(info_fns(), autoreset=mode)
    assert assert_parity(as_gymnasium(vec), asynchronous(info_fns(), mode)) > 10


@every_mode
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1", "Blackjack-v1", "Taxi-v4"])
def test_registered_envs(mode: str, env_id: str) -> None:
    """Envs by gym.make, with time limit, order enforcing and passive checker, have bit-equal rewards."""
    fns = [lambda: gym.make(env_id, max_episode_steps=20)] * 3
    assert_parity(as_gymnasium(DummyVecEnv(fns, autoreset=mode)), sync(fns, mode), steps=60)


@every_mode
def test_registered_envs_on_other_backends(configuration: Any, mode: str) -> None:
    fns = [lambda: gym.make("Pendulum-v1", max_episode_steps=20)] * 3
    assert_parity(ours(configuration, fns, mode), sync(fns, mode), steps=60)


def test_spaces_and_attributes(configuration: Any) -> None:
    fns = [lambda: gym.make("CartPole-v1", render_mode="rgb_array")] * 2
    with configuration.make_vec(fns, autoreset="next_step") as vec:
        mine, theirs = as_gymnasium(vec), sync(fns, "next_step")
        assert isinstance(mine, VectorEnv)
        assert mine.unwrapped is mine
        for name in ("single_observation_space", "single_action_space", "observation_space", "action_space"):
            assert getattr(mine, name) == getattr(theirs, name)
        assert mine.metadata == theirs.metadata
        assert mine.render_mode == theirs.render_mode == "rgb_array"
        assert mine.spec is theirs.spec is None
        assert mine.autoreset_mode is theirs.autoreset_mode
        assert repr(mine) == "GymnasiumView(num_envs=2)"
        mine.reset(seed=0)
        theirs.reset(seed=0)
        assert_same(mine.render(), theirs.render())
        theirs.close()


def test_action_spaces_are_seeded_as_gymnasium_seeds_them(configuration: Any) -> None:
    def make() -> gym.Env[Any, Any]:
        env = gym.make("Pendulum-v1")
        env.action_space.seed(11)
        return env

    mine, theirs = ours(configuration, [make] * 3, "next_step"), sync([make] * 3, "next_step")
    for _ in range(3):
        assert_same(mine.action_space.sample(), theirs.action_space.sample())
    mine.close()
    theirs.close()


def test_the_caller_owns_what_it_gets(configuration: Any) -> None:
    view = ours(configuration, [BufferReusingEnv] * 2, "same_step")
    actions = np.zeros((2, 2), np.float32)
    results = [view.reset(seed=0), *(view.step(actions) for _ in range(6))]
    copies = copy.deepcopy(results)
    for _ in range(3):
        view.step(actions)
    view.reset()
    view.close()
    assert_same(results, copies)


def test_actions_are_taken_in_every_form_gymnasium_takes() -> None:
    fns = sampled_fns(SPACES["uint8"], spaces.Tuple((spaces.Discrete(3), spaces.Box(-1.0, 1.0, (2,), np.float32))))
    mine, theirs = as_gymnasium(DummyVecEnv(fns, autoreset="next_step")), SyncVectorEnv(fns)
    mine.reset(seed=1)
    theirs.reset(seed=1)
    batch = theirs.action_space.sample()
    for actions in (batch, list(batch), (batch[0].tolist(), batch[1])):
        assert_same(mine.step(actions)[0], theirs.step(actions)[0])
    mine.close()
    theirs.close()


def test_info_attrs_come_as_arrays(configuration: Any) -> None:
    view = ours(configuration, info_fns(), "same_step", info_attrs=("t",))
    view.reset(seed=0)
    for _ in range(3):
        infos = view.step(np.zeros(4, np.int64))[4]
    assert infos["t"].tolist() == [0, 3, 3, 3]
    assert infos["_t"].all()
    assert infos["final_info"]["t"].tolist() == [3, 0, 0, 0]
    view.close()


def test_tasks_are_those_of_their_episodes(configuration: Any) -> None:
    view = ours(configuration, info_fns(), "same_step", tasks=lambda slot, number, _: (10 * slot + number, None))
    view.reset()
    for _ in range(3):
        infos = view.step(np.zeros(4, np.int64))[4]
    assert infos["task"].tolist() == [(1, None), None, None, None]
    assert infos["final_info"]["task"].tolist() == [(0, None), None, None, None]
    view.close()


def test_async_autoreset_is_refused() -> None:
    with (
        DummyVecEnv(info_fns(), autoreset="async") as vec,
        pytest.raises(ValueError, match="no autoreset mode 'async'"),
    ):
        as_gymnasium(vec)


class HalvedRewards(VecEnvWrapper):
    """A wrapper that changes rewards without changing rewards64."""

    def step_wait(self, timeout: float | None = None) -> Any:
        obs, rewards, dones, infos = self.venv.step_wait(timeout)
        return obs, rewards / 2, dones, infos


def test_wrappers_of_ours_stay_in_effect() -> None:
    plain = as_gymnasium(DummyVecEnv(info_fns(), autoreset="next_step"))
    passive = as_gymnasium(VecEnvWrapper(DummyVecEnv(info_fns(), autoreset="next_step")))
    halved = as_gymnasium(HalvedRewards(DummyVecEnv(info_fns(), autoreset="next_step")))
    for view in (plain, passive, halved):
        view.reset(seed=0)
    actions = np.zeros(4, np.int64)
    rewards = plain.step(actions)[1]
    assert rewards.dtype == np.float64
    assert_same(passive.step(actions)[1], rewards)
    assert_same(halved.step(actions)[1], (rewards.astype(np.float32) / 2).astype(np.float64))
    for view in (plain, passive, halved):
        view.close()


class OwnInfos(VecEnvWrapper):
    """A wrapper whose infos lack the key that every info of a VecEnv has."""

    def step_wait(self, timeout: float | None = None) -> Any:
        obs, rewards, dones, _ = self.venv.step_wait(timeout)
        return obs, rewards, dones, [{"own": 1}, {}, {"own": 3}, {"own": 4, "more": 5}]


@every_mode
def test_infos_of_a_wrappers_own(mode: str) -> None:
    view = as_gymnasium(OwnInfos(DummyVecEnv(info_fns(), autoreset=mode)))
    view.reset()
    expected = {"own": np.array([1, 0, 3, 4]), "_own": np.array([True, False, True, True])}
    expected |= {"more": np.array([0, 0, 0, 5]), "_more": np.array([False, False, False, True])}
    assert_same(view.step(np.zeros(4, np.int64))[4], expected)
    view.close()


class Notes(VecEnvWrapper):
    """A wrapper that writes into the info of one env."""

    def step_wait(self, timeout: float | None = None) -> Any:
        result = self.venv.step_wait(timeout)
        result[3][2]["noted"] = 7
        return result


@every_mode
def test_what_a_wrapper_has_written_into_infos_of_batched_envs(mode: str) -> None:
    view, plain = (
        as_gymnasium(wrap(DummyVecEnv(batched_fns(info_fns(), (4,), mode), autoreset=mode)))
        for wrap in (Notes, VecEnvWrapper)
    )
    for each in (view, plain):
        each.reset(seed=0)
    for _ in range(2):
        infos, expected = (each.step(np.zeros(4, np.int64))[4] for each in (view, plain))
        expected |= {"noted": np.array([0, 0, 7, 0]), "_noted": np.array([False, False, True, False])}
        assert_same(dict(sorted(infos.items())), dict(sorted(expected.items())))
    view.close()
    plain.close()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ([{"a": 1}] * 2, r"value is tuple, its Dict space has keys \['a', 'b'\]"),
        ({"a": [1, 1]}, r"value has keys \['a'\], its Dict space has keys \['a', 'b'\]"),
        ({"a": [1, 1], "b": [[1], [1]]}, r"value\['b'\] is list, its Dict space has keys \['c'\]"),
    ],
)
def test_actions_that_are_no_batch_of_a_dict_space(wrong: Any, says: str) -> None:
    two = spaces.Discrete(2)
    fns = sampled_fns(SPACES["uint8"], spaces.Dict({"a": two, "b": spaces.Dict({"c": two})}), n=2)
    with DummyVecEnv(fns, autoreset="next_step") as vec:
        view = as_gymnasium(vec)
        view.reset()
        with pytest.raises(ValueError, match=says):
            view.step(wrong)
