"""`record`: the episodes of any schedule, run again in one process, have the same rows."""

from __future__ import annotations

import contextlib
import copy
import pickle
import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from vecenvs.errors import EnvError, NotSteppingError, WorkerDied
from vecenvs.state.episode_file import Record, read_record
from vecenvs.state.rerun import Rerun, run_again
from vecenvs.testing.envs import NESTED, DyingEnv, SampledEnv, ToyError
from vecenvs.testing.envs.states import BrittleEnv, StateEnv
from vecenvs.testing.suite.base import Conformance, Make
from vecenvs.vec_env import VecEnv

MODES = ["same_step", "next_step", "async", "disabled"]
_LARGE = spaces.Box(-1, 1, (40_000,), np.float64)


def nested(end: float = 0.2) -> SampledEnv:
    """Return an env whose observations and actions have parts of all kinds."""
    return SampledEnv(copy.deepcopy(NESTED), copy.deepcopy(NESTED), end=end)


def large() -> SampledEnv:
    """Return an env with large actions and observations."""
    return SampledEnv(copy.deepcopy(_LARGE), copy.deepcopy(_LARGE), end=0.2)


def actions_of(vec: VecEnv, count: int) -> Any:
    """Return random actions."""
    return [vec.action_space.sample() for _ in range(count)]


def play(vec: VecEnv, calls: int, *, with_options: bool = True) -> None:
    """Do all kinds of calls at random, beside resets that are needed."""
    n, ended = vec.num_envs, np.zeros(vec.num_envs, bool)
    for _ in range(calls):
        if vec.autoreset == "disabled" and ended.any():
            vec.reset(np.flatnonzero(ended))
            ended[:] = False
        kind = random.randrange(10)
        some = sorted(random.sample(range(n), random.randrange(1, n + 1)))
        if kind < 5:
            _, _, dones, _ = vec.step(actions_of(vec, n))
            ended |= dones
        elif kind < 8:
            receive(vec, ended)  # first rows of async resets
            vec.send(actions_of(vec, len(some)), some)
            receive(vec, ended)
        elif kind == 8:
            vec.reset(some, options={"sum": random.randrange(9)} if with_options and random.random() < 0.5 else None)
            ended[some] = False
        elif with_options:
            vec.set_options([{"sum": random.randrange(9)} for _ in range(n)])


def receive(vec: VecEnv, ended: Any) -> None:
    """Receive all rows that are due."""
    with contextlib.suppress(NotSteppingError):
        while True:
            batch = vec.recv()
            ended[batch.indices] |= batch.dones


def records_in(folder: Path) -> list[Record]:
    """Return the records in a folder."""
    return [read_record(file) for file in sorted(folder.iterdir())]


def again(record: Record) -> Rerun:
    """Run an episode again."""
    return run_again(record, pickle.loads(record.function)())


