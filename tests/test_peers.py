"""The comparison with other libraries: its grid, rounds and page. The libraries themselves are not needed here."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from vecenvs.bench.contest import LIMIT, Timing, Turn
from vecenvs.bench.workloads import BadRequest

sys.path.insert(0, str(Path(__file__).parents[1]))  # benchmarks/ is no part of the package
program = import_module("benchmarks.peers.__main__")
figures = import_module("benchmarks.peers.figures")
grid = import_module("benchmarks.peers.grid")
peers_candidates = import_module("benchmarks.peers.candidates")
pages = import_module("benchmarks.peers.page")
peers_turns = import_module("benchmarks.peers.turns")
run = import_module("benchmarks.stack.run")
sections = import_module("benchmarks.shared")
stack_figures = import_module("benchmarks.stack.figures")
stack_grid = import_module("benchmarks.stack.grid")

SPIN = grid.cell("spin100-8")
ROWS = grid.cell("rows-64")


def of_cell(cell: Any, *only: str) -> list[str]:
    return [one.name for one in program.SUITE.candidates_of(cell, only)]


def choose(only: list[str], quick: bool = False) -> list[str]:
    return [cell.key for cell in stack_grid.choose(grid.CELLS, grid.AXES, only, quick)]


@dataclass
class Limit:
    """Reads 1000, 2000, 1000, ... steps per second."""

    readings: int = 0

    def run(self, seconds: float, warmup: float) -> Timing:
        self.readings += 1
        return Timing(1000 if self.readings % 2 else 2000, 1.0)


@dataclass
class Turns:
    """Answers the orders of turns in place of a library's process: by candidate a rate, or why there is none."""

    rates: dict[str, float | str]
    log: list[str] = field(default_factory=list)
    jobs: list[Any] = field(default_factory=list)

    def ask(self, candidate: Any, order: Any, seconds: float) -> Turn:
        name, job, _ = order.args
        assert name == candidate.name
        self.log.append(name)
        self.jobs.append(job)
        rate = self.rates[name]
        if isinstance(rate, str):
            return Turn(name, job.num_envs, 0, failure=rate)
        return Turn(name, job.num_envs, 0, Timing(int(rate), 1.0), startup=0.5)


def play(cell: Any, rates: dict[str, float | str], rounds: int = 2, budget: Any = None) -> tuple[Any, Turns]:
    """Let the candidates take turns; return the cell's record, and the turns."""
    turns, candidates = Turns(rates), [peers_candidates.candidate(name) for name in rates]
    numbers = (budget or run.Budget(None, 1)).rounds(rounds)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(peers_turns, "BareLoops", NoLoops)
        *_, record = peers_turns.measure(cell, candidates, turns, numbers, 1.0)
    return {**record, "run": 0, "complete": True}, turns


class NoLoops:
    def __init__(self, env_fn: Any, loops: int) -> None:
        self.limit = Limit()

    def __enter__(self) -> Limit:
        return self.limit

    def __exit__(self, *_: object) -> None:
        return


