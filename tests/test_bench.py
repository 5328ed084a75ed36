"""The turns of the benchmark, and the report on them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from vecenvs.bench import bar_chart, contest, limit, report
from vecenvs.bench.contest import LIMIT, Timing, Turn
from vecenvs.bench.measurement import Measurement
from vecenvs.bench.memory_use import MemoryUse


class FakeStepper:
    def __init__(self, log: list[str], name: str, num_envs: int, broken: str) -> None:
        self.log, self.name, self.num_envs, self.broken = log, name, num_envs, broken

    def step(self, count: int) -> int:
        if self.broken == "step":
            raise RuntimeError("the env\nis broken")
        if self.broken == "interrupt":
            raise KeyboardInterrupt
        return count * self.num_envs

    def close(self) -> None:
        self.log.append(f"{self.name} closed")


class Fake:
    """A candidate that costs nothing and logs its turns."""

    def __init__(self, log: list[str], name: str, broken: str = "") -> None:
        self.log, self.name, self.broken = log, name, broken

    def make(self, num_envs: int) -> FakeStepper:
        self.log.append(self.name)
        if self.broken == "make":
            raise ValueError("no such thing")
        return FakeStepper(self.log, self.name, num_envs, self.broken)


class FakeLimit:
    def __init__(self, log: list[str]) -> None:
        self.log = log

    def run(self, seconds: float, warmup: float) -> Timing:
        self.log.append(LIMIT)
        return Timing(1000, 1.0)


def take(candidates: list[Fake], log: list[str], rounds: int = 2) -> list[Turn]:
    return list(contest.contest([candidates] * rounds, FakeLimit(log), 4, seconds=0.002))


class TestContest:
    def test_each_turn_lies_between_two_readings_of_the_limit_and_every_other_round_runs_backwards(self) -> None:
        log: list[str] = []
        take([Fake(log, "a"), Fake(log, "b")], log)
        a, b = ["a", "a closed"], ["b", "b closed"]
        assert log == [LIMIT, *a, LIMIT, *b, LIMIT, *b, LIMIT, *a, LIMIT]

    def test_memory_is_weighed_once(self) -> None:
        log: list[str] = []
        footprint = MemoryUse(8, 4, 1, 2)
        found = contest.contest([[Fake(log, "a")]] * 2, FakeLimit(log), 4, seconds=0.002, weigh=lambda *_: footprint)
        assert [turn.memory for turn in found if turn.candidate == "a"] == [footprint, None]

    def test_a_failure_is_reported_once_and_its_candidate_left_out(self) -> None:
        log: list[str] = []
        turns = take([Fake(log, "a", "step"), Fake(log, "b", "make"), Fake(log, "c")], log)
        failures = {turn.candidate: turn.failure for turn in turns if turn.failure}
        assert failures == {"a": "RuntimeError: the env", "b": "ValueError: no such thing"}
        assert (log.count("a"), log.count("a closed"), log.count("b"), log.count("c")) == (1, 1, 1, 2)

    def test_ctrl_c_closes_what_is_open(self) -> None:
        log: list[str] = []
        with pytest.raises(KeyboardInterrupt):
            take([Fake(log, "a", "interrupt")], log)
        assert log[-1] == "a closed"

    def test_runs_until_the_time_is_over_and_counts_the_last_call(self) -> None:
        now, counts = [0.0], []

        def step(count: int) -> int:
            counts.append(count)
            now[0] += 1e-4 * count
            return 3 * count

        timing = contest.run_for(step, 0.1, clock=lambda: now[0])
        assert timing.steps == 3 * sum(counts)
        assert timing.seconds == pytest.approx(1e-4 * sum(counts))
        assert 0.1 <= timing.seconds < 0.105  # the clock is read often enough
        assert len(counts) < 120  # and not more often


def a_measurement() -> Measurement:
    """Two candidates and a failure, the limit changing from 1000 to 2000 to 3000 steps/s."""
    found = Measurement(2, [8], 1.0, 2)
    memory = MemoryUse(8 << 20, 4 << 20, 1 << 20, 2)
    for number in range(2):
        found.turns += [
            Turn(LIMIT, 8, number, Timing(1000 * (number + 1), 1.0)),
            Turn("fast", 8, number, Timing(1500, 1.0), 0.5, memory if number == 0 else None),
            Turn(LIMIT, 8, number, Timing(1000 * (number + 2), 1.0)),
            Turn("slow[x]", 8, number, Timing(150, 1.0), 0.001),
        ]
    found.turns += [Turn("broken", 8, 0, failure="ValueError: no"), Turn(LIMIT, 8, 2, Timing(3000, 1.0))]
    return found


class TestReport:
    def test_shares_are_taken_of_the_readings_on_both_sides(self) -> None:
        fast, slow, broken = report.rows(a_measurement().turns)
        assert fast.share == report.Spread(pytest.approx(0.8), pytest.approx(0.6), pytest.approx(1.0))
        assert slow.rate == report.Spread(150, 150, 150)
        assert (broken.share, broken.failure) == (None, "ValueError: no")

    def test_a_contest_broken_off_has_shares_of_the_reading_before(self) -> None:
        turns = a_measurement().turns[:2]
        assert report.rows(turns)[0].share == report.Spread(1.5, 1.5, 1.5)

    def test_the_record_is_json_and_complete(self) -> None:
        held = a_measurement()
        data = json.loads(report.to_json(report.record({"command": "c"}, held)))
        assert data["command"] == "c"
        assert len(data["readings"]) == len(held.turns)
        assert data["readings"][1]["share"] == pytest.approx(1.0)
        assert data["results"][0]["memory"]["processes"] == 2
        assert data["limit_steps_per_second"] == {"median": 2000, "min": 1000, "max": 3000}

    def test_the_table_has_all_of_it_whatever_stdout_is(self, capsys: pytest.CaptureFixture[str]) -> None:
        held = a_measurement()
        report.show(report.rows(held.turns), "title", report.notes(held, "how it was measured"))
        out = capsys.readouterr().out
        for text in ("title", "0.80  (0.60..1.00)", "1.50 k", "500 ms", "8.00 MiB", "1.00 MiB", "slow[x]", "failed"):
            assert text in out
        assert "- broken failed with 8 envs: ValueError: no" in out
        assert "- how it was measured" in out

    def test_warns_when_the_limit_itself_went_up_and_down(self) -> None:
        """Then something else has been running. `tune` warns, too."""
        held = a_measurement()
        (warning,) = [note for note in report.notes(held, "") if "something else" in note]
        assert warning.startswith("The limit itself went from 1.00 k to 3.00 k steps/s meanwhile")
        quiet = replace(held, turns=[turn for turn in held.turns if turn.candidate != LIMIT or turn.round])
        assert report.limit_of(quiet.turns) == report.Spread(3000, 2000, 3000)
        assert not [note for note in report.notes(quiet, "") if "something else" in note]

    def test_warns_when_episodes_are_longer_than_the_turns(self) -> None:
        held = replace(a_measurement(), episodes=limit.EpisodeStats(500.0, 0.05))
        warning = [note for note in report.notes(held, "") if "--seconds" in note]
        assert len(warning) == 1
        assert "5%" in warning[0]
        short = replace(a_measurement(), episodes=limit.EpisodeStats(5.0, 0.05))
        assert not [note for note in report.notes(short, "") if "--seconds" in note]

    @pytest.mark.parametrize(
        ("text", "value"),
        [
            (report.count(999.7), "1000"),
            (report.count(1_234_567), "1.23 M"),
            (report.duration(0.0123), "12.3 ms"),
            (report.duration(3.21), "3.21 s"),
            (report.duration(1e-5), "10.0 us"),
            (report.nbytes(1536), "1.50 KiB"),
            (report.nbytes(-10), "-10 B"),
        ],
    )
    def test_writes_numbers_for_people(self, text: str, value: str) -> None:
        assert text == value

    @pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
    def test_draws(self, tmp_path: Path, suffix: str) -> None:
        path = tmp_path / f"chart{suffix}"
        bar_chart.draw([*bar_chart.panels(report.rows(a_measurement().turns), 2)], path, title="t", subtitle="s")
        assert path.stat().st_size > 1000

    @pytest.mark.parametrize("count", [1, 2, 3, 5])
    def test_draws_panels_beside_each_other(self, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from matplotlib.figure import Figure

        drawn: list[Figure] = []
        monkeypatch.setattr(Figure, "savefig", lambda figure, _: drawn.append(figure))
        (panel, *_) = bar_chart.panels(report.rows(a_measurement().turns), 2)
        bar_chart.draw([panel] * count, tmp_path / "chart.png", title="t")
        places = [axes.get_position() for axes in drawn[0].axes]
        assert len(places) == count
        for k, one in enumerate(places):
            assert 0 < one.x0 < one.x1 <= 1
            assert 0 < one.y0 < one.y1 < 1
            for other in places[:k]:
                assert other.x1 < one.x0 or one.y1 < other.y0, "to the right of it, or below"
