"""Wrappers and views over batched envs work on whole arrays: dicts are made for ended episodes alone."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import DictInfoToList

from vecenvs import Batched, DummyVecEnv, VecEnv, VecEnvWrapper, VecFrameStack, VecMonitor, VecNormalize, as_gymnasium
from vecenvs.batch.lazy_infos import LazyInfos
from vecenvs.errors import EnvError
from vecenvs.testing.compare import assert_same
from vecenvs.testing.envs import CountingEnv, SampledEnv
from vecenvs.testing.envs.batches import ArrayBatch
from vecenvs.vec_env import StepReturn
from vecenvs.wrappers import load_results

N = 16


def wrapped(vec: VecEnv) -> VecEnv:
    return VecFrameStack(VecNormalize(VecMonitor(vec)), 3)


def native() -> Any:
    return gym.make_vec("CartPole-v1", num_envs=N, vectorization_mode="vector_entry_point")


def pole() -> Any:
    return gym.make("CartPole-v1", max_episode_steps=9)


def test_a_plain_step_makes_no_dicts() -> None:
    vec = wrapped(DummyVecEnv([Batched(native, N)], autoreset="next_step"))
    envs = as_gymnasium(vec)
    seen: list[LazyInfos] = []
    step_wait = vec.step_wait

    def watched(timeout: float | None = None) -> Any:
        rows = step_wait(timeout)
        assert isinstance(rows[3], LazyInfos)
        seen.append(rows[3])
        return rows

    vec.step_wait = watched  # type: ignore[method-assign]
    envs.reset(seed=0)
    ended = 0
    for _ in range(60):
        _, _, terminated, truncated, infos = envs.step(np.ones(N, np.int64))
        over = set(np.flatnonzero(terminated | truncated).tolist())
        assert set(seen[-1].materialized) == over  # VecMonitor writes info["episode"]
        assert set(np.flatnonzero(infos.get("_episode", np.zeros(N))).tolist()) == over
        ended += len(over)
    assert ended > N
    envs.close()


@pytest.mark.parametrize("mode", ["same_step", "next_step"])
def test_infos_are_those_of_plain_envs(mode: str) -> None:
    declared = {"same_step": AutoresetMode.SAME_STEP, "next_step": AutoresetMode.NEXT_STEP}[mode]
    batched = Batched(functools.partial(SyncVectorEnv, [pole] * N, autoreset_mode=declared), N)
    one = as_gymnasium(wrapped(DummyVecEnv([batched], autoreset=mode)))
    other = as_gymnasium(wrapped(DummyVecEnv([pole] * N, autoreset=mode)))
    assert_same(one.reset(seed=3)[0], other.reset(seed=3)[0])
    rng = np.random.default_rng(0)
    for _ in range(30):
        actions = rng.integers(2, size=N)
        mine, theirs = one.step(actions), other.step(actions)
        for infos in (mine[4], theirs[4]):
            for entry in (infos, infos.get("final_info", {})):
                entry.get("episode", {}).pop("t", None)  # seconds
        assert_same(list(mine), list(theirs))
    one.close()
    other.close()


class ForgettingBatch(ArrayBatch):
    """A batched env that resets ended episodes in the same step, and keeps nothing of them, as simulators do."""

    def step(self, actions: Any) -> tuple[Any, ...]:
        return *super().step(actions)[:4], {}


def test_wrappers_around_envs_without_last_observations() -> None:
    fns = [functools.partial(SampledEnv, Box(-1, 1, (2,)), Discrete(2))] * 4
    forgetful, other = (
        wrapped(DummyVecEnv([Batched(functools.partial(kind, fns), 4)])) for kind in (ForgettingBatch, ArrayBatch)
    )
    with forgetful, other:
        assert_same(forgetful.reset(seed=3), other.reset(seed=3))
        ends = 0
        for _ in range(30):
            *rows, infos = forgetful.step([1] * 4)
            *expected, theirs = other.step([1] * 4)
            assert_same(rows, expected)
            assert not any("terminal_observation" in info for info in infos)
            ends += sum("terminal_observation" in info for info in theirs)
        assert ends


class OldFormBatch(ArrayBatch):
    """The last infos as Gymnasium had them before 1.0: an array of objects, a dict for each ended env."""

    def step(self, actions: Any) -> tuple[Any, ...]:
        *rows, infos = super().step(actions)
        if "final_info" in infos:
            last = infos.pop("final_info")
            infos["final_info"] = np.full(self.num_envs, None, object)
            for i in np.flatnonzero(infos["_final_info"]):
                infos["final_info"][i] = {key: column[i] for key, column in last.items() if key[0] != "_"}
        return *rows, infos


class UnmaskedBatch(ArrayBatch):
    """The last infos without masks: those of other rows mean nothing."""

    def step(self, actions: Any) -> tuple[Any, ...]:
        *rows, infos = super().step(actions)
        if infos.pop("_final_info", None) is not None:
            infos["final_info"] = {"t": infos["final_info"]["t"], "over": np.ones(self.num_envs)}
        return *rows, infos


class ListBatch(ArrayBatch):
    """Infos as Gymnasium's DictInfoToList makes them."""

    def step(self, actions: Any) -> tuple[Any, ...]:
        listed = DictInfoToList(self._envs).step(actions)
        return tuple(listed)


