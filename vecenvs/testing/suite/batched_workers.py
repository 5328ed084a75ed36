"""Batched envs in other processes: what a worker's death and a slow worker do to all envs of a batch."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import pytest
from gymnasium.vector import AutoresetMode

from vecenvs.batched import Batched
from vecenvs.errors import EnvError, StepTimeout, WorkerDied
from vecenvs.testing.compare import assert_same
from vecenvs.testing.envs import DyingEnv, GatedEnv, counting_fns
from vecenvs.testing.envs.batches import KINDS, ArrayBatch, batched_fns
from vecenvs.testing.oracle import EnvFn
from vecenvs.testing.suite.base import Conformance, Make


class OneSeedBatch(ArrayBatch):
    """A batched env with one random generator: it takes one seed."""

    seed: Any = None

    def reset(self, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        if isinstance(seed, list):
            raise TypeError("a seed is an int")
        self.seed = seed
        return super().reset(seed, options)


class NextStepBatch(ArrayBatch):
    """A batched env that begins episodes in the next step, and cannot reset some of its envs."""

    mode = AutoresetMode.NEXT_STEP
    metadata: ClassVar = {"autoreset_mode": AutoresetMode.NEXT_STEP}


class WordyEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An env with an attribute that it gets in its first reset."""

    def __init__(self, make: EnvFn) -> None:
        super().__init__(make())

    def reset(self, **given: Any) -> Any:
        self.word = "begun"
        return super().reset(**given)


