"""What SubprocVecEnv can be told about where its envs are stepped."""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

import pytest

from vecenvs import SubprocVecEnv
from vecenvs.testing.envs import CountingEnv

FNS = [functools.partial(CountingEnv, i) for i in range(7)]


def cpus_of(env: Any) -> set[int]:
    return set(os.sched_getaffinity(0))


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