class TestGrid:
    def test_axes_name_cells_and_every_cell_is_on_one(self) -> None:
        named = {key for axis in grid.AXES for key in axis.keys}
        keys = [cell.key for cell in grid.CELLS]
        assert named == set(keys)
        assert len(keys) == len(set(keys))
        assert {promise.key for promise in grid.PROMISES} - {None} <= named

    def test_every_promised_candidate_takes_part(self) -> None:
        for promise in grid.PROMISES:
            names = of_cell(grid.cell(promise.key)) if promise.key else []
            assert promise.candidate is None or promise.candidate in names

    def test_axes_and_cells_can_be_chosen(self) -> None:
        assert choose(["learner", "rows-64"]) == ["rows-64", "learner-spin100-8", "learner-cartpole-64"]
        assert choose(["learner"], quick=True) == ["learner-spin100-8"]
        with pytest.raises(BadRequest, match="no such axis or cell; there are envs, number"):
            choose(["nothing"])

    def test_libraries_with_a_process_per_env_are_spared_a_thousand(self) -> None:
        names = {*of_cell(grid.cell("cartpole-1024"))}
        assert {"subproc", "Gymnasium SyncVectorEnv", "EnvPool"} <= names
        assert not names & {"Gymnasium AsyncVectorEnv", "SB3 SubprocVecEnv", "TorchRL ParallelEnv", "ray"}

    def test_candidates_can_be_chosen_by_library(self) -> None:
        assert of_cell(ROWS, "gymnasium", "dummy") == [
            "dummy",
            "Gymnasium SyncVectorEnv",
            "Gymnasium AsyncVectorEnv",
        ]
        with pytest.raises(BadRequest, match="no such candidate; the libraries are vecenvs, gymnasium"):
            of_cell(ROWS, "gym")

    def test_an_env_can_have_infos_and_an_attribute(self) -> None:
        env = replace(grid.cell("infos-64"), env="spin:0us", attr=True).env_fn()()
        env.reset()
        assert env.step(0)[4] == {"x": 0.5, "speed": 0.5, "cost": 0.25, "alive": 1.0}
        assert env.step(0)[4]["x"] == env.position == 1.0


class TestRounds:
    def test_turns_lie_between_readings_of_the_limit_and_go_to_and_fro(self) -> None:
        record, turns = play(SPIN, {"dummy": 600, "SB3 DummyVecEnv": 300})
        assert turns.log == ["dummy", "SB3 DummyVecEnv", "SB3 DummyVecEnv", "dummy"]
        order = [(reading["candidate"] == LIMIT, reading["round"]) for reading in record["readings"]]
        assert order == [*[(True, 0), (False, 0)] * 2, *[(True, 1), (False, 1)] * 2, (True, 2)]
        assert record["rounds"] == 2
        assert stack_figures.by_round(record, "dummy", figures.share) == {0: pytest.approx(0.4), 1: pytest.approx(0.4)}

    def test_a_failure_is_recorded_and_its_candidate_left_out(self) -> None:
        record, turns = play(SPIN, {"dummy": 600, "EnvPool": "no answer within 60 s"}, rounds=3)
        assert turns.log.count("EnvPool") == 1
        assert stack_figures.failures(record) == {"EnvPool": "no answer within 60 s"}
        assert stack_figures.by_round(record, "EnvPool", figures.share) == {}

    def test_slow_candidates_take_fewer_turns(self) -> None:
        _, turns = play(SPIN, {"dummy": 600, "ray": 500}, rounds=4)
        assert (turns.log.count("dummy"), turns.log.count("ray")) == (4, peers_turns.SLOW_ROUNDS)

    def test_a_learner_computes_as_long_as_the_limit_takes_per_row(self) -> None:
        from vecenvs.bench.workloads import iterations_for

        _, turns = play(grid.cell("learner-spin100-8"), {"subproc": 600})
        assert {job.think for job in turns.jobs} == {iterations_for(1 / 2000)}  # the best reading
        _, turns = play(SPIN, {"subproc": 600})
        assert {job.think for job in turns.jobs} == {0}

    def test_rounds_shrink_to_the_budget_but_there_is_one(self) -> None:
        now = [0.0]

        class Slowly(NoLoops):
            def __enter__(self) -> Any:
                self.limit.run = lambda *_: now.append(now.pop() + 5.0) or Timing(1000, 1.0)  # type: ignore[method-assign]
                return self.limit

        def rounds(budget: Any) -> int:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(peers_turns, "BareLoops", Slowly)
                candidates = [peers_candidates.candidate("dummy")]
                *_, record = peers_turns.measure(SPIN, candidates, Turns({"dummy": 1.0}), budget.rounds(9), 1.0)
            return int(record["rounds"])

        budget = run.Budget(40.0, 2, lambda: now[0])
        assert [budget.begin_cell() and rounds(budget) for _ in range(2)] == [4, 3]
        assert not budget.begin_cell()
        tight = run.Budget(1.0, 1, lambda: now[0])
        assert tight.begin_cell()
        assert rounds(tight) == 1


