"""`Recycle`: its ages, and what speaks against it without any worker."""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from multiprocessing import connection
from typing import Any

import pytest
from bytecodes import interrupted

from vecenvs import DummyVecEnv, NotSteppingError, Recycle, SubprocVecEnv, make_vec_env
from vecenvs.pool.tally import Tally
from vecenvs.testing.envs import CountingEnv, SimulatorEnv
from vecenvs.worker.load import Load


@pytest.mark.parametrize(
    ("ages", "error"),
    [
        ({}, ValueError),
        ({"episodes": 0}, ValueError),
        ({"rss": 0}, ValueError),
        ({"minutes": -1}, ValueError),
        ({"minutes": float("nan")}, ValueError),
        ({"episodes": 1.5}, TypeError),
        ({"rss": "1 GB"}, TypeError),
    ],
)
def test_wrong_ages(ages: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        Recycle(**ages)


def test_the_first_age_counts() -> None:
    ages = Recycle(episodes=10, rss=1e6, minutes=1)
    assert not ages.is_reached(9, 999_999, 59.9)
    assert ages.is_reached(10, None, 0.0)
    assert ages.is_reached(0, 1_000_000, 0.0)
    assert ages.is_reached(0, None, 60.0)


def test_without_worker_processes() -> None:
    with pytest.raises(ValueError, match="leave recycle out"):
        DummyVecEnv([CountingEnv], episode_seeds=True, recycle=Recycle(episodes=1))
    with pytest.raises(ValueError, match="leave recycle out, or use backend='subproc'"):
        make_vec_env(CountingEnv, force_dummy=True, episode_seeds=True, recycle=Recycle(episodes=1))


def test_make_vec_env_takes_a_worker_for_each_env() -> None:
    make_env = functools.partial(SimulatorEnv, length=2)
    with make_vec_env(make_env, num_envs=3, seed=0, episode_seeds=True, recycle=Recycle(episodes=1)) as vec:
        assert vec.stats()["num_workers"] == 3
        vec.reset()
        while not vec.stats()["recycled"]:
            vec.step([0] * 3)


def test_the_share_of_the_caller_is_left_alone(caplog: Any) -> None:
    with caplog.at_level(logging.WARNING, "vecenvs"):
        vec = SubprocVecEnv([CountingEnv] * 3, 3, caller_steps=True, episode_seeds=True, recycle=Recycle(episodes=1))
    vec.close()
    assert "no effect on envs 2, which the calling process steps: leave caller_steps out" in caplog.text


def test_memory_that_has_doubled_is_logged_once(caplog: Any) -> None:
    tally = Tally([range(2), range(2, 4)])
    tally.tell(0, Load(0.0, 0.0, 10_000_000))  # before the first episodes, which may load much
    tally.sums = [0, 0], [2, 0]
    with caplog.at_level(logging.WARNING, "vecenvs"):
        for megabytes in (50, 60, 99, 100, 200):
            tally.tell(0, Load(0.0, 0.0, megabytes * 1_000_000))
    (record,) = caplog.records
    assert "worker 0 with envs 0, 1 has doubled, from 50 to 100 MB" in record.getMessage()
    tally.begin_anew(0)
    with caplog.at_level(logging.WARNING, "vecenvs"):
        tally.tell(0, Load(0.0, 0.0, 40_000_000))
        tally.tell(0, Load(0.0, 0.0, 80_000_000))
    assert len(caplog.records) == 2


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # an interrupt in a __del__
def test_a_start_that_is_cut_off_anywhere() -> None:
    """An exception, as of a Ctrl-C, within the reading of what a successor tells: it takes over all the same."""
    files = {connection.__file__}
    with SubprocVecEnv([CountingEnv], 1, episode_seeds=True, recycle=Recycle(episodes=1)) as vec:
        vec.reset()
        for bytecodes in range(2, 50, 6):
            before, end = vec.stats()["recycled"], time.monotonic() + 20.0
            while vec.stats()["recycled"] == before:
                assert time.monotonic() < end, f"none after {bytecodes} bytecodes"
                if interrupted(lambda: vec.step([0]), bytecodes, files):
                    with contextlib.suppress(NotSteppingError):
                        vec.step_wait()
