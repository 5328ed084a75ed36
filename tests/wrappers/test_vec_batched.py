"""Wrappers and views over batched envs work on whole arrays: dicts are made for ended episodes alone."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from vecenvs import Batched, DummyVecEnv, VecEnv, VecFrameStack, VecMonitor, VecNormalize, as_gymnasium
from vecenvs.batch.lazy_infos import LazyInfos
from vecenvs.testing.compare import assert_same
from vecenvs.testing.envs import SampledEnv
from vecenvs.testing.envs.batches import ArrayBatch

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
