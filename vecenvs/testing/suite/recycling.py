"""`recycle`: workers that are old are replaced at the ends of episodes, and no row tells of it."""

from __future__ import annotations

import functools
import logging
import os
import random
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vecenvs.pool.recycling import Recycle
from vecenvs.testing.envs import CountingEnv, FailingEnv, SimulatorEnv, counting_fns
from vecenvs.testing.envs.batches import batched_fns
from vecenvs.testing.suite.base import Conformance, Make
from vecenvs.testing.suite.episode_seeds import MODES, Episodes, check_subsets, sampled
from vecenvs.vec_env import VecEnv

N = 2  # envs, of which the first has a worker of its own on every engine


def step(vec: VecEnv, episodes: Episodes) -> None:
    """Step all envs once, and reset those of which the caller has to."""
    obs, rewards, _, infos = vec.step(episodes.actions(range(N)))
    episodes.take(range(N), obs, rewards, vec.active, (vec.terminated, vec.truncated), infos)
    assert not any("worker_restarted" in info for info in infos)
    if episodes.ended.any():
        slots = np.flatnonzero(episodes.ended)
        episodes.begin(slots.tolist(), vec.reset(slots))


def make_then_fail(folder: Path) -> CountingEnv:
    """Make an env, if none was made before the file "fails" was there."""
    if (folder / "fails").exists():
        (folder / "tried").touch()
        raise RuntimeError("no licence is left")
    return CountingEnv(length=3)


def rest_of(folder: Path) -> CountingEnv:
    return CountingEnv(length=3, closed_file=folder / "closed")


class ShortRecyclingConformance(Conformance):
    """A worker of one env makes way for another: what `make test` runs of it."""

    @pytest.mark.parametrize("mode", MODES)
    def test_rows_beside_recycling(self, make: Make, mode: str) -> None:
        seed, ages = random.randrange(2**31), {"episodes": random.randint(1, 4)}
        vec = make([sampled] * N, autoreset=mode, episode_seeds=True, recycle=Recycle(**ages))
        episodes = Episodes(vec)
        episodes.begin(range(N), vec.reset(seed=seed))
        while vec.stats()["recycled"] < 3:
            step(vec, episodes)
        for _ in range(5):
            step(vec, episodes)
        episodes.check({slot: seed + slot for slot in range(N)}, sampled)
        assert vec.stats()["restarts"] == 0

    @pytest.mark.parametrize("mode", ["same_step", "next_step"])
    def test_attributes_of_the_last_row(self, make: Make, mode: str) -> None:
        """They are those of the env that has ended its episode."""
        vec = make(
            [functools.partial(CountingEnv, length=3)] * N,
            autoreset=mode, info_attrs=["t"], episode_seeds=True, recycle=Recycle(episodes=1),
        )  # fmt: skip
        vec.reset()
        t = [0] * N
        while vec.stats()["recycled"] < 2:
            _, _, dones, infos = vec.step([0] * N)
            for slot in range(N):
                t[slot] = 0 if infos[slot].get("episode_start") and mode == "next_step" else t[slot] + 1
                assert infos[slot]["t"] == t[slot]
                t[slot] = 0 if dones[slot] and mode == "same_step" else t[slot]

    def test_old_envs_are_closed(self, make: Make, tmp_path: Path) -> None:
        vec = make([functools.partial(rest_of, tmp_path)] * N, episode_seeds=True, recycle=Recycle(minutes=1e-6))
        vec.reset()
        while vec.stats()["recycled"] < 2:
            vec.step([0] * N)
        vec.close()
        assert len((tmp_path / "closed").read_text().split()) >= N + 2  # successors that have not begun are closed, too

    def test_a_successor_that_cannot_be_made(self, make: Make, tmp_path: Path, caplog: Any) -> None:
        """The worker goes on, and a line in the log tells why."""
        fns = [functools.partial(make_then_fail, tmp_path)] * N
        with caplog.at_level(logging.WARNING, "vecenvs"):
            vec = make(fns, episode_seeds=True, recycle=Recycle(episodes=1))
            vec.reset()
            (tmp_path / "fails").touch()
            while not any("no licence is left" in record.getMessage() for record in caplog.records):
                vec.step([0] * N)
            (tmp_path / "fails").unlink()
            while not vec.stats()["recycled"]:
                vec.step([0] * N)
        assert "is old and goes on, as its successor could not be started" in caplog.text

    def test_what_cannot_be_recycled(self, make: Make) -> None:
        recycle = Recycle(episodes=3)
        cases: list[tuple[dict[str, Any], str]] = [
            ({}, "recycle needs episode_seeds=True"),
            ({"episode_seeds": True, "concurrency": "threads"}, "leave concurrency='threads' out"),
            ({"episode_seeds": True, "recycle": 3}, "must be a vecenvs.Recycle"),
        ]
        for wrong, match in cases:
            with pytest.raises((TypeError, ValueError), match=match):
                make(counting_fns(N), **{"recycle": recycle, **wrong})
        with pytest.raises(ValueError, match="pass num_workers=6, or leave recycle out"):
            make(counting_fns(6), episode_seeds=True, recycle=recycle)
        with pytest.raises(ValueError, match="a Batched has several: leave recycle out"):
            make(batched_fns(counting_fns(2), (2,), "by_masks"), episode_seeds=True, recycle=recycle)


