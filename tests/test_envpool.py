"""EnvPool as batched envs: the rows of EnvPool itself, threads for the worker's cores, seeds, resets of some envs."""

from __future__ import annotations

import gc
import multiprocessing
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Configuration
from envpool_rules import MARKS, EnvPoolRules, EnvPoolWorkerRules, cartpole, cartpoles

from vecenvs import Batched, DummyVecEnv, EnvError, SubprocVecEnv, worker_cores
from vecenvs.cpus import sharing, usable_cores
from vecenvs.views import as_gymnasium

pytestmark = MARKS


def threads(process: int | None) -> int:
    return len(os.listdir(f"/proc/{process}/task"))


class OnConfigurations:
    """Makes the VecEnv as the configuration says."""

    @pytest.fixture(autouse=True)
    def _configure(self, configuration: Configuration) -> None:
        self.configuration = configuration
        self.make_vec = configuration.make_vec

    def cores(self, num_workers: int) -> int:
        return usable_cores() if self.configuration.backend == "dummy" else max(1, usable_cores() // num_workers)


class TestRules(OnConfigurations, EnvPoolRules):
    """In process too."""

    matrix = "contract"


class TestWorkers(OnConfigurations, EnvPoolWorkerRules):
    """What only workers can do, which may die."""

    matrix = "by fork"


def test_infos_and_a_reset_of_some() -> None:
    vec = DummyVecEnv([cartpoles(2), cartpoles(4, 2), cartpoles(6, 6)], autoreset="next_step")
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


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="no /proc")
@pytest.mark.parametrize("num_workers", [1, 2])
def test_as_many_threads_as_cores(num_workers: int) -> None:
    def counts(**kwargs: Any) -> list[int]:
        fns = [cartpoles(64, 64 * worker, **kwargs) for worker in range(num_workers)]
        with SubprocVecEnv(fns, num_workers, autoreset="next_step"):
            return [threads(process.pid) for process in multiprocessing.active_children()]

    more = max(1, usable_cores() // num_workers) - 1
    assert counts() == [count + more for count in counts(num_threads=1)]


def test_a_function_without_threads_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import envpool

    monkeypatch.setattr("os.cpu_count", lambda: usable_cores() + 2)

    def make() -> Any:
        return envpool.make_gymnasium("CartPole-v1", num_envs=64)

    with pytest.raises(EnvError, match=r"pass num_threads=vecenvs.worker_cores\(\)"):
        DummyVecEnv([Batched(make, 64)], autoreset="next_step")
    with pytest.raises(EnvError, match="leave batch_size out"):
        DummyVecEnv([cartpoles(4, batch_size=2)], autoreset="next_step")


def test_batches_without_seeds_are_refused() -> None:
    """They would be the same envs twice."""
    with pytest.raises(EnvError, match=r"the EnvPool of envs 4-7 has the seed 42.* such as seed=42 \+ 4"):
        DummyVecEnv([Batched(cartpole(4, num_threads=1), 4)] * 2, autoreset="next_step")
    with DummyVecEnv(
        [Batched(cartpole(4, num_threads=1), 4), cartpoles(4, env_seed=[42, 1, 2, 3])], autoreset="next_step"
    ) as vec:
        obs = vec.reset()
    assert np.array_equal(obs[0], obs[4])


def test_threads_end_with_the_vec_env() -> None:
    gc.collect()  # refused EnvPools of other tests
    for _ in range(2):  # the first one of a process starts threads of EnvPool's that stay
        before = threads(os.getpid())
        with DummyVecEnv([cartpoles(4), cartpoles(4, 4)], autoreset="next_step") as vec:
            vec.reset()
            during = threads(os.getpid())
    assert threads(os.getpid()) == before < during


def test_as_gymnasium() -> None:
    envs = as_gymnasium(SubprocVecEnv([cartpoles(6), cartpoles(6, 6)], 2, autoreset="next_step"))
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
