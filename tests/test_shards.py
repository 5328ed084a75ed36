"""How envs are divided among workers."""

from __future__ import annotations

import os
import re
import time
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from vecenvs import Batched, DummyVecEnv, SubprocVecEnv
from vecenvs.arguments import split
from vecenvs.errors import EnvError
from vecenvs.pool.hosts import Hosts
from vecenvs.testing.envs import counting_fns
from vecenvs.testing.envs.batches import batched_fns


def hosts_of(widths: list[int]) -> Hosts:
    """Return hosts of envs that are never made; a width of 0 is a single env."""
    return Hosts([Batched(int, width) if width else int for width in widths])


@pytest.mark.parametrize(
    ("widths", "count", "sizes"),
    [
        ([64, 0, 0, 0], 2, [64, 3]),
        ([64, 0, 0, 0], 3, [64, 2, 1]),
        ([0, 0, 0, 64], 2, [3, 64]),
        ([64, *[0] * 10], 4, [64, 4, 3, 3]),
        ([0, 0, 64, 64], 3, [2, 64, 64]),
        ([64, 64, 0], 3, [64, 64, 1]),
        ([*[0] * 9, 8, *[0] * 3], 5, [3, 3, 3, 8, 3]),
        ([5], 1, [5]),
        ([1, 0], 2, [1, 1]),
    ],
)
def test_a_batched_env_has_a_worker_of_its_own(widths: list[int], count: int, sizes: list[int]) -> None:
    """The others have about as many single envs each, however many entries a batched env counts for."""
    shards = hosts_of(widths).shards_of(count)
    assert list(map(len, shards)) == sizes
    assert [slot for shard in shards for slot in shard] == [*range(sum(sizes))]


def test_single_envs_are_divided_evenly() -> None:
    for n in range(1, 20):
        for count in range(1, n + 1):
            assert hosts_of([0] * n).shards_of(count) == split(n, count)


def test_fewer_workers_than_hosts() -> None:
    with pytest.raises(ValueError, match=re.escape("num_workers=2 is too few for envs 0-3; 4; 5, 6: a worker has one")):
        SubprocVecEnv(batched_fns(counting_fns(7), (4, 0, 2)), num_workers=2)
    with pytest.raises(ValueError, match="envs 0, 1; 2, 3; 4, 5; 6, 7; ...: .* Pass num_workers=5 to 6$"):
        hosts_of([2, 2, 2, 2, 0, 0]).shards_of(4)
    with pytest.raises(ValueError, match="num_workers=4 for 3 batched and single envs: give 3, or None"):
        hosts_of([2, 0, 2]).shards_of(4)


def test_the_caller_steps_what_is_left() -> None:
    """One host after another, each by a worker of its own; other processes have one host each."""
    fns = batched_fns(counting_fns(9), (2, 0, 0, 2, 3))
    with DummyVecEnv(fns) as vec:
        assert [len(vec.groups(1)), vec.stats()["num_workers"]] == [1, 4]
    with SubprocVecEnv(fns, num_workers=2, caller_steps=True, start_method="fork") as vec:
        vec.reset()
        pids = vec.call(_pid, None)
        assert len({*pids}) == 2
        assert pids[0] == pids[1]
        assert {*pids[2:]} == {_pid(None)}
        assert vec.step([0] * 9)[0][:, 0].tolist() == [*range(9)]


@pytest.mark.parametrize("engine", ["dummy", "caller"])
@pytest.mark.timeout(120)
def test_hosts_of_one_process_take_turns(engine: str) -> None:
    """Where the rows that are ready first are stepped again at once, the others come nevertheless."""
    fns = batched_fns(counting_fns(7), (2, 2, 0, 2))
    make: Any = DummyVecEnv if engine == "dummy" else partial(SubprocVecEnv, num_workers=2, caller_steps=True)
    with make(fns) as vec:
        vec.reset()
        vec.send([0] * 7)
        received = np.zeros(7, int)
        end = time.monotonic() + 60
        while received.min() < 3 and time.monotonic() < end:
            indices = vec.recv(1).indices
            received[indices] += 1
            vec.send([0] * len(indices), indices)
    assert received.min() >= 3
    if engine == "dummy":
        assert received.max() <= 4


