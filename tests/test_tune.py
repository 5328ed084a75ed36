"""`python -m vecenvs tune`: what it tries, how it chooses, and that what it prints works."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from vecenvs import DummyVecEnv, SubprocVecEnv, make_vec_env
from vecenvs.__main__ import main
from vecenvs.bench import learner, tuning, tuning_table, workloads
from vecenvs.bench.contest import LIMIT, Timing, Turn
from vecenvs.bench.tuning import Setting
from vecenvs.testing.envs import CountingEnv


def run(*arguments: str) -> int:
    """Return the exit code of the command, also where argparse exits by itself."""
    try:
        return main(("tune", *arguments))
    except SystemExit as leaving:
        return int(str(leaving.code))


def names(found: list[Setting]) -> list[tuple[str, int]]:
    return [(candidate.name, candidate.num_envs) for candidate in found]


class TestCandidates:
    def test_on_two_cores(self) -> None:
        found = tuning.settings_to_try([8, 2], 2, learner=False)
        three = ["dummy", "subproc:w=2", "subproc:w=2,caller"]
        assert names(found) == [*((name, 2) for name in three), *((n, 8) for n in (*three, "subproc:w=4"))]

    def test_on_many_cores_workers_go_by_powers_of_two(self) -> None:
        found = tuning.settings_to_try([64], 12, learner=False)
        workers = [int(c.backend.options["num_workers"]) for c in found if c.name.startswith("subproc")]
        assert sorted(set(workers)) == [2, 4, 8, 12, 24]
        assert max(c.backend.options["num_workers"] for c in found if "caller" in c.name) == 12

    def test_a_learner_makes_halves_worth_a_try(self) -> None:
        found = tuning.settings_to_try([4], 2, learner=True)
        halves = [c for c in found if c.halves]
        assert [c.backend.name for c in halves] == ["subproc:w=1", "subproc:w=2", "subproc:w=4"]
        assert {c.batch for c in halves} == {2}
        assert not [c for c in tuning.settings_to_try([1], 2, learner=True) if c.halves]

    def test_batched_envs(self) -> None:
        found = [c for c in tuning.settings_to_try([8], 2, learner=False, native=True) if "native" in c.name]
        assert [c.name for c in found] == ["dummy native", "subproc:w=2 native", "subproc:w=2,caller native"]
        line = tuning.make_vec_env_line('"CartPole-v1"', found[0], {})
        assert line == 'env = make_vec_env("CartPole-v1", num_envs=8, backend="dummy", vectorization="native")'

    def test_the_line_to_paste(self) -> None:
        _, plain, caller, _ = tuning.settings_to_try([8], 2, learner=False)
        assert (
            tuning.make_vec_env_line('"A-v0"', plain, {})
            == 'env = make_vec_env("A-v0", num_envs=8, backend="subproc", num_workers=2)'
        )
        assert tuning.make_vec_env_line("f", caller, {"x": 1}).endswith("caller_steps=True, env_kwargs={'x': 1})")

    @pytest.mark.parametrize("budget", [5.0, 45.0, 300.0])
    @pytest.mark.parametrize("cores", [1, 2, 64])
    def test_a_plan_keeps_to_its_time(self, budget: float, cores: int) -> None:
        settings = tuning.settings_to_try([8, 32, 128], cores, learner=False)
        rungs = tuning.plan(settings, budget)
        stepping = sum(1.25 * seconds * repeats * count for seconds, repeats, count in rungs)
        assert stepping <= max(budget, 1.25 * 0.05 * tuning.total(settings, budget) * 3)
        assert [count for _, _, count in rungs] == sorted((count for _, _, count in rungs), reverse=True)


class FakeLoops:
    def run(self, seconds: float, warmup: float) -> Timing:
        return Timing(1000, 1.0)


class Silent:
    def advance(self, what: str, note: str = "") -> None:
        """Say nothing."""


class Clock:
    """Time passes with turns only."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def searching(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Search among candidates whose rates are given, without any stepping. The limit is 1000 steps/s."""
    clock = Clock()
    monkeypatch.setattr(tuning, "time", clock)

    def search(settings: list[Setting], rates: dict[tuple[str, int], Any], budget: float = 45.0) -> tuning.Search:
        def contest(rounds: Any, _: Any, size: int, *, seconds: float) -> Iterator[Turn]:
            for number, candidates in enumerate(rounds):
                yield Turn(LIMIT, size, number, Timing(1000, 1.0))
                for candidate in candidates:
                    clock.now += seconds
                    rate = rates.get((candidate.name, size), 100)
                    if rate is KeyboardInterrupt:
                        raise rate
                    if isinstance(rate, str):
                        yield Turn(candidate.name, size, number, failure=rate)
                    else:
                        yield Turn(candidate.name, size, number, Timing(rate, 1.0), 0.5)
            yield Turn(LIMIT, size, len(rounds), Timing(1000, 1.0))

        monkeypatch.setattr(tuning, "contest", contest)
        return tuning.search(settings, FakeLoops(), lambda n, b: None, Silent(), budget=budget)

    return search


