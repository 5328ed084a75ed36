"""What SubprocVecEnv can be told about where its envs are stepped."""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

import numpy as np
import pytest

from vecenvs import DummyVecEnv, SubprocVecEnv
from vecenvs.testing.envs import CountingEnv

FNS = [functools.partial(CountingEnv, i) for i in range(7)]


def pid_of(env: Any) -> int:
    return os.getpid()


def cpus_of(env: Any) -> set[int]:
    return set(os.sched_getaffinity(0))


@pytest.mark.parametrize(("caller_envs", "num_workers"), [(1, 2), (3, 2), (6, 2), (2, 4), (7, 1)])
def test_the_caller_steps_as_many_as_told(caller_envs: int, num_workers: int) -> None:
    with SubprocVecEnv(FNS, num_workers, "fork", caller_steps=True, caller_envs=caller_envs) as vec:
        pids = vec.call(pid_of, None)
        assert [pid == os.getpid() for pid in pids] == [i >= 7 - caller_envs for i in range(7)]
        assert len(set(pids)) == num_workers
        with DummyVecEnv(FNS) as plain:
            assert (vec.reset(seed=1) == plain.reset(seed=1)).all()
            for _ in range(12):
                for mine, theirs in zip(vec.step([1] * 7), plain.step([1] * 7), strict=True):
                    np.testing.assert_equal(mine, theirs)


@pytest.mark.parametrize(("caller_envs", "num_workers"), [(0, 2), (7, 2), (6, 3), (3, 1)])
def test_every_worker_needs_an_env(caller_envs: int, num_workers: int) -> None:
    with pytest.raises(ValueError, match=f"caller_envs={caller_envs} with 7 envs and num_workers={num_workers}"):
        SubprocVecEnv(FNS, num_workers, "fork", caller_steps=True, caller_envs=caller_envs)


def test_caller_envs_needs_caller_steps() -> None:
    with pytest.raises(ValueError, match="give caller_steps=True"):
        SubprocVecEnv(FNS, 2, "fork", caller_envs=2)


if sys.platform == "linux":

    @pytest.mark.parametrize("start_method", ["fork", "spawn"])
    def test_pinned_workers_have_a_cpu_each_and_the_caller_keeps_its_own(start_method: str) -> None:
        allowed = os.sched_getaffinity(0)
        with SubprocVecEnv(FNS, min(2, len(allowed)), start_method, pin_workers=True) as vec:
            found = {frozenset(cpus) for cpus in vec.call(cpus_of, None)}
            assert len(found) == vec.stats()["num_workers"]
            assert all(len(cpus) == 1 and cpus <= allowed for cpus in found)
        assert os.sched_getaffinity(0) == allowed

    def test_more_pinned_workers_than_cpus() -> None:
        too_many = len(os.sched_getaffinity(0)) + 1
        with pytest.raises(ValueError, match="use fewer workers"):
            SubprocVecEnv(FNS[:1] * too_many, too_many, "fork", pin_workers=True)