class RecordConformance(Conformance):
    """Records of episodes."""

    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize("env_fn", [partial(StateEnv, 0.2), nested, large], ids=["walks", "nested", "large"])
    def test_every_episode_runs_again(self, make: Make, mode: str, env_fn: Any, tmp_path: Path) -> None:
        """By steps, subsets, resets and options in any order."""
        n = random.randrange(1, 5)
        vec = make([env_fn] * n, autoreset=mode, episode_seeds=True, record=tmp_path / "a", record_episodes="all")
        vec.action_space.seed(random.randrange(2**30))
        vec.reset(seed=random.randrange(2**30))
        play(vec, 60)
        found = records_in(tmp_path / "a")
        assert len(found) == vec.stats()["episodes"]
        for record in found:
            assert again(record) == Rerun(len(record.rewards)), record
        assert len({(record.slot, record.number, record.seed) for record in found}) == len(found)

    def test_a_reset_that_overtakes_another(self, make: Make, tmp_path: Path) -> None:
        """Options that wait for a reset are those of the one that is dropped, as in modes that wait for it."""
        vec = make([partial(StateEnv, 0.5)], autoreset="async", episode_seeds=True, record=tmp_path / "a",
                   record_episodes="all")  # fmt: skip
        vec.reset(seed=random.randrange(1000))
        for k in range(30):
            vec.set_options({"sum": k})
            vec.seed(k)
            while not vec.step(actions_of(vec, 1))[2][0]:
                pass
            vec.reset()
        found = records_in(tmp_path / "a")
        assert [record.number for record in found] == [0] + [1] * 29
        assert len(found) == 30
        for record in found:
            assert again(record) == Rerun(len(record.rewards)), record

    @pytest.mark.parametrize("mode", MODES)
    def test_an_error_names_the_file(self, make: Make, mode: str, tmp_path: Path) -> None:
        vec = make([BrittleEnv] * 2, autoreset=mode, episode_seeds=True, record=tmp_path / "a")
        vec.reset(seed=random.randrange(1000))
        for _ in range(random.randrange(20)):
            dones = vec.step([0, 2])[2]
            if mode == "disabled" and dones.any():
                vec.reset(np.flatnonzero(dones))
        with pytest.raises(EnvError, match=r"env 0 .*action 3\. Run its episode again: .* rerun ") as caught:
            while True:
                dones = vec.step([3, 2])[2]
        (record,) = records_in(tmp_path / "a")
        assert str(next((tmp_path / "a").iterdir())) == caught.value.record
        assert (record.slot, record.outcome) == (0, "raised")
        found = again(record)
        assert (type(found.exception), found.steps, found.doing) == (ToyError, len(record.rewards), "step")
        with pytest.raises(EnvError, match="env 0"):
            vec.step([0, 0])  # it needs a reset, which is no failed episode
        assert len(records_in(tmp_path / "a")) == 1

    @pytest.mark.parametrize("mode", MODES)
    def test_a_reset_that_fails(self, make: Make, mode: str, tmp_path: Path) -> None:
        vec = make([partial(BrittleEnv, "reset")], autoreset=mode, episode_seeds=True, record=tmp_path / "a")
        vec.reset(seed=random.randrange(1000))
        with pytest.raises(EnvError, match="Run its episode again"):
            while True:
                dones = vec.step([3])[2]
                if mode == "disabled" and dones.any():
                    vec.reset()
        (record,) = records_in(tmp_path / "a")
        found = again(record)
        assert (type(found.exception), found.doing) == (ToyError, "reset")

    def test_errors_that_end_episodes(self, make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        vec = make([BrittleEnv], episode_seeds=True, record=tmp_path / "a", on_error="reset")
        vec.reset(seed=7)
        for action in (0, 1, 3, 0):
            vec.step([action])
        (record,) = records_in(tmp_path / "a")
        assert "env 0: run its episode again: python -m vecenvs rerun" in caplog.text
        assert record.told == "ToyError: action 3"
        assert again(record).steps == len(record.rewards)

    def test_calls_are_repeated_or_told(self, make: Make, tmp_path: Path) -> None:
        vec = make([StateEnv] * 2, episode_seeds=True, record=tmp_path / "a", record_episodes="all")
        vec.reset(seed=7)
        vec.step([1, 1])
        vec.set_attr("sum", 100)
        vec.env_method("draw", indices=[1])
        vec.set_attr("end", 0.3)
        for _ in range(40):
            vec.step([1, 1])
        found = records_in(tmp_path / "a")
        assert {record.slot for record in found} == {0, 1}
        for record in found:
            if record.slot == 0:
                assert again(record) == Rerun(len(record.rewards))
            elif record.number == 0:
                assert "env_method('draw')" in [name for _, name, _ in record.calls]
                assert again(record).differs

    def test_what_it_needs(self, make: Make, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="record needs episode_seeds=True"):
            make([StateEnv], record=tmp_path)
        with pytest.raises(ValueError, match="record_episodes .some. is none of failed, all"):
            make([StateEnv], record=tmp_path, episode_seeds=True, record_episodes="some")


class RecordWorkerConformance(Conformance):
    """Records of what has killed a worker."""

    @pytest.mark.parametrize("by", ["step", "send"])
    def test_a_death_names_the_files(self, make: Make, by: str, tmp_path: Path) -> None:
        fns = [partial(DyingEnv, slot, at=4 if slot == 0 else 1000) for slot in range(4)]
        vec = make(fns, episode_seeds=True, record=tmp_path / "a")
        vec.reset(seed=1)
        with pytest.raises(WorkerDied, match="Run its episode again: python -m vecenvs rerun ") as caught:
            for _ in range(6):
                if by == "step":
                    vec.step([0] * 4)
                else:
                    vec.send([0], [0])
                    vec.recv()
        found = {record.slot: record for record in records_in(tmp_path / "a")}
        assert {str(file) for file in (tmp_path / "a").iterdir()} == {*caught.value.records}
        assert {*found} == {*caught.value.indices}
        assert found[0].outcome == "died"
        actions = found[0].actions[0]
        assert actions is not None
        assert len(actions) == len(found[0].rewards) + 1
        if by == "send":
            assert all(len(found[slot].rewards) == 0 for slot in found if slot)

    def test_a_worker_that_is_replaced(self, make: Make, tmp_path: Path) -> None:
        fns = [partial(DyingEnv, slot, at=4 if slot == 0 else 1000) for slot in range(4)]
        vec = make(fns, episode_seeds=True, record=tmp_path / "a", on_failure="restart")
        vec.reset(seed=1)
        for _ in range(6):
            vec.step([0] * 4)
        found = {record.slot: record for record in records_in(tmp_path / "a")}
        assert found[0].outcome == "died"
        actions = found[0].actions[0]
        assert actions is not None
        assert len(actions) == len(found[0].rewards) + 1
