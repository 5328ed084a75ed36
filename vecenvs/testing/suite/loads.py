"""`stats` tells for each worker what it has done, how long it has waited and worked, and its memory."""

from __future__ import annotations

import functools
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vecenvs.errors import EnvError
from vecenvs.testing.envs import CountingEnv, FailingEnv
from vecenvs.testing.envs.batches import KINDS, batched_fns
from vecenvs.testing.suite.base import Conformance, Make
from vecenvs.testing.suite.deaths import PROMPT, dying_fns
from vecenvs.testing.suite.episode_seeds import MODES
from vecenvs.vec_env import Batch, VecEnv
from vecenvs.worker.load import LOAD_EVERY


class SlowEnv(CountingEnv):
    """A CountingEnv whose second step takes a while, with tag 0."""

    def step(self, action: Any) -> Any:
        if self.tag == 0 and self.steps == 1:
            time.sleep(1.1 * LOAD_EVERY)
        return super().step(action)


class Count:
    """The transitions and episodes that a caller was given, by env."""

    def __init__(self, vec: VecEnv) -> None:
        self.vec = vec
        self.transitions = np.zeros(vec.num_envs, np.int64)
        self.episodes = np.zeros(vec.num_envs, np.int64)

    def step(self) -> Any:
        """Step all envs; return the rows' dones."""
        _, _, dones, infos = self.vec.step([0] * self.vec.num_envs)
        self.transitions += self.vec.active
        self.episodes += dones
        assert len(infos) == len(dones)
        return dones

    def add(self, batch: Batch) -> Any:
        """Count the rows of a batch; return the envs whose episodes have ended."""
        dones = batch.terminated | batch.truncated
        self.transitions[batch.indices] += batch.active
        self.episodes[batch.indices] += dones
        return batch.indices[dones]

    def check(self) -> None:
        """Compare with what `stats` says of each worker and of all."""
        stats = self.vec.stats()
        for name, counts in (("transitions", self.transitions), ("episodes", self.episodes)):
            expected = [counts[worker["slots"]].sum() for worker in stats["workers"]]
            assert [worker[name] for worker in stats["workers"]] == expected, name
            assert stats[name] == sum(expected)


def play(count: Count, rounds: int) -> None:
    """Reset all envs; step all or some of them, and reset those whose episodes have ended, if that is due."""
    vec = count.vec
    n, disabled = vec.num_envs, vec.autoreset == "disabled"
    vec.reset()
    for _ in range(rounds):
        if random.random() < 0.5:
            ended = np.flatnonzero(count.step())
        else:
            if vec.autoreset == "async":  # envs under a reset cannot be sent an action
                vec.reset()
            some = random.sample(range(n), random.randint(1, n))
            vec.send([0] * len(some), some)
            ended = np.concatenate([count.add(vec.recv(indices=[slot])) for slot in some])
            if vec.autoreset == "async":
                vec.reset()
        if disabled and len(ended):
            vec.reset(ended)
        count.check()


class LoadConformance(Conformance):
    """Counts are those of the rows that were returned."""

    @pytest.mark.parametrize("mode", MODES)
    def test_counts_of_each_worker(self, make: Make, mode: str) -> None:
        count = Count(make([functools.partial(CountingEnv, tag, 1 + tag) for tag in range(5)], autoreset=mode))
        count.check()
        play(count, 12)
        assert count.episodes[0]
        last = count.vec.stats()
        count.vec.close()
        assert count.vec.stats()["episodes"] == last["episodes"]

    @pytest.mark.parametrize("kind", KINDS)
    def test_counts_of_batched_envs(self, make: Make, kind: str) -> None:
        mode = KINDS[kind][0]
        fns = [functools.partial(CountingEnv, tag, 2) for tag in range(6)]
        count = Count(make(batched_fns(fns, (3, 0, 2), kind), autoreset=mode))
        count.vec.reset()
        for _ in range(7):
            ended = np.flatnonzero(count.step())
            if mode == "disabled" and len(ended):
                count.vec.reset(ended)
            count.check()
        assert count.episodes.all()
        count.vec.reset()
        count.vec.send([0] * 6)
        count.add(count.vec.recv(indices=[*range(6)]))
        count.check()

    def test_rows_beside_an_error(self, make: Make) -> None:
        """They count; that of the env that raised does not."""
        count = Count(make([functools.partial(FailingEnv, tag, "step", 2 + 90 * (tag != 1)) for tag in range(4)]))
        count.vec.reset()
        count.step()
        with pytest.raises(EnvError) as caught:
            count.vec.step([0] * 4)
        assert caught.value.batch is not None
        count.add(caught.value.batch)
        count.check()
        assert count.transitions.tolist() == [2, 1, 2, 2]

    def test_seconds_and_memory(self, make: Make) -> None:
        """What a worker has told when its last command came is known when that is answered."""
        began = time.perf_counter()
        vec = make([functools.partial(SlowEnv, tag) for tag in range(2)])
        vec.reset()
        assert all(worker["rss_bytes"] > 2**20 for worker in vec.stats()["workers"])
        for _ in range(3):
            vec.step([0] * 2)
        stats = vec.stats()
        took = time.perf_counter() - began
        assert stats["rss_bytes"] > 2**20
        if "concurrency" in stats:
            assert stats["seconds_waiting"] is stats["seconds_stepping"] is None
            return
        for worker in stats["workers"]:
            assert worker["seconds_stepping"] > LOAD_EVERY * (0 in worker["slots"])
            assert worker["seconds_waiting"] >= 0
            assert worker["seconds_stepping"] + worker["seconds_waiting"] < took
        for name in ("seconds_stepping", "seconds_waiting"):
            assert stats[name] == pytest.approx(sum(worker[name] for worker in stats["workers"]))
        vec.step_async([0] * 2)
        assert vec.stats()["transitions"] == 6  # asks no worker
        vec.step_wait()


class LoadWorkerConformance(Conformance):
    """Counts go on when a worker is replaced."""

    @PROMPT
    @pytest.mark.parametrize("mode", MODES)
    def test_counts_after_a_restart(self, make: Make, mode: str, tmp_path: Path) -> None:
        fns = dying_fns(at=7, lives_file=tmp_path / "lives")
        count = Count(make(fns, on_failure="restart", autoreset=mode))
        while not count.vec.stats()["restarts"]:  # the steps of env 0 are drawn
            play(count, 7)
        play(count, 3)
        stats = count.vec.stats()
        assert stats["restarts"] == 1
        assert "concurrency" in stats or stats["workers"][0]["seconds_waiting"] > 0
        assert all(worker["rss_bytes"] > 2**20 for worker in stats["workers"])
