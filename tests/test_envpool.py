"""EnvPool as batched envs: the rows of EnvPool itself, threads for the worker's cores, seeds, resets of some envs."""

from __future__ import annotations

import functools
import gc
import multiprocessing
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import NO_ENVPOOL, Configuration

from vecenvs import Batched, DummyVecEnv, EnvError, SubprocVecEnv, VecEnv, worker_cores
from vecenvs.cpus import sharing, usable_cores
from vecenvs.views import as_gymnasium

pytestmark = [
    pytest.mark.skipif(NO_ENVPOOL, reason="no wheel for this Python"),
    pytest.mark.filterwarnings("ignore:.*precision lowered by casting:UserWarning"),  # of EnvPool's spaces
]
matrix = "each"
IN_PROCESS = Configuration("dummy", "dummy")


def cartpoles(num_envs: int, **kwargs: Any) -> Batched:
    import envpool

    return Batched(functools.partial(envpool.make_gymnasium, "CartPole-v1", num_envs=num_envs, **kwargs), num_envs)


def threads(process: int | None) -> int:
    return len(os.listdir(f"/proc/{process}/task"))


def make(configuration: Configuration, fns: Sequence[Any]) -> VecEnv:
    return configuration.make_vec(fns, autoreset="next_step")


def play(vec: Any, step: Callable[[Any], Any], steps: int = 60) -> list[Any]:
    """Return what a vector env gives for the same actions as all others."""
    rng = np.random.default_rng(0)
    return [step(rng.integers(0, 2, 12))[:3] for _ in range(steps)]


def test_rows_are_those_of_envpool(configuration: Configuration) -> None:
    import envpool

    garbage: list[Any] = [cartpoles(2)()]  # whose threads a fork does not have, and must not wait for
    garbage.append(garbage)
    del garbage
    vec = make(configuration, [cartpoles(2), cartpoles(4), cartpoles(6)])
    bare = envpool.make_gymnasium("CartPole-v1", num_envs=12, num_threads=1)
    np.testing.assert_array_equal(vec.reset(), bare.reset()[0])
    ends = 0
    for ours, theirs in zip(play(vec, vec.step), play(bare, bare.step), strict=True):
        obs, rewards, terminated = theirs
        np.testing.assert_array_equal(ours[0], obs)
        np.testing.assert_array_equal(ours[1], rewards)
        np.testing.assert_array_equal(ours[2], terminated)
        ends += int(terminated.sum())
    assert ends > 12
    vec.close()


def test_infos_and_a_reset_of_some() -> None:
    vec = make(IN_PROCESS, [cartpoles(2), cartpoles(4), cartpoles(6)])
    vec.reset()
    *_, infos = vec.step([0] * 12)
    before, *_ = vec.step([0] * 12)
    assert infos[7] == {"env_id": 1, "players": {"env_id": 1}, "elapsed_step": 1, "TimeLimit.truncated": False}
    rows = vec.reset([1, 7])
    assert rows.shape == (2, 4)
    assert (np.abs(rows) <= 0.05).all()
    assert vec.reset_infos[7]["elapsed_step"] == 0
    obs, *_, infos = vec.step([0] * 12)
    assert [info["elapsed_step"] for info in infos] == [1 if k in (1, 7) else 3 for k in range(12)]
    assert not np.array_equal(obs[0], before[0])
    vec.close()


def test_seeds_are_given_where_it_is_made() -> None:
    vec = make(IN_PROCESS, [cartpoles(2, seed=5), cartpoles(3, seed=[7, 8, 9]), cartpoles(1, env_seed=[10])])
    whole = make(IN_PROCESS, [cartpoles(6, seed=5)])
    np.testing.assert_array_equal(vec.reset(), whole.reset())
    whole.close()
    with pytest.raises(EnvError, match="pass seed= to the function that makes it"):
        vec.reset(seed=0)
    vec.reset()
    vec.step([0] * 6)
    vec.close()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="no /proc")
@pytest.mark.parametrize("num_workers", [1, 2])
def test_as_many_threads_as_cores(num_workers: int) -> None:
    def counts(kind: Batched) -> list[int]:
        with SubprocVecEnv([kind] * num_workers, num_workers, autoreset="next_step"):
            return [threads(process.pid) for process in multiprocessing.active_children()]

    more = max(1, usable_cores() // num_workers) - 1
    assert counts(cartpoles(64)) == [count + more for count in counts(cartpoles(64, num_threads=1))]


def test_a_function_without_threads_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import envpool

    monkeypatch.setattr("os.cpu_count", lambda: usable_cores() + 2)

    def make() -> Any:
        return envpool.make_gymnasium("CartPole-v1", num_envs=64)

    with pytest.raises(EnvError, match=r"pass num_threads=vecenvs.worker_cores\(\)"):
        DummyVecEnv([Batched(make, 64)], autoreset="next_step")
    with pytest.raises(EnvError, match="leave batch_size out"):
        DummyVecEnv([cartpoles(4, batch_size=2)], autoreset="next_step")


def test_threads_end_with_the_vec_env() -> None:
    gc.collect()  # refused EnvPools of other tests
    before = threads(os.getpid())
    with DummyVecEnv([cartpoles(4), cartpoles(4)], autoreset="next_step") as vec:
        vec.reset()
        during = threads(os.getpid())
    assert threads(os.getpid()) == before < during


def test_as_gymnasium() -> None:
    envs = as_gymnasium(SubprocVecEnv([cartpoles(6)] * 2, 2, autoreset="next_step"))
    envs.reset()
    *_, infos = envs.step(np.zeros(12, np.int64))
    assert infos["elapsed_step"].tolist() == [1] * 12
    envs.close()


def test_cores_of_a_worker() -> None:
    assert worker_cores() == usable_cores()
    with sharing(1):
        assert worker_cores() == 1
        with sharing(None):
            assert worker_cores() == 1
    with sharing(usable_cores() + 5):
        assert worker_cores() == usable_cores()
    with sharing(0):
        assert worker_cores() == 1