def listed(fns: Any) -> Any:
    return DictInfoToList(SyncVectorEnv(fns, autoreset_mode=AutoresetMode.SAME_STEP))


@pytest.mark.parametrize("kind", [OldFormBatch, UnmaskedBatch, ListBatch, listed])
def test_every_form_of_last_infos(kind: Any) -> None:
    fns = [functools.partial(CountingEnv, tag, 1 + tag) for tag in range(3)]
    with DummyVecEnv([Batched(functools.partial(kind, fns), 3)]) as vec, DummyVecEnv(fns) as single:
        vec.reset(seed=1)
        single.reset(seed=1)
        for _ in range(7):
            *rows, infos = vec.step([0] * 3)
            *expected, theirs = single.step([0] * 3)
            assert_same(rows, expected)
            for mine, other in zip(infos, theirs, strict=True):
                assert_same(mine.get("terminal_observation"), other.get("terminal_observation"))
                assert mine["t"] == other["t"]
                assert "terminal_observation" in mine or "over" not in mine


class Doubled(VecEnvWrapper):
    """Rewards are twice as large, and with `cut` all episodes end."""

    cut = False

    def step_wait(self, timeout: float | None = None) -> StepReturn:
        obs, rewards, dones, infos = self.venv.step_wait(timeout)
        return obs, rewards * 2, dones | self.cut, infos

    def reset(self, *args: Any, **kwargs: Any) -> Any:
        return self.venv.reset(*args, **kwargs)


class Cut(Doubled):
    cut = True


def test_what_a_wrapper_inside_changes() -> None:
    """Rewards pass; ends that nothing but `dones` shows are refused."""
    fns = [functools.partial(CountingEnv, tag) for tag in range(2)]
    with DummyVecEnv([Batched(lambda: Doubled(DummyVecEnv(fns)), 2)]) as vec, DummyVecEnv(fns) as bare:
        vec.reset()
        bare.reset()
        assert vec.step([0, 0])[1].tolist() == (bare.step([0, 0])[1] * 2).tolist()
    with DummyVecEnv([Batched(lambda: Cut(DummyVecEnv(fns)), 2)]) as vec:
        vec.reset()
        with pytest.raises(EnvError, match="a wrapper changes dones.* define the properties terminated and truncated"):
            vec.step([0, 0])


class OddFlags(ArrayBatch):
    """A flag is 7."""

    def step(self, actions: Any) -> tuple[Any, ...]:
        obs, rewards, terminated, truncated, infos = super().step(actions)
        return obs, rewards, terminated.astype(int) + 7, truncated, infos


def test_flags_are_true_or_false() -> None:
    with DummyVecEnv([Batched(functools.partial(OddFlags, [CountingEnv] * 2), 2)]) as vec:
        vec.reset()
        with pytest.raises(EnvError, match="terminated must be True or False, not 7"):
            vec.step([0] * 2)


class RaisesOnce(CountingEnv):
    """Raises in the third step of its first episode."""

    def step(self, action: Any) -> Any:
        if self.episode == 1 and self.t == 2:
            raise ValueError("now and then")
        return super().step(action)


@pytest.mark.parametrize("mode", ["same_step", "next_step"])
def test_the_row_of_an_error_is_no_step(mode: str, tmp_path: Path) -> None:
    engine = DummyVecEnv([functools.partial(RaisesOnce, 0, 4)], autoreset=mode, on_error="reset")
    normalized = VecNormalize(engine, norm_obs=False)
    with VecFrameStack(VecMonitor(normalized, tmp_path / "m", info_keywords=("tag",)), 3) as vec:
        vec.reset()
        rows = [vec.step([0]) for _ in range(8)]
        ended = [(obs, info) for obs, _, dones, (info,) in rows if dones[0]]
        assert "episode" not in ended[0][1]
        frames = [info["terminal_observation"].reshape(3, 3)[:, 2].tolist() for _, info in ended]
        assert frames == [[0, 1, 2], [2, 3, 4]]
        assert ended[1][1]["episode"]["l"] == 4
        assert normalized.ret_rms.count == pytest.approx(6 if mode == "next_step" else 7, abs=0.1)
    assert load_results(str(tmp_path / "m.monitor.csv"))["l"].tolist() == [4]