class TestFigures:
    def test_ours_are_set_against_the_best_python_peer_round_by_round(self) -> None:
        rates: dict[str, float | str] = {"dummy": 300, "subproc": 600, "SB3 DummyVecEnv": 400, "EnvPool": 9000}
        record, _ = play(SPIN, rates)
        assert figures.best(record, ours=True) == "subproc"
        assert figures.best(record, ours=False) == "SB3 DummyVecEnv"
        assert figures.over_peer(record).median == pytest.approx(1.5)
        assert figures.value(record, "subproc").median == pytest.approx(0.4)

    def test_where_envs_cost_nothing_the_best_peer_is_the_measure(self) -> None:
        record, _ = play(ROWS, {"dummy": 600, "PufferLib Serial": 400, "SB3 DummyVecEnv": 200})
        shown = {name: figures.value(record, name).median for name in record["candidates"]}
        expected = {"dummy": 1.5, "PufferLib Serial": 1.0, "SB3 DummyVecEnv": 0.5}
        assert shown == {name: pytest.approx(value) for name, value in expected.items()}

    def test_promises(self) -> None:
        cells = {
            "cartpole-64": play(grid.cell("cartpole-64"), {"dummy": 600, "subproc": 1350, "SB3 DummyVecEnv": 900})[0],
            "rows-64": play(ROWS, {"dummy": 600, "PufferLib Serial": 500})[0],
        }
        by_what = {promise.what: figures.promised_figure(promise, cells) for promise in grid.PROMISES}
        assert by_what["CartPole, 64 envs"][0].median == pytest.approx(0.9)
        assert by_what["CartPole, 64 envs, dummy"][0].median == pytest.approx(0.4)
        assert by_what["84x84x4 bytes at no cost, 64 envs: over the best peer"][1] == "dummy over PufferLib Serial"
        least, where = by_what["the least of all cells: over the best peer"]
        assert (least.median, where) == (pytest.approx(1.2), "rows-64")
        assert by_what["CartPole, 8 envs"] is None

    def test_a_cell_without_peers_has_no_ratio(self) -> None:
        assert figures.over_peer(play(SPIN, {"dummy": 600})[0]) is None


def data_of(**cells: Any) -> dict[str, Any]:
    run = {
        "command": "python -m benchmarks.peers",
        "machine": {"cores": 2, "system": "Linux 6", "python": "3.11.7"},
        "versions": {"numpy": "2.4"},
    }
    return {"format": 1, "runs": [run], "cells": {key.replace("_", "-"): record for key, record in cells.items()}}


