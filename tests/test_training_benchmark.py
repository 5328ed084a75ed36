"""The benchmark of training: its pieces work. No timing is asserted."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from contextlib import closing
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from later import Later

from vecenvs.bench.workloads import BadRequest

sys.path.insert(0, str(Path(__file__).parents[1]))  # benchmarks/ is no part of the package
program = Later("benchmarks.training.__main__")  # it draws charts
candidates = import_module("benchmarks.training.candidates")
figures = import_module("benchmarks.training.figures")
grid = import_module("benchmarks.training.grid")
pages = import_module("benchmarks.training.page")
turns = import_module("benchmarks.training.turns")
processes = import_module("benchmarks.stack.processes")
stack_figures = import_module("benchmarks.stack.figures")

GAPS = grid.Cell(grid.GAPS, "cartpole", 4, (0, 100))
SB3 = grid.Cell(grid.SB3, "cartpole", 4)
OWN = grid.Cell(grid.OWN, "cartpole", 4)
ROLLOUT = 256
HALVES = "subproc:w=2, halves"


def names(cell: Any, *only: str) -> list[str]:
    return [found.name for found in candidates.candidates_of(cell, only or None)]


def take_turn(name: str, cell: Any) -> dict[str, Any]:
    found: dict[str, Any] = turns.turn_here(name, cell, 0.05 if cell is GAPS else 0.0)
    assert "failure" not in found, found
    return found


def training(wall: float, update: float = 1e-4) -> dict[str, Any]:
    parts = {"step": wall / 4, "inference": wall / 4, "update": update, "wall": wall}
    return {"seconds_per_transition": parts, "others_cpu": 0.5, "setting": {"backend": "X"}}


def gap(median: float) -> dict[str, Any]:
    steps = {"median": median, "low": median / 2, "high": 2 * median}
    return {"steps": {"0": steps, "100": steps}, "updates": {"cpu": 0.02}}


def record(cell: Any, readings: dict[str, list[dict[str, Any]]]) -> Any:
    taken = [
        {"candidate": name, "round": number, **reading}
        for name, found in readings.items()
        for number, reading in enumerate(found)
    ]
    return {"run": 0, "cell": asdict(cell), "candidates": list(readings), "busy": [0.0], "readings": taken}


class TestCandidates:
    def test_candidates_of_each_measurement(self) -> None:
        assert names(SB3) == [
            *("dummy", "subproc", "subproc:caller", "default", "auto"),
            *("SB3 DummyVecEnv", "SB3 SubprocVecEnv"),
        ]
        assert set(names(OWN)) - set(names(GAPS)) == {"subproc, halves"}
        assert {"EnvPool", "PufferLib Serial", "Gymnasium AsyncVectorEnv"} <= set(names(GAPS))

    def test_libraries_and_any_setting_of_ours_can_be_chosen(self) -> None:
        assert names(GAPS, "gymnasium", "subproc:w=1", "dummy") == [
            *("dummy", "Gymnasium SyncVectorEnv", "Gymnasium AsyncVectorEnv"),
            "subproc:w=1",
        ]
        assert names(OWN, "auto, halves") == ["auto, halves"]
        with pytest.raises(BadRequest, match="unknown backend 'gym'"):
            names(GAPS, "gym")

    def test_cells(self) -> None:
        assert len({cell.key for cell in grid.CELLS}) == 3 * 3 * 2
        assert {key for axis in grid.AXES for key in axis.keys} == {cell.key for cell in grid.CELLS}
        assert set(grid.KEY) == {f"{measurement}-{env}-8" for measurement in ("sb3", "gaps") for env in grid.ENVS}


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
        assert found["updates"]["cpu"] is None or found["updates"]["cpu"] >= 0

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
            driven = candidates.Driven(vec, vec.observation_space, vec.action_space, obs, candidates._of_four)
            learner = ppo.learner_of(driven, 4, 12, halves=True)
            tags, times = torch.arange(4.0).expand(3, 4), torch.arange(3.0)[:, None].expand(3, 4)
            for begin in (0, 3):
                assert learner.collect() == 12
                assert torch.equal(learner.obs[..., 0], tags)
                assert torch.equal(learner.obs[..., 2], times + begin)
                assert torch.equal(learner.rewards, times + begin + 1 + tags / 8)
                learner.update()

    def test_a_failure_is_the_result_of_a_turn(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(turns, "measure_turn", lambda *_, **__: 1 / 0)
        assert turns.turn_here("dummy", SB3, 0.0) == {"failure": "ZeroDivisionError: division by zero"}


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
    def test_turns_go_to_and_fro_and_a_failure_ends_a_candidates_turns(self) -> None:
        log: list[str] = []

        class Processes:
            def ask(self, found: Any, order: Any, seconds: float) -> dict[str, Any]:
                log.append(found.name)
                if found.name == "auto":
                    raise processes.ProcessLost("no")
                return training(1e-3)

        found = candidates.candidates_of(SB3, ["dummy", "auto", "SB3 DummyVecEnv"])
        first, both = turns.measure(SB3, found, Processes(), iter(range(2)), 0.0)
        assert log == ["dummy", "auto", "SB3 DummyVecEnv", "SB3 DummyVecEnv", "dummy"]
        assert first["candidates"] == ["dummy", "auto", "SB3 DummyVecEnv"]
        assert stack_figures.failures(both) == {"auto": "no"}
        assert stack_figures.average(both, "dummy", figures.rate) == pytest.approx(1e3)

    @pytest.mark.long
    def test_a_turn_in_a_process_of_its_own(self) -> None:
        with closing(processes.Processes()) as there:
            *_, found = turns.measure(GAPS, [candidates.candidate("dummy")], there, iter(range(1)), 0.05)
        assert found["readings"][0]["steps"]["0"]["count"] >= 5


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
    assert parts.table_of({"readings": readings}).count("\n") == 1 + len(readings)


class TestFigures:
    def test_ratios_are_taken_round_by_round(self) -> None:
        readings = {"dummy": [training(1e-3), training(4e-3)], "SB3 DummyVecEnv": [training(2e-3), training(6e-3)]}
        found = record(SB3, readings)
        ratio = figures.relative(found, "dummy", figures.rate)
        assert (ratio.min, ratio.max) == (pytest.approx(1.5), pytest.approx(2.0))
        assert stack_figures.average(found, "dummy", figures.phase("other")) == pytest.approx(1150)

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
        program.write_page(data, tmp_path / "training.json", to)
        text = to.read_text()
        assert text.startswith("# Title\n\n<!-- training: begin -->\nA program has")
        assert text.endswith("<!-- training: end -->\n\nthe rest\n")
        assert ">= 1.00" not in text  # users need not see what was promised
        told = pages.promised(data["cells"])
        assert "`step` after 300 us: default / dummy | <= 1.00 | 0.50 (0.50..0.50) | kept | default |" in told
        assert "PPO: default / SB3 DummyVecEnv | >= 1.00 | 0.50 (0.50..0.50) | **missed** | default |" in told
        assert "PPO: best / SB3 DummyVecEnv | >= 1.10 | 2.00 (2.00..2.00) | kept | auto |" in told
        assert "our best / best library | >= 1.00 | 2.00 (2.00..2.00) | kept |" in told
        assert "(page/training-sb3.svg)" in text
        assert "50  vecenvs default" in (tmp_path / "page/training-gaps.svg").read_text()


def test_the_first_sentence_of_the_pages_is_what_the_files_say(tmp_path: Path) -> None:
    headline = import_module("docs.headline")
    for page, section in headline.sections(tmp_path / "headline.svg").items():
        assert section in page.read_text()
        assert "nan" not in section
    assert (tmp_path / "headline.svg").read_text() == headline.CHART.read_text()
