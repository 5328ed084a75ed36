"""The turns of the comparison with other libraries: its loops, and the processes in which it runs them."""

from __future__ import annotations

import os
import sys
from contextlib import closing
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from vecenvs.bench.contest import take_turn

sys.path.insert(0, str(Path(__file__).parents[1]))  # benchmarks/ is no part of the package
grid = import_module("benchmarks.peers.grid")
processes = import_module("benchmarks.stack.processes")
peers_candidates = import_module("benchmarks.peers.candidates")
peers_turns = import_module("benchmarks.peers.turns")
steppers = import_module("benchmarks.peers.steppers")

SPIN = grid.cell("spin100-8")


@dataclass
class Counter:
    """Two envs, one of which ends its episode at every third step, as a library with next-step resets."""

    taken: int = 0

    def step(self, actions: Any) -> Any:
        import numpy as np

        self.taken += 1
        over = np.array([self.taken % 3 == 0, False])
        return None, None, over, ~over & False, {}


class TestSteppers:
    def job(self, **options: Any) -> Any:
        return steppers.Job("spin:0us", SPIN.env_fn(), 2, 2, **options)

    def test_rows_of_resets_are_no_transitions(self) -> None:
        stepper = steppers.NextStep(self.job(), Counter().step, [None], lambda: None)
        assert [stepper.step(3), stepper.step(1), stepper.step(3)] == [6, 1, 5]

    def test_attributes_are_read_after_each_step(self) -> None:
        read: list[int] = []
        stepper = steppers.LockStep(self.job(attr=True), lambda _: None, [None], lambda: None, lambda: read.append(1))
        assert stepper.step(5) == 10
        assert len(read) == 5

    def test_half_batches_make_as_many_rows(self) -> None:
        stepper = steppers.InPart(self.job(), lambda: (1, 1), lambda: None)
        assert stepper.step(4) == 8

    @pytest.mark.parametrize("name", ["dummy", "subproc:caller,copy=false", "subproc, halves"])
    def test_ours_take_a_turn(self, name: str) -> None:
        cell = replace(grid.cell("attr-64"), env="spin:0us,episode=5", attr="halves" not in name)
        job = steppers.Job(cell.env, cell.env_fn(), 4, 2, think=1, attr=cell.attr)
        candidate = peers_turns.with_job(peers_candidates.candidate(name), job)
        turn = take_turn(candidate, 4, 0.02)
        assert turn.failure is None
        assert turn.timing is not None
        assert turn.timing.steps > 0

    def test_gymnasium_takes_a_turn(self) -> None:
        candidate = peers_turns.with_job(peers_candidates.candidate("Gymnasium SyncVectorEnv"), self.job())
        assert take_turn(candidate, 2, 0.02).failure is None

    def test_a_learner_computes_for_every_row(self, monkeypatch: pytest.MonkeyPatch) -> None:
        computed: list[int] = []
        monkeypatch.setattr(steppers, "spin", computed.append)
        stepper = steppers.LockStep(self.job(think=7), lambda _: None, [None], lambda: None)
        assert stepper.step(3) == 6
        assert computed == [14] * 3


class TestProcesses:
    def test_a_turn_in_a_process_of_its_own(self) -> None:
        order = steppers.Job(SPIN.env, SPIN.env_fn(), 2, 2), peers_candidates.candidate("dummy"), 2, 0.01
        with closing(processes.Processes()) as there:
            assert peers_turns.turn_in_process(there, *order).failure is None
            pid = there._processes["ours"]._process.pid
            os.kill(pid, 9)
            assert peers_turns.turn_in_process(there, *order).failure.startswith("its process died")
        assert not Path(f"/proc/{pid}").exists()