class BatchedWorkerConformance(Conformance):
    """Batched envs whose worker dies."""

    @pytest.mark.timeout(60)
    def test_a_batch_that_dies(self, make: Make) -> None:
        fns: list[EnvFn] = [functools.partial(DyingEnv, 0, "step", 2), *counting_fns(4)[1:]]
        vec = make(batched_fns(fns, (2, 2)))
        vec.reset()
        vec.step([0] * 4)
        with pytest.raises(WorkerDied) as raised:
            vec.step([0] * 4)
        assert list(raised.value.indices[:2]) == [0, 1]

    def test_a_batch_whose_reset_is_slow(self, make: Make, tmp_path: Path) -> None:
        """A wait that times out loses nothing: the rows come later, all at once."""
        slow = functools.partial(GatedEnv, 1, tmp_path / "gate", "reset", 2)
        vec = make(batched_fns([*counting_fns(1), slow, *counting_fns(3)[2:]], (2, 0)))
        vec.reset()
        vec.step([0] * 3)
        vec.reset_async([0, 1])
        with pytest.raises(StepTimeout) as raised:
            vec.recv(timeout=0.05)
        assert list(raised.value.indices) == [0, 1]
        (tmp_path / "gate").touch()
        batch = vec.recv(2)
        assert batch.indices.tolist() == [0, 1]
        assert batch.obs.tolist() == [[0, 2, 0], [1, 2, 0]]
        assert vec.step([0] * 3)[0][:, 2].tolist() == [1, 1, 2]

    @pytest.mark.parametrize("kind", ["same_step", "next_step", "disabled"])
    def test_a_batch_that_is_restarted(self, make: Make, kind: str, tmp_path: Path) -> None:
        dying = functools.partial(DyingEnv, 0, "step", 2, lives_file=tmp_path / "lives")
        singles: list[EnvFn] = [dying, *counting_fns(4)[1:]]
        fns: list[EnvFn] = [functools.partial(WordyEnv, fn) for fn in singles]
        common = {"autoreset": KINDS[kind][0], "on_failure": "restart", "info_attrs": ["ends", "word", "t"]}
        vec = make(batched_fns(fns, (2, 2), kind), **common)
        vec.reset(seed=0)
        before, *_ = vec.step([0] * 4)
        obs, rewards, dones, infos = vec.step([0] * 4)
        lost = [bool(info.get("worker_restarted")) for info in infos]
        assert lost[:2] == [True, True]
        assert dones.tolist() == lost
        assert rewards[:2].tolist() == [0.0, 0.0]
        assert_same(infos[1]["terminal_observation"], before[1])
        assert (infos[1]["ends"], infos[1]["word"]) == ("terminated", None)
        if kind == "disabled":
            vec.reset([slot for slot in range(4) if lost[slot]])
        elif kind == "next_step":
            obs, *_ = vec.step([0] * 4)
        if kind != "disabled":
            assert obs[:2].tolist() == [[0, 1, 0], [1, 1, 0]]
        obs, *_, infos = vec.step([0] * 4)
        assert obs[:2].tolist() == [[0, 1, 1], [1, 1, 1]]
        assert [info["word"] for info in infos] == ["begun"] * 4
        assert vec.stats()["restarts"] == 1

    def test_a_batch_with_one_seed_that_is_restarted(self, make: Make, tmp_path: Path) -> None:
        dying = functools.partial(DyingEnv, 0, "step", 2, lives_file=tmp_path / "lives")
        one = Batched(functools.partial(OneSeedBatch, [dying, *counting_fns(2)[1:]]), 2)
        vec = make([one, *counting_fns(3)[2:]], on_failure="restart")
        vec.reset(seed=7)
        vec.step([0] * 3)
        *_, infos = vec.step([0] * 3)
        assert [info.get("worker_restarted", False) for info in infos][:2] == [True, True]
        assert vec.step([0] * 3)[0][:2].tolist() == [[0, 1, 1], [1, 1, 1]]
        (seed,) = vec.get_attr("seed", [0])
        assert type(seed) is int
        assert seed != 7

    @pytest.mark.parametrize("kind", ["next_step", "without masks", "disabled"])
    @pytest.mark.parametrize("both", [False, True])
    def test_a_batch_that_is_restarted_after_a_last_row(
        self, make: Make, kind: str, both: bool, tmp_path: Path
    ) -> None:
        """What has ended is not lost, but for an env of a batch in next_step mode that begins with the others."""
        mode = "disabled" if kind == "disabled" else "next_step"  # in which the step dies that begins an episode
        where = "never" if kind == "disabled" else "reset"
        dying = functools.partial(DyingEnv, 0, where, 2, length=2, lives_file=tmp_path / "lives")
        singles: list[EnvFn] = [dying, *counting_fns(2, length=2 if both else 50)[1:]]
        kinds = {**KINDS, "without masks": (mode, NextStepBatch)}
        one = Batched(functools.partial(kinds[kind][1], singles), 2)
        vec = make([one, *counting_fns(3)[2:]], autoreset=mode, on_failure="restart")
        vec.reset(seed=0)
        vec.step([0] * 3)
        assert vec.step([0] * 3)[2][:2].tolist() == [True, both]
        if kind == "disabled":
            with pytest.raises(WorkerDied):
                vec.env_method("exit_now", indices=[0])
            with pytest.raises(EnvError, match=r"reset\(\[0"):
                vec.step([0] * 3)
            vec.reset([0, 1] if both else [0])
        lost, t, active = [], [], []
        for _ in range(1 if kind == "disabled" else 3):
            obs, *_, infos = vec.step([0] * 3)
            lost.append([info.get("worker_restarted", False) for info in infos[:2]])
            t.append([None if gone else at for gone, at in zip(lost[-1], obs[:2, 2].tolist(), strict=True)])
            active.append(vec.active[:2].tolist())
        known = {
            ("next_step", True): [[0, 0], [1, 1], [2, 2]],
            ("next_step", False): [[None, None], [0, 0], [1, 1]],
            ("without masks", True): [[0, 0], [1, 1], [2, 2]],
            ("without masks", False): [[None, None], [0, 0], [1, 1]],
            ("disabled", True): [[1, 1]],
            ("disabled", False): [[0, None]],
        }
        assert t == known[kind, both]
        assert active == [[at != 0 for at in row] for row in t]

    @pytest.mark.parametrize("kind", ["by_masks", "next_step", "disabled"])
    def test_a_part_of_a_restarted_batch_that_is_reset(self, make: Make, kind: str) -> None:
        """Envs that are reset before the others' lost episodes have ended wait for these: they repeat first rows."""
        dying = functools.partial(DyingEnv, 0, "never")
        vec = make(
            batched_fns([dying, *counting_fns(5)[1:]], (4, 0), kind), autoreset=KINDS[kind][0], on_failure="restart"
        )
        vec.reset(seed=0)
        vec.step([0] * 5)
        with pytest.raises(WorkerDied):
            vec.env_method("exit_now", indices=[0])
        assert vec.reset([1, 2], seed=5).tolist() == [[1, 1, 0], [2, 1, 0]]
        first = vec.reset_infos[1]
        obs, _, dones, infos = vec.step([0] * 5)
        assert [info.get("worker_restarted", False) for info in infos][:4] == [True, False, False, True]
        assert dones[:4].tolist() == [True, False, False, True]
        assert obs[1:3].tolist() == [[1, 1, 0], [2, 1, 0]]
        assert vec.active[1:3].tolist() == [False, False]
        assert vec.reset_infos[1] == first
        if kind == "disabled":
            vec.reset([0, 3])
        elif kind == "next_step":
            obs, *_ = vec.step([0] * 5)
            assert obs[1:3].tolist() == [[1, 1, 0], [2, 1, 0]]
        obs, *_ = vec.step([0] * 5)
        assert obs[:4, 2].tolist() == [1] * 4