class TestSearch:
    settings = tuning.settings_to_try([8, 32], 2, learner=False)

    def test_the_fastest_gets_to_the_end_and_is_recommended(self, searching: Any) -> None:
        found = searching(self.settings, {("subproc:w=2,caller", 8): 900, ("dummy", 8): 500, ("dummy", 32): 450})
        best = found.recommended()
        assert (best.candidate.name, best.candidate.num_envs) == ("subproc:w=2,caller", 8)
        assert best.share.median == pytest.approx(0.9)
        assert best.turns == 3
        assert [len([r for r in found.readings if r.rung == rung]) for rung in range(3)] == [8, 4, 3]

    @pytest.mark.parametrize(("rate", "chosen"), [(960, "dummy"), (940, "subproc:w=2")])
    def test_about_as_fast_and_simpler_wins(self, searching: Any, rate: float, chosen: str) -> None:
        found = searching(self.settings, {("subproc:w=2", 8): 1000, ("dummy", 8): rate})
        assert found.recommended().candidate.name == chosen
        assert found.best().candidate.name == "subproc:w=2"

    def test_fewer_envs_are_simpler(self, searching: Any) -> None:
        found = searching(self.settings, {("subproc:w=2", 8): 980, ("dummy", 32): 1000})
        assert found.recommended().candidate.num_envs == 8

    def test_one_candidate_alone_is_measured_in_full(self, searching: Any) -> None:
        found = searching(tuning.settings_to_try([1], 2, learner=False), {("dummy", 1): 400})
        assert (found.recommended().rung, found.recommended().turns) == (2, 3)

    def test_failures_are_reported_and_do_not_affect_others(self, searching: Any) -> None:
        found = searching(self.settings, {("dummy", 8): "ValueError: no", ("subproc:w=2", 8): 500})
        assert found.recommended().candidate.name == "subproc:w=2"
        assert "dummy failed with 8 envs: ValueError: no" in tuning_table.notes(found, 0.0, learner=False)

    def test_without_any_success_nothing_is_recommended(self, searching: Any) -> None:
        found = searching(self.settings, {(c.name, c.num_envs): "no" for c in self.settings})
        assert found.best() is None
        assert found.record()["recommended"] is None

    def test_time_is_kept_but_something_is_measured(self, searching: Any) -> None:
        found = searching(self.settings, {("subproc:w=2", 8): 500}, budget=0.01)
        assert found.out_of_time
        assert found.recommended().candidate.name == "subproc:w=2"

    def test_a_rung_that_was_cut_short_says_nothing(self, searching: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tuning, "plan", lambda *_: [(1.0, 1, 8), (1.0, 1, 4), (1.0, 1, 3)])
        rates = {("dummy", 8): 500, ("subproc:w=2", 8): 900, ("subproc:w=2,caller", 8): 800}
        for budget in np.arange(8.5, 16.0):
            found = searching(self.settings, rates, budget=float(budget))
            assert found.out_of_time == (budget < 15)
            assert found.recommended().candidate.name == "subproc:w=2"

    def test_a_rung_in_which_all_are_read_counts(self, searching: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """Although the time was over in its last reading, or Ctrl-C came."""
        monkeypatch.setattr(tuning, "plan", lambda *_: [(1.0, 1, 8), (1.0, 1, 4), (1.0, 3, 3)])
        rates = {("dummy", 8): 500, ("subproc:w=2", 8): 900, ("subproc:w=2,caller", 8): 800}
        assert searching(self.settings, rates, budget=20.5).recommended().rung == 2
        rates[("dummy", 32)] = KeyboardInterrupt
        found = searching(tuning.settings_to_try([8, 32], 2, learner=False), rates)
        assert found.interrupted
        assert {reading.rung for reading in found.readings} == {0}

    def test_ctrl_c_before_anything_is_known(self, searching: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(FakeLoops, "run", lambda *_: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            searching(self.settings, {})

    def test_sizes_of_which_a_step_takes_too_long_are_left_out(self, searching: Any) -> None:
        found = searching(tuning.settings_to_try([8, 5000], 2, learner=False), {})
        assert found.left_out == [5000]
        assert found.recommended().candidate.num_envs == 8

    def test_ctrl_c_keeps_what_there_is(self, searching: Any) -> None:
        found = searching(self.settings, {("dummy", 8): 500, ("dummy", 32): KeyboardInterrupt})
        assert found.interrupted
        assert found.recommended().candidate.name == "dummy"


def round_to_us(seconds: float) -> int:
    return round(1e6 * seconds)


class TestLearners:
    @pytest.mark.parametrize("num_envs", [4, 5])
    def test_halves_step_every_env(self, num_envs: int) -> None:
        vec = SubprocVecEnv([CountingEnv] * num_envs, num_workers=2)
        vec.reset(seed=0)
        stepper = learner.HalvesStepper(vec, iterations=10)
        try:
            assert stepper.step(20) == 40 * (num_envs // 2)
        finally:
            stepper.close()

    def test_halves_are_halves(self) -> None:
        with DummyVecEnv([CountingEnv] * 6) as vec:
            vec.reset()
            assert learner.HalvesStepper(vec, 0).step(1) == 6

    def test_between_steps(self, monkeypatch: pytest.MonkeyPatch) -> None:
        computed: list[int] = []
        monkeypatch.setattr(learner, "spin", computed.append)
        with DummyVecEnv([CountingEnv] * 3) as vec:
            assert learner.BetweenStepper(vec, vec.reset(), 7).step(4) == 12
        assert computed == [7] * 4

    @pytest.mark.sparse
    @pytest.mark.parametrize(
        ("arguments", "seconds"), [([], 3e-4), (["--gap-us", "0"], 0.0), (["--gap-us", "50"], 5e-5)]
    )
    def test_the_program_computes_between_steps(
        self, monkeypatch: pytest.MonkeyPatch, arguments: list[str], seconds: float
    ) -> None:
        asked: dict[str, Any] = {}
        monkeypatch.setattr(workloads, "iterations_for", round_to_us)
        monkeypatch.setattr(
            tuning, "search", lambda *args, **options: asked.update(options) or tuning.Search([], [1.0])
        )
        assert run("CartPole-v1", *arguments) == 1
        assert asked["iterations"] == round_to_us(seconds)

    def test_rows_of_any_batch(self) -> None:
        array = np.arange(4) * 10
        batch = {"a": array, "b": (array, ["p", "q", "r", "s"])}
        found = learner.rows_of(batch, np.array([2, 0]))
        assert found["a"].tolist() == [20, 0]
        assert found["b"][0].tolist() == [20, 0]
        assert found["b"][1] == ["r", "p"]


class TestCommand:
    @pytest.mark.long
    def test_the_line_it_prints_works(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.chdir(tmp_path)
        assert run("CartPole-v1", "--num-envs", "2", "--budget", "0.5", "--json", "out.json") == 0
        out = capsys.readouterr().out
        assert "share of the limit" in out
        assert "The program computes for 300 us per batch of all envs (--gap-us)" in " ".join(out.split())
        assert "=>" in out
        line = out.splitlines()[0]
        scope: dict[str, Any] = {"make_vec_env": make_vec_env}
        exec(line, scope)  # noqa: S102  what a user does with it
        with scope["env"] as env:
            assert env.reset().shape == (2, 4)
            assert isinstance(env.action_space, gym.spaces.Discrete)
        record = json.loads((tmp_path / "out.json").read_text())
        assert record["recommended"]["candidate"]["num_envs"] == 2
        assert (record["env"], record["gap_us"]) == ("CartPole-v1", 300.0)

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (["CartPol-v1"], "unknown env 'CartPol-v1'"),
            (["CartPole-v1", "--learner-ms", "2"], "--num-envs N"),
            (["CartPole-v1", "--learner-ms", "2", "--num-envs", "8", "32"], "--num-envs N"),
            (["CartPole-v1", "--learner-ms", "0"], "milliseconds above 0"),
            (["CartPole-v1", "--gap-us", "-1"], "microseconds above 0"),
            (["CartPole-v1", "--gap-us", "1", "--learner-ms", "1"], "not allowed with"),
            (["CartPole-v1", "--backends", "threads"], "unknown backend 'threads'"),
            (["CartPole-v1", "--budget", "-1"], "seconds above 0"),
            (["CartPole-v1", "--num-envs", "0"], "at least 1"),
        ],
    )
    def test_bad_input_is_one_line(self, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(*arguments) == 2
        err = capsys.readouterr().err
        assert says in err
        assert err.startswith("python -m vecenvs tune: error: ")
        assert err.count("\n") == 1


def test_envs_that_wait_have_threads_and_many_workers() -> None:
    names = [setting.name for setting in tuning.settings_to_try([8, 32], 2, learner=False, waits=True)]
    assert names.count("dummy:concurrency=threads") == 2
    assert names.count("subproc:w=2,concurrency=threads") == 2
    assert {"subproc:w=8", "subproc:w=16", "subproc:w=32"} <= {*names}
    assert not any("w=64" in name for name in names)


def test_whether_an_env_waits() -> None:
    assert tuning.waits(workloads.workload("sleep:20ms"))
    assert not tuning.waits(workloads.workload("spin:20us"))