class RecyclingConformance(ShortRecyclingConformance):
    """All of it."""

    @pytest.mark.parametrize("mode", MODES)
    def test_any_subset_while_workers_are_replaced(self, make: Make, mode: str) -> None:
        vec = make([sampled] * N, autoreset=mode, episode_seeds=True, recycle=Recycle(episodes=1))
        check_subsets(vec, mode, lambda _: vec.stats()["recycled"] < 3)

    def test_a_worker_that_leaks(self, make: Make) -> None:
        make_env = functools.partial(SimulatorEnv, leak=8, length=(1, 3))
        vec = make([make_env] * N, episode_seeds=True)
        vec.reset(seed=0)
        while (before := vec.stats()["workers"][0]["rss_bytes"]) is None:
            vec.step([0] * N)
        vec.close()
        limit = before + 50e6
        vec = make([make_env] * N, episode_seeds=True, recycle=Recycle(rss=limit))
        vec.reset(seed=0)
        pid = vec.stats()["workers"][0]["pid"]
        while vec.stats()["recycled"] < 1 or vec.stats()["workers"][0]["pid"] in (pid, None):
            vec.step([0] * N)

    def test_an_old_worker_that_dies(self, make: Make) -> None:
        """With restarts it is replaced as any other, whatever has been prepared."""
        vec = make(counting_fns(N, length=4), episode_seeds=True, recycle=Recycle(episodes=1), on_failure="restart")
        vec.reset()
        rng, deaths = random.Random(), 0
        while deaths < 3 or vec.stats()["recycled"] < 2:
            pid = vec.stats()["workers"][0]["pid"]
            if pid is not None and deaths < 3 and rng.random() < 0.1:
                os.kill(pid, signal.SIGKILL)
                deaths += 1
            vec.step([0] * N)
        assert 1 <= vec.stats()["restarts"] <= 3

    def test_an_env_that_raises_keeps_its_worker(self, make: Make) -> None:
        vec = make(
            [functools.partial(FailingEnv, 0, "step", 3), *counting_fns(N)[1:]],
            episode_seeds=True, recycle=Recycle(episodes=1), on_error="reset",
        )  # fmt: skip
        vec.reset()
        while vec.stats()["recycled"] < 2:
            vec.step([0] * N)
        assert vec.stats()["errors"] >= 1

    def test_on_restart_of_recycled_workers(self, make: Make) -> None:
        """It is called for new workers: what was set on the env before is lost with the old one."""
        told: list[list[int]] = []

        def on_restart(slots: list[int]) -> None:
            told.append(slots)
            vec.set_attr("tag", 70, slots)

        vec = make(counting_fns(N), episode_seeds=True, recycle=Recycle(episodes=1), on_restart=on_restart)
        vec.set_attr("tag", 70)
        obs = vec.reset()
        while len(told) < 2:
            assert obs[:, 0].tolist() == [70] * N
            obs = vec.step([0] * N)[0]
        assert told[0] in ([0], [1])