def test_two_hosts_in_one_process_are_two_envs() -> None:
    shared = SyncVectorEnv(counting_fns(2))
    with pytest.raises(EnvError, match="env 2 gave an env that another one had given already"):
        DummyVecEnv([Batched(lambda: shared, 2)] * 4, autoreset="next_step")


def test_each_host_has_a_worker_by_default() -> None:
    with SubprocVecEnv(batched_fns(counting_fns(6), (2, 2, 2))) as vec:
        assert vec.stats()["num_workers"] == 3


def _pid(_: object) -> int:
    return os.getpid()


class PairBatch:
    """Two envs, whose episodes have two steps. Reset with the option "fail" it raises, and with the seed 7."""

    num_envs = 2
    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.DISABLED}
    single_observation_space, single_action_space = spaces.Box(0, 100, (1,), np.float32), spaces.Discrete(2)

    def __init__(self, seeds: Path | None = None) -> None:
        self.t, self.seeds = np.zeros(2), seeds

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        options = options or {}
        if self.seeds is not None:
            with self.seeds.open("a") as file:
                print(seed, file=file)
        if "fail" in options or 7 in np.atleast_1d(seed):
            raise RuntimeError
        self.t[options.get("reset_mask", np.ones(2, bool))] = 0
        self.score = self.t * 10
        return self.t[:, None].astype(np.float32), {}

    def step(self, actions: Any) -> Any:
        self.t = self.t + 1
        self.score = self.t * 10
        return self.t[:, None].astype(np.float32), np.ones(2), self.t >= 2, np.zeros(2, bool), {}


@pytest.mark.parametrize(("mode", "fails"), [("same_step", False), ("disabled", False), ("disabled", True)])
@pytest.mark.parametrize("engine", [DummyVecEnv, SubprocVecEnv])
def test_rows_of_others_outlast_a_reset(engine: Any, mode: str, fails: bool) -> None:
    """Their flags, last observations and attributes, also if it fails."""
    with engine([Batched(PairBatch, 2)], autoreset=mode, info_attrs=("score",)) as vec:
        vec.reset()
        vec.step([0, 0])
        vec.send([0, 0])
        assert vec.recv(indices=[0]).dones.all()
        if fails:
            with pytest.raises(EnvError):
                vec.reset([0], options={"fail": True})
        else:
            assert vec.reset([0]).tolist() == [[0]]
        batch = vec.recv(indices=[1])
        assert batch.dones.all()
        assert batch.infos[0]["terminal_observation"].tolist() == [2]
        assert batch.infos[0]["score"] == 20


@pytest.mark.parametrize("episodes", [False, True])
def test_a_batched_env_that_fails_with_its_seed_gets_others(episodes: bool, tmp_path: Path) -> None:
    """From the third try on, as a single env does."""
    fns = [Batched(partial(PairBatch, tmp_path / "seeds"), 2)]
    with DummyVecEnv(fns, on_error="reset", max_errors=4, episode_seeds=episodes) as vec:
        vec.reset(seed=7)
        seeds = (tmp_path / "seeds").read_text().splitlines()
        assert len(seeds) == 3
        assert seeds[0] == seeds[1] != seeds[2]
        assert vec.step([0, 0])[0].tolist() == [[1], [1]]


class Overflowing(PairBatch):
    def step(self, actions: Any) -> Any:
        obs, *rest = super().step(actions)
        return np.full(obs.shape, 1e300), *rest


def test_observations_of_a_batched_env_beyond_float32() -> None:
    """They are an error, as a single env's are."""
    with DummyVecEnv([Batched(Overflowing, 2)]) as vec:
        vec.reset()
        with pytest.raises(EnvError, match="numbers too large for its space's dtype float32"):
            vec.step([0, 0])