class TestPage:
    def test_says_what_was_measured_and_what_failed(self) -> None:
        rates: dict[str, float | str] = {"subproc": 600, "SB3 DummyVecEnv": 900, "EnvPool": "OSError: no"}
        data = data_of(spin100_8=play(SPIN, rates)[0])
        page = pages.page(data, "peers.json", "../peers.json", {"cost": "benchmarks/cost.svg"})
        assert "| SB3 DummyVecEnv | **0.60** (0.60..0.60) |" in page
        assert "| *our best over the best Python peer* | 0.67 (0.67..0.67) |" in page
        missed = "| 100 us, 8 envs | >= 0.95 | 0.40 (0.40..0.40) | **missed** | subproc |"
        assert missed in pages.promised(data["cells"])
        assert missed not in page  # users need not see it
        assert "| EnvPool | failed |" in page
        assert "* EnvPool failed (100 us, 8 envs): OSError: no" in page
        assert "![Cost of a step](benchmarks/cost.svg)" in page
        assert "## Resets" not in page  # nothing of it is there

    def test_a_cell_that_was_interrupted_does_not_count(self) -> None:
        record = {**play(SPIN, {"subproc": 600})[0], "complete": False}
        page = pages.page(data_of(spin100_8=record), "a", "b", {})
        assert "## Cost of a step" not in page
        assert "100 us, 8 envs | >= 0.95 | not yet" in pages.promised({})

    def test_pictures_lie_beside_it(self, tmp_path: Path) -> None:
        record = play(SPIN, {"subproc": 600, "SB3 DummyVecEnv": 300, "EnvPool": "OSError: no"})[0]
        program.write_page(data_of(spin100_8=record), tmp_path / "peers.json", tmp_path / "docs/page.md")
        assert ">0.40  vecenvs subproc" in (tmp_path / "docs/page/cost.svg").read_text()
        path = tmp_path / "docs/page.md"
        assert "(page/cost.svg)" in path.read_text()
        batched = path.read_text().replace("<!-- batched: begin -->\n", "<!-- batched: begin -->\nabout batches\n")
        path.write_text(sections.with_section(batched, "training", "about training"))
        program.write_page(data_of(spin100_8=record), tmp_path / "peers.json", path)
        assert path.read_text().count("<!-- training: begin -->\nabout training\n<!-- training: end -->") == 1
        assert path.read_text().count("<!-- batched: begin -->\nabout batches\n<!-- batched: end -->") == 1


class TestRun:
    @pytest.fixture
    def turns(self, monkeypatch: pytest.MonkeyPatch) -> Turns:
        """All candidates, without a process."""
        turns = Turns({one.name: 500 for one in peers_candidates.CANDIDATES})
        monkeypatch.setattr(peers_turns, "BareLoops", NoLoops)
        monkeypatch.setattr(run.Processes, "ask", lambda _, *args: turns.ask(*args))
        monkeypatch.setattr(program.axis_charts, "draw_axis", lambda *_: None)
        return turns

    def test_continues_after_an_interruption(
        self, turns: Turns, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        where = ["--record", str(tmp_path / "peers.json"), "--to", str(tmp_path / "page.md"), "--rounds", "2"]
        cells = ["--only", "spin100-8", "rows-64"]
        interrupt_at = len(of_cell(SPIN)) * 2 + 3

        def broken(*args: Any) -> Any:
            if len(turns.log) >= interrupt_at:
                raise KeyboardInterrupt
            return turns.ask(*args)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(run.Processes, "ask", lambda _, *args: broken(*args))
            with pytest.raises(SystemExit, match="continues from here"):
                run.main(program.SUITE, [*where, *cells])
        kept = json.loads((tmp_path / "peers.json").read_text())["cells"]
        assert [key for key, record in kept.items() if record["complete"]] == ["spin100-8"]

        turns.log.clear()
        run.main(program.SUITE, [*where, *cells])
        assert set(turns.log) == {*of_cell(ROWS)}
        data = json.loads((tmp_path / "peers.json").read_text())
        assert all(record["complete"] for record in data["cells"].values())
        assert [record["run"] for record in data["cells"].values()] == [0, 1]
        assert len(data["runs"]) == 2

        turns.log.clear()
        run.main(program.SUITE, [*where, *cells])
        assert not turns.log
        assert "nothing to measure" in capsys.readouterr().out
        assert "84x84x4 bytes, 64 envs" in (tmp_path / "page.md").read_text()

    def test_time_that_is_over_ends_it(self, turns: Turns, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        where = ["--record", str(tmp_path / "peers.json"), "--to", str(tmp_path / "page.md")]
        run.main(program.SUITE, [*where, "--minutes", "0", "--only", "cost"])
        assert "the time is over" in capsys.readouterr().out
        assert not turns.log

    def test_unknown_names_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(SystemExit, match="no such axis or cell"):
            run.main(program.SUITE, ["--only", "nothing", "--record", str(tmp_path / "peers.json")])
