"""Idioms of programs for Gymnasium's own vector envs, with as_gymnasium and SyncVectorEnv."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.vector import SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space
from gymnasium.wrappers.vector import VectorizeTransformObservation
from gymnasium_parity import MODES, assert_parity, ours, sync
from upstream_envs import Drawing, LooksForSeed, Louder, SeedOfItsOwn

from vecenvs import DummyVecEnv
from vecenvs.errors import EnvError
from vecenvs.testing.compare import assert_same
from vecenvs.testing.envs import SPACES, CountingEnv, SampledEnv
from vecenvs.views import as_gymnasium, as_sb3
from vecenvs.wrappers import VecMonitor, VecNormalize

matrix = "contract"


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
@pytest.mark.parametrize("env", [LooksForSeed, SeedOfItsOwn])
def test_envs_that_look_for_the_argument_seed(configuration: Any, mode: str, env: Any) -> None:
    """An autoreset passes no seed: seeded runs repeat, but their episodes differ."""
    assert assert_parity(ours(configuration, [env] * 3, mode), sync([env] * 3, mode)) > 5


@pytest.mark.parametrize("mode", list(MODES))
def test_envs_exchanged_in_mid_episode(mode: str) -> None:
    """Changes act at once: a replaced env, a replaced list, a patched step."""
    fns = [functools.partial(gym.make, "CartPole-v1") for _ in range(3)]
    told: list[Any] = []
    for env in (as_gymnasium(DummyVecEnv(fns, autoreset=mode)), sync(fns, mode)):
        envs: Any = env
        envs.reset(seed=1)
        actions = np.zeros(3, np.int64)
        rewards = [envs.step(actions)[1].tolist()]
        envs.envs[1] = Louder(envs.envs[1])
        rewards.append(envs.step(actions)[1].tolist())
        envs.envs[2].step = Louder(gym.make("CartPole-v1")).step
        envs.envs[2].step.__self__.reset()
        rewards.append(envs.step(actions)[1].tolist())
        envs.envs = [Louder(one) for one in envs.envs]
        rewards.append(envs.step(actions)[1].tolist())
        told.append(rewards)
        envs.close()
    assert told[0] == told[1] == [[1, 1, 1], [1, 101, 1], [1, 101, 101], [101, 201, 201]]


def test_a_new_env_in_an_olds_place_is_what_info_attrs_read() -> None:
    with DummyVecEnv([functools.partial(CountingEnv, tag) for tag in range(2)], info_attrs=["tag"]) as vec:
        vec.reset()
        vec.step([0, 0])
        other = CountingEnv(7)
        other.reset()
        vec.envs[1] = other
        obs, _, _, infos = vec.step([0, 0])
        assert obs[:, 0].tolist() == [0, 7] == [info["tag"] for info in infos]
        assert vec.info_array("tag").tolist() == [0, 7]
        vec.reset()
        assert vec.info_array("tag").tolist() == [0, 7]
        assert vec.call(tag_of, None) == [0, 7]


def tag_of(env: Any) -> Any:
    return env.tag


def halved(env: Any) -> VectorizeTransformObservation[Any, Any, Any]:
    """Wrap `env` so that its batches are written to, as by this wrapper if the space stays the same."""
    return VectorizeTransformObservation(
        env, gym.wrappers.TransformObservation, func=lambda obs: obs / 2, observation_space=None
    )


@pytest.mark.parametrize("space", [spaces.Box(0.0, 1.0, (2, 3), np.float32), spaces.Box(0.0, 1.0, (4,), np.float32)])
def test_masked_resets_after_the_rows_were_written_into(configuration: Any, space: Any) -> None:
    """Rows outside the mask are as their envs returned them."""
    fns = [functools.partial(SampledEnv, space) for _ in range(3)]
    mine, theirs = halved(ours(configuration, fns, "disabled")), halved(sync(fns, "disabled"))
    assert assert_parity(mine, theirs) > 5


@pytest.mark.parametrize("name", ["nested", "graph", "objects_inside"])
def test_rows_that_the_caller_spoils(name: str) -> None:
    fns = [functools.partial(SampledEnv, SPACES[name]) for _ in range(3)]
    mine, theirs = as_gymnasium(DummyVecEnv(fns, autoreset="disabled")), sync(fns, "disabled")
    spoil(mine.reset(seed=1)[0])
    theirs.reset(seed=1)
    for i in range(3):
        mask = np.arange(3) == i
        rows = [env.reset(seed=i, options={"reset_mask": mask.copy()})[0] for env in (mine, theirs)]
        assert_same(*rows)
        spoil(rows[0])
    mine.close()
    theirs.close()


def spoil(batch: Any) -> None:
    """Write zeros into all arrays of a batch."""
    if isinstance(batch, dict):
        batch = tuple(batch.values())
    if isinstance(batch, tuple):
        for part in batch:
            spoil(part)
    elif isinstance(batch, np.ndarray) and batch.dtype != object:
        batch[...] = 0


def test_floats_for_integers(configuration: Any) -> None:
    """They are accepted, as by as_sb3."""
    for space, batch in (
        (spaces.Discrete(3), np.array([1, 2])),
        (spaces.MultiDiscrete([3, 3]), np.array([[1, 2], [0, 1]])),
        (spaces.Box(0, 9, (2,), np.int64), np.array([[1, 2], [3, 4]])),
    ):
        env = ours(configuration, [functools.partial(Drawing, actions=space)] * 2, "next_step")
        env.reset()
        for given in (batch, batch.astype(np.float32), batch.astype(np.float64), batch.astype(float).tolist()):
            assert env.step(given)[1].tolist() == batch.reshape(2, -1).sum(1).tolist()
            env.reset()
        with pytest.raises(TypeError, match="which does not hold all of them"):
            env.step(batch + 0.5)
        env.close()


def test_a_number_for_all() -> None:
    for env in (as_gymnasium(DummyVecEnv([Drawing], autoreset="next_step")), SyncVectorEnv([Drawing])):
        env.reset()
        with pytest.raises(TypeError):
            env.step(0)
        env.close()


class Odd(Drawing):
    """An env that returns an invalid row."""

    def __init__(self, odd: str) -> None:
        super().__init__()
        self.odd = odd

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        row = {"obs": obs, "reward": reward, "terminated": terminated}
        obs, reward, terminated = (row | ODD[self.odd]).values()
        return obs, reward, terminated, truncated, info


ODD: dict[str, dict[str, Any]] = {
    "reward None": {"reward": None},
    "reward text": {"reward": "1.5"},
    "terminated None": {"terminated": None},
    "terminated NaN": {"terminated": float("nan")},
    "observation": {"obs": np.full(2, 1e300)},
}


@pytest.mark.parametrize("odd", ODD)
def test_what_is_no_row(configuration: Any, odd: str) -> None:
    """All views raise for it, unlike their libraries. The other envs' rows are not lost."""
    fns = [Drawing, functools.partial(Odd, odd)]
    says = f"env 1 .*{odd.split(maxsplit=1)[0]}"
    for wrap in (lambda vec: vec, as_sb3):
        vec = configuration.make_vec(fns)
        wrap(vec).reset()
        with pytest.raises(EnvError, match=says) as caught:
            wrap(vec).step(np.array([0, 0]))
        assert caught.value.batch is not None
        assert caught.value.batch.indices.tolist() == [0]
        vec.close()
    env = ours(configuration, fns, "next_step")
    with pytest.raises(ResetNeeded):
        env.step(np.array([0, 0]))
    env.reset()
    with pytest.raises((TypeError, ValueError)) as raised:
        env.step(np.array([0, 0]))
    assert isinstance(raised.value.__cause__, EnvError)
    assert odd.split(maxsplit=1)[0] in str(raised.value.__cause__)
    with pytest.raises(ResetNeeded, match="env 1 failed before"):
        env.step(np.array([0, 0]))
    env.close()


