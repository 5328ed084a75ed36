"""benchmarks/breakdown.py: the stand-ins, the subtraction, and the command."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from vecenvs import DummyVecEnv
from vecenvs.bench.contest import LIMIT, Timing, Turn
from vecenvs.bench.workloads import BadRequest, workload
from vecenvs.testing.envs import CountingEnv

sys.path.insert(0, str(Path(__file__).parents[1]))  # benchmarks/ is no part of the package
breakdown = import_module("benchmarks.breakdown")
stand_ins = import_module("benchmarks.stand_ins")
loops = import_module("benchmarks.loop_candidates")


class Informative(gym.Env[Any, Any]):
    """An env whose episodes have three steps, with one observation array and infos that hold the step."""

    observation_space = gym.spaces.Dict({"a": gym.spaces.Box(0, 9, (2,), np.float32), "b": gym.spaces.Discrete(3)})
    action_space = gym.spaces.Discrete(2)

    def __init__(self) -> None:
        self.steps = 0
        self.array = np.zeros(2, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.steps = 0
        self.array[:] = 0
        return {"a": self.array, "b": 0}, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        self.array[:] = self.steps
        return {"a": self.array, "b": 1}, 0.5, self.steps == 3, False, {"step": self.steps}


class TestStandIn:
    def test_returns_what_the_env_returned(self) -> None:
        stand_in = stand_ins.record(Informative)
        env = stand_in()
        assert env.reset()[0]["a"].tolist() == [0, 0]
        rows = [env.step(0) for _ in range(len(stand_in.transitions))]
        assert [row[0]["a"].tolist() for row in rows[:4]] == [[1, 1], [2, 2], [3, 3], [1, 1]]  # copies, not one array
        assert [(row[1], row[2], row[4]) for row in rows[1:3]] == [(0.5, False, {"step": 2}), (0.5, True, {"step": 3})]
        assert env.step(0)[4] == {"step": 1}  # from the beginning again

    @pytest.mark.parametrize("part", ["rows", "infos", "ends"])
    def test_returns_only_the_parts_that_are_asked_for(self, part: str) -> None:
        env = stand_ins.record(Informative).only(**{part: True})()
        third = [env.step(0) for _ in range(3)][-1]
        given = {"rows": isinstance(third[0], dict), "infos": bool(third[4]), "ends": third[2]}
        assert given == {name: name == part for name in given}
        assert isinstance(env.observation_space, gym.spaces.Dict) == (part == "rows")

    def test_a_vec_env_can_step_them(self) -> None:
        stand_in = stand_ins.record(Informative)
        for one in (stand_in, stand_in.only(), stand_in.only(rows=True)):
            with DummyVecEnv([one] * 3) as vec:
                vec.reset()
                ended = [vec.step([0] * 3)[2].all() for _ in range(6)]
                assert ended == ([False, False, True] * 2 if one is stand_in else [False] * 6)

    def test_rows_of_large_envs_are_few(self) -> None:
        stand_in = stand_ins.record(workload("rows:1024x1024x4"))
        assert len(stand_in.transitions) == 8

    def test_the_env_is_closed(self) -> None:
        closed: list[bool] = []

        class Closing(CountingEnv):
            def close(self) -> None:
                closed.append(True)

        stand_ins.record(Closing)
        assert closed == [True]


class TestLoop:
    def test_steps_every_env_as_often(self) -> None:
        made: list[Informative] = []

        def env_fn() -> Informative:
            made.append(Informative())
            return made[-1]

        stepper = loops.LoopCandidate("loop", env_fn).make(3)
        assert stepper.step(4) == 12
        assert [env.steps for env in made] == [1, 1, 1]  # the fourth step, after a reset
        stepper.close()

    def test_actions_of_any_space(self) -> None:
        class Nested(Informative):
            action_space = gym.spaces.Tuple((gym.spaces.Discrete(2), gym.spaces.Box(0, 1, (2,))))

            def step(self, action: Any) -> Any:
                assert self.action_space.contains(action)
                return super().step(action)

        assert loops.LoopCandidate("loop", Nested).make(2).step(5) == 10


class FailsLater(Informative):
    """The env of a broken library: its third step raises."""

    def step(self, action: Any) -> Any:
        if self.steps == 2:
            raise RuntimeError("the simulator fell over")
        return super().step(action)


class TestLockStep:
    @pytest.mark.parametrize("count", [1, 2, 3])
    def test_steps_every_env_as_often(self, count: int) -> None:
        stepper = loops.LockStepCandidate("lock-step", CountingEnv, count).make(5)
        assert stepper.step(4) == 20
        assert stepper.step(1) == 5
        stepper.close()
        stepper.close()

    @pytest.mark.long
    def test_loops_go_on_after_a_pause(self) -> None:
        stepper = loops.LockStepCandidate("lock-step", CountingEnv, 2).make(2)
        stepper.step(1)
        time.sleep(0.2)  # longer than any side tries before it sleeps
        assert stepper.step(3) == 6
        stepper.close()

    def test_an_env_that_cannot_be_made(self) -> None:
        def broken() -> Any:
            raise OSError("no such file: model.xml")

        with pytest.raises(BadRequest, match="no such file"):
            loops.LockStepCandidate("lock-step", broken, 2).make(2)

    @pytest.mark.long
    def test_an_env_that_fails_in_another_loop(self) -> None:
        here = os.getpid()

        def env_fn() -> Any:
            return Informative() if os.getpid() == here else FailsLater()

        stepper = loops.LockStepCandidate("lock-step", env_fn, 2).make(2)
        stepper.step(2)
        with pytest.raises(BadRequest, match="the simulator fell over"):
            stepper.step(1)
        stepper.close()


# Microseconds per env step. They determine all parts, which the subtraction must find.
TIMES = {
    "~loop of one": 9,
    "~loop": 11,
    "~lock-step": 8,
    "dummy": 20,
    "subproc": 9,
    "~loop blank": 1,
    "~loop all": 1.5,
    "~dummy blank": 3,
    "~dummy rows in place": 4,
    "~dummy rows": 4.25,
    "~dummy rows, infos": 6.25,
    "~dummy all": 9.75,
}
PARTS = {"env": 10, "alone": -1, "turns": 2, "calls": 2, "rows": 1, "copies": 0.25, "infos": 2, "ends": 3, "rest": 0.75}


def turns(rounds: int = 2, left_out: str = "") -> list[Turn]:
    """Return readings on two cores. The limit uses both: 10 us of core time are 5 us of the clock."""
    found = []
    for number in range(rounds):
        found.append(Turn(LIMIT, 8, number, Timing(200_000, 1.0)))
        found += [Turn(n, 8, number, Timing(round(1e6 / t * 1e3), 1e3)) for n, t in TIMES.items() if n != left_out]
    return [*found, Turn(LIMIT, 8, rounds, Timing(200_000, 1.0))]


class TestSubtraction:
    def test_finds_every_part(self) -> None:
        found = {p.part: p for p in breakdown.parts(turns(), ["dummy"], 2)}
        for part, micros in PARTS.items():
            assert found[part].seconds.median == pytest.approx(micros * 1e-6, rel=1e-3)
            assert found[part].share.median == pytest.approx(micros / 40, rel=1e-3)
        assert found["waiting"].share.median == pytest.approx(0.5, rel=1e-3)  # the other core

    def test_parts_add_up_to_all_core_time(self) -> None:
        found = breakdown.parts(turns(), ["dummy", "subproc"], 2)
        for name in ("dummy", "subproc"):
            assert sum(p.share.median for p in found if p.candidate == name) == pytest.approx(1)
        env = next(p for p in found if (p.candidate, p.part) == ("subproc", "env"))
        assert env.share.median == pytest.approx(5 / 9, rel=1e-3)  # its share of the limit
        uneven, waiting = (
            next(p for p in found if (p.candidate, p.part) == ("subproc", part)) for part in ("uneven", "waiting")
        )
        assert uneven.seconds.median == pytest.approx((16 - 10 - 2) * 1e-6, rel=1e-2)  # two cores, less env and turns
        assert waiting.seconds.median == pytest.approx((18 - 21 - 4) * 1e-6, rel=1e-2)

    def test_each_number_of_envs_has_parts_of_its_own(self) -> None:
        faster = [
            replace(turn, num_envs=64, timing=Timing(4 * turn.timing.steps, turn.timing.seconds))
            for turn in turns()
            if turn.timing is not None
        ]
        found = {(p.num_envs, p.part): p.seconds.median for p in breakdown.parts([*turns(), *faster], ["dummy"], 2)}
        for part, micros in PARTS.items():
            assert found[64, part] == pytest.approx(found[8, part] / 4, rel=1e-3)
            assert found[8, part] == pytest.approx(micros * 1e-6, rel=1e-3)

    def test_rounds_that_lack_a_reading_do_not_count(self) -> None:
        assert breakdown.parts(turns(left_out="~dummy all"), ["dummy"], 2) == []
        assert {p.candidate for p in breakdown.parts(turns(left_out="subproc"), ["dummy", "subproc"], 2)} == {"dummy"}

    def test_probes_are_those_that_are_needed(self) -> None:
        for chosen in (["subproc"], ["dummy", "subproc"]):
            made = breakdown.probes(CountingEnv, lambda n, b: None, chosen, 2)
            assert {p.name for p in made} | {LIMIT} | set(chosen) - {"subproc"} == {LIMIT, "dummy", *TIMES} - {
                "subproc"
            }
            assert ("dummy" in {p.name for p in made}) == ("dummy" not in chosen)


class TestCommand:
    @pytest.mark.long
    def test_prints_and_writes(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        options = ["--num-envs", "2", "--backends", "dummy", "--seconds", "0.02", "--repeats", "2"]
        breakdown.main(["CartPole-v1", *options, "--json", str(tmp_path / "out.json")])
        out = capsys.readouterr().out
        assert "Where the core time of 2 envs goes" in out
        assert all(meaning in out for meaning in breakdown.MEANING.values())
        assert "~loop" not in out
        record = json.loads((tmp_path / "out.json").read_text())
        shares = [part["share"] for part in record["breakdown"]]
        assert len(shares) == len(breakdown.MEANING)
        assert all(share["min"] <= share["median"] <= share["max"] for share in shares)
