"""The benchmark of training: its pieces work. No timing is asserted."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from later import Later

from vecenvs.bench.workloads import BadRequest

sys.path.insert(0, str(Path(__file__).parents[1]))  # benchmarks/ is no part of the package
program = Later("benchmarks.training.__main__")  # these two draw charts
charts = Later("benchmarks.training.charts")
contestants = import_module("benchmarks.training.contestants")
figures = import_module("benchmarks.training.figures")
grid = import_module("benchmarks.training.grid")
pages = import_module("benchmarks.training.page")
tables = import_module("benchmarks.training.tables")
budgets = import_module("benchmarks.peers.budget")

GAPS = grid.Cell(grid.GAPS, "cartpole", 4, 0.01, (0, 100))
SB3 = grid.Cell(grid.SB3, "cartpole", 4, 0.0)
OWN = grid.Cell(grid.OWN, "cartpole", 4, 0.0)
ROLLOUT = 256
HALVES = "subproc:w=2, halves"


def names(cell: Any, *only: str) -> list[str]:
    return [found.name for found in contestants.lineup(cell, only or None)]


def take_turn(name: str, cell: Any) -> dict[str, Any]:
    serve_turns = import_module("benchmarks.training.serve_turns")  # it loads torch
    found: dict[str, Any] = serve_turns.take_turn(grid.Order(name, cell))
    assert "failure" not in found, found
    return found


def training(wall: float, update: float = 1e-4) -> dict[str, Any]:
    parts = {"step": wall / 4, "inference": wall / 4, "update": update, "wall": wall}
    return {"seconds_per_transition": parts, "others_cpu": 0.5, "setting": {"backend": "X"}}


def gap(median: float) -> dict[str, Any]:
    steps = {"median": median, "low": median / 2, "high": 2 * median}
    return {"steps": {"0": steps, "100": steps}, "updates": {"cpu": None, "minibatches": 9.0, "first_step": steps}}


def record(cell: Any, readings: dict[str, list[dict[str, Any]]]) -> Any:
    taken = [
        {"contestant": name, "round": number, **reading}
        for name, found in readings.items()
        for number, reading in enumerate(found)
    ]
    return figures.cell_record(cell, list(readings), taken, [0.0], 0)


class TestLineup:
    def test_contestants_of_each_measurement(self) -> None:
        assert names(SB3) == [
            *("dummy", "subproc", "subproc:caller", "default", "auto"),
            *("SB3 DummyVecEnv", "SB3 SubprocVecEnv"),
        ]
        assert set(names(OWN)) - set(names(GAPS)) == {"subproc, halves"}
        assert {"EnvPool", "PufferLib Serial", "Gymnasium AsyncVectorEnv"} <= set(names(GAPS))

    def test_libraries_and_any_setting_of_ours_can_be_chosen(self) -> None:
        assert names(GAPS, "gymnasium", "subproc:w=1", "dummy") == [
            *("Gymnasium SyncVectorEnv", "Gymnasium AsyncVectorEnv"),
            *("subproc:w=1", "dummy"),
        ]
        assert names(OWN, "auto, halves") == ["auto, halves"]
        with pytest.raises(BadRequest, match="unknown backend 'gym'"):
            names(GAPS, "gym")

    def test_cells_of_the_plans(self) -> None:
        assert len({cell.key for cell in grid.COMPLETE.cells()}) == 3 * 3 * 2
        assert {cell.gaps for cell in grid.KEY.cells()} == {(), (300, 1000)}


class TestTurns:
    @pytest.fixture(autouse=True)
    def short(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(grid.ENVS, "cartpole", replace(grid.ENVS["cartpole"], rollout=ROLLOUT))
        monkeypatch.setattr(import_module("benchmarks.training.gaps"), "UPDATES", 2)

    @pytest.mark.parametrize("name", ["dummy", "auto", "SB3 DummyVecEnv", "Gymnasium SyncVectorEnv"])
    def test_gaps(self, name: str) -> None:
        found = take_turn(name, GAPS)
        assert [found["steps"][gap]["count"] >= 5 for gap in ("0", "100")] == [True, True]
        assert found["steps"]["100"]["gap"] >= 100
        assert found["updates"]["minibatches"] > 0

    @pytest.mark.parametrize("name", ["default", "SB3 DummyVecEnv"])
    def test_sb3(self, name: str) -> None:
        found = take_turn(name, SB3)
        assert found["transitions"] == ROLLOUT
        parts = found["seconds_per_transition"]
        assert 0 < parts["step"] + parts["inference"] + parts["update"] < parts["wall"]
        assert (found["setting"].get("backend") == "DummyVecEnv") == (name == "default")  # few and cheap envs

    @pytest.mark.parametrize("name", ["dummy", HALVES, "SB3 DummyVecEnv", "Gymnasium SyncVectorEnv"])
    def test_our_own_ppo(self, name: str) -> None:
        found = take_turn(name, OWN)
        resets = name.startswith("Gymnasium")  # the rows of its resets are no transitions
        assert (found["transitions"] < ROLLOUT) == resets
        assert found["transitions"] > 0.8 * ROLLOUT
        parts = found["seconds_per_transition"]
        assert 0 < parts["step"] + parts["inference"] + parts["update"] < parts["wall"]

    def test_actions_of_a_box_and_images(self) -> None:
        import numpy as np
        import torch
        from gymnasium import spaces

        agent = import_module("benchmarks.training.agent")
        made = agent.Agent(spaces.Box(0, 255, (4, 84, 84), np.uint8), spaces.Box(-0.1, 0.1, (3,), np.float32))
        actions, log_probs, values = made.act(made.tensor(np.zeros((2, 4, 84, 84), np.uint8)))
        assert (actions.shape, log_probs.shape, values.shape) == ((2, 3), (2,), (2,))
        given = made.to_env(torch.full((2, 3), 7.0))
        assert given.dtype == np.float32
        assert given.max() == np.float32(0.1)

    def test_halves_fill_the_memory_with_the_rows_of_each_env(self) -> None:
        import torch

        from vecenvs import SubprocVecEnv
        from vecenvs.testing.envs import counting_fns

        ppo = import_module("benchmarks.training.ppo")
        with SubprocVecEnv(counting_fns(4, length=100), num_workers=2) as vec:
            obs = vec.reset()
            driven = contestants.Driven(vec, vec.observation_space, vec.action_space, obs, contestants._of_four)
            learner = ppo.learner_of(driven, 4, 12, halves=True)
            tags, times = torch.arange(4.0).expand(3, 4), torch.arange(3.0)[:, None].expand(3, 4)
            for begin in (0, 3):
                assert learner.collect() == 12
                assert torch.equal(learner.obs[..., 0], tags)
                assert torch.equal(learner.obs[..., 2], times + begin)
                assert torch.equal(learner.rewards, times + begin + 1 + tags / 8)
                learner.update()

    def test_a_failure_is_the_result_of_a_turn(self, monkeypatch: pytest.MonkeyPatch) -> None:
        serve_turns = import_module("benchmarks.training.serve_turns")
        monkeypatch.setattr(serve_turns, "measure", lambda *_, **__: 1 / 0)
        found = serve_turns.take_turn(grid.Order("dummy", SB3))
        assert found == {"contestant": "dummy", "failure": "ZeroDivisionError: division by zero"}


@pytest.mark.skipif(sys.platform != "linux", reason="Linux has a clock for each process")
def test_the_cpu_of_descendants_counts() -> None:
    phases = import_module("benchmarks.training.phases")
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            others = phases.OthersCpu()
            before = others.read()
            while others.read() < before + 0.05:  # else the test's timeout
                pass
        finally:
            busy.kill()


class TestRun:
    def test_turns_go_to_and_fro_and_a_failure_ends_a_contestants_turns(self, tmp_path: Path) -> None:
        log: list[str] = []

        class Processes:
            def take_turn(self, found: Any, cell: Any) -> dict[str, Any]:
                log.append(found.name)
                failed = found.name == "auto"
                return {"contestant": found.name, **({"failure": "no"} if failed else training(1e-3))}

        data: dict[str, Any] = {"runs": [{}], "cells": {}}
        found = contestants.lineup(SB3, ["dummy", "auto", "SB3 DummyVecEnv"])
        program.measure_cell(SB3, found, Processes(), budgets.Budget(None, 1).rounds(2), data)
        assert log == ["dummy", "auto", "SB3 DummyVecEnv", "SB3 DummyVecEnv", "dummy"]
        assert program.is_there(data, SB3, found)
        assert not program.is_there(data, SB3, contestants.lineup(SB3))
        path = tmp_path / "training.json"
        program.save(path, data)
        assert program.is_there(program.load(path), SB3, found)

    def test_a_turn_in_a_process_of_its_own(self) -> None:
        with closing(program.Processes()) as processes:
            found = processes.take_turn(contestants.contestant("dummy"), GAPS)
        assert found["steps"]["0"]["count"] >= 5


def test_the_parts_of_a_step(tmp_path: Path) -> None:
    parts = import_module("benchmarks.training.parts")
    record = tmp_path / "parts.json"
    few = ["--envs", "cartpole", "--gaps", "0", "100", "--rounds", "1", "--seconds", "0.01"]
    parts.main([*few, "--record", str(record)])
    readings = json.loads(record.read_text())["readings"]
    assert [(one["setting"], one["place"], one["gap"]) for one in readings] == [
        *itertools.product(parts.SETTINGS, parts.PLACES, (0, 100))
    ]
    for one in readings:
        assert one["step"] > max(one["to the worker"], one["first env"], one["back"]) > 0
        assert 0 <= one["asleep"] <= 1
    assert parts.table({"readings": readings}).count("\n") == 1 + len(readings)


class TestFigures:
    def test_ratios_are_taken_round_by_round(self) -> None:
        readings = {"dummy": [training(1e-3), training(4e-3)], "SB3 DummyVecEnv": [training(2e-3), training(6e-3)]}
        found = record(SB3, readings)
        ratio = figures.relative(found, "dummy", figures.rate)
        assert (ratio.min, ratio.max) == (pytest.approx(1.5), pytest.approx(2.0))
        assert figures.average(found, "dummy", figures.phase("other")) == pytest.approx(1150)

    def test_tables_and_pictures(self, tmp_path: Path) -> None:
        own = {"dummy": [training(1e-3)], "default": [training(1e-3)], "EnvPool": [{"failure": "no EnvPool"}]}
        cells = [record(GAPS, {"dummy": [gap(50.0)], "SB3 DummyVecEnv": [gap(100.0)]}), record(OWN, own)]
        run = {"command": "x", "machine": {"cores": 2, "python": "3"}, "versions": {"torch": "2"}}
        data = {"runs": [run], "cells": {str(number): found for number, found in enumerate(cells)}}
        text = tables.page(data)
        assert "| dummy | 50 (25..100), 0.50 | 50 (25..100), 0.50 | - | 1.00 | 50, 0.50 |" in text
        assert "* EnvPool failed (CartPole, 4 envs): no EnvPool" in text
        assert "* default: backend=X" in text
        program.write_up(data, tmp_path / "training.json")
        assert {path.name for path in tmp_path.iterdir()} == {"training-gaps.png", "training-cleanrl.png"}

    def test_the_section_of_the_page(self, tmp_path: Path) -> None:
        steps = {**gap(50.0), "steps": {"300": {"median": 50.0, "low": 9, "high": 90}}}
        twice = {**steps, "steps": {"300": {"median": 100.0, "low": 9, "high": 90}}}
        cell = replace(GAPS, num_envs=8, gaps=(300,))
        found = record(cell, {"dummy": [twice], "default": [steps], "SB3 DummyVecEnv": [twice]})
        ppo = record(
            replace(SB3, num_envs=8),
            {"default": [training(2e-3)], "auto": [training(5e-4)], "SB3 DummyVecEnv": [training(1e-3)]},
        )
        run = {"command": "x", "machine": {"cores": 2, "python": "3"}, "versions": {"torch": "2"}}
        data = {"runs": [run], "cells": {cell.key: found, "sb3-cartpole-8": ppo}}
        to = tmp_path / "page.md"
        to.write_text("# Title\n\n<!-- training: begin -->\nold\n<!-- training: end -->\n\nthe rest\n")
        program.write_page(data, to)
        text = to.read_text()
        assert text.startswith("# Title\n\n<!-- training: begin -->\nA program has")
        assert text.endswith("<!-- training: end -->\n\nthe rest\n")
        assert ">= 1.00" not in text  # users need not see what was promised
        told = "\n".join(pages.promises(data["cells"]))
        assert (
            "| CartPole, `step` after 300 us: default / dummy | <= 1.00 | 0.50 (0.50..0.50) | kept | default |" in told
        )
        assert "PPO: default / SB3 DummyVecEnv | >= 1.00 | 0.50 (0.50..0.50) | **missed** | default |" in told
        assert "PPO: best / SB3 DummyVecEnv | >= 1.10 | 2.00 (2.00..2.00) | kept | auto |" in told
        assert "our best / best library | >= 1.00 | 2.00 | kept |" in told
        assert "(page/training-sb3.png)" in text
        assert (tmp_path / "page/training-gaps.png").exists()