def test_by_which_base_class_skrl_knows_a_vector_env() -> None:
    """Skrl's `wrap_env` reads the names of the direct base classes of an env and of `env.unwrapped`."""
    env = as_gymnasium(DummyVecEnv([Drawing], autoreset="next_step"))
    assert VectorEnv in type(env).__bases__
    assert any(str(base).startswith("<class 'gymnasium.") for base in type(env.unwrapped).__bases__)
    assert env.unwrapped is env
    env.close()


def test_envs_whose_bounds_differ(configuration: Any) -> None:
    """The space is as with observation_mode="different"."""
    fns = [functools.partial(Drawing, high=high) for high in (1.0, 2.0, 3.0)]
    theirs = SyncVectorEnv(fns, observation_mode="different")
    mine = ours(configuration, fns, "next_step", observation_mode="different")
    assert mine.single_observation_space == theirs.single_observation_space
    assert_same(mine.observation_space.high, theirs.observation_space.high)
    assert assert_parity(mine, theirs) > 5


def test_spaces_given_as_observation_mode(configuration: Any) -> None:
    """A pair is the space of a batch and that of one env, as in Gymnasium."""
    fns = [functools.partial(Drawing, high=high) for high in (1.0, 2.0, 3.0)]
    single = spaces.Box(-9.0, 9.0, (2,), np.float32)
    mode = batch_space(single, 3), single
    theirs = SyncVectorEnv(fns, observation_mode=mode)
    mine = ours(configuration, fns, "next_step", observation_mode=mode)
    assert mine.single_observation_space is theirs.single_observation_space
    assert mine.observation_space is theirs.observation_space
    assert assert_parity(mine, theirs) > 5


@pytest.mark.parametrize(
    ("mode", "error", "message"),
    [
        ((spaces.Box(0, 1, (1, 3)), spaces.Box(0, 1, (3,))), ValueError, "only bounds may differ"),
        ((spaces.Discrete(3), "same"), TypeError, "the spaces of a batch and of one env"),
        ((spaces.Discrete(3),), TypeError, "the spaces of a batch and of one env"),
        ("other", ValueError, "none of same, different"),
    ],
    ids=str,
)
def test_wrong_observation_modes(mode: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        DummyVecEnv([Drawing], observation_mode=mode)


def test_bounds_that_differ_within_wrappers() -> None:
    """A wrapper that changes observations has one space for all envs."""
    fns = [functools.partial(Drawing, high=high) for high in (1.0, 2.0)]
    for wrap, same in ((VecMonitor, False), (VecNormalize, True)):
        with DummyVecEnv(fns, autoreset="next_step", observation_mode="different") as vec:
            high: Any = as_gymnasium(wrap(vec)).observation_space.high  # type: ignore[attr-defined]
            assert (high[0] == high[1]).all() == same
