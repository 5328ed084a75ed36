"""The benchmark's parts: what it steps, what it takes for the limit, how it takes turns and what it makes of them."""

from __future__ import annotations

import json
import pickle
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from vecenvs.backends import BACKENDS
from vecenvs.bench import chart, contestants, limit, measure, report, workloads
from vecenvs.bench.child import Child
from vecenvs.bench.made import as_made, from_make_vec_env
from vecenvs.bench.measure import LIMIT, Timing, Turn
from vecenvs.bench.session import Session
from vecenvs.bench.weigh import Footprint, weigh
from vecenvs.errors import BackendUnavailable
from vecenvs.wrappers.monitor import Monitor


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
    """A contestant that costs nothing and logs its turns."""

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


def take(contest_of: list[Fake], log: list[str], repeats: int = 2) -> list[Turn]:
    unweighed = lambda contestant, num_envs: None  # noqa: E731
    return list(measure.contest(contest_of, FakeLimit(log), 4, seconds=0.002, repeats=repeats, weigh=unweighed))


class TestWorkloads:
    def test_a_gym_env_is_bare(self) -> None:
        env = workloads.workload("CartPole-v1")()
        assert "PassiveEnvChecker" not in str(env)
        assert not isinstance(env, Monitor)

    def test_env_kwargs_reach_the_env(self) -> None:
        env = workloads.workload("CartPole-v1", {"sutton_barto_reward": True})()
        env.reset(seed=0)
        assert env.step(0)[1] == 0.0

    @pytest.mark.parametrize("name", ["spin:20us", "rows:8x8x2", "nested:0us", "sleep:1ms", "ALE/Pong-v5"])
    def test_keeps_gymnasiums_contract(self, name: str) -> None:
        env = pickle.loads(pickle.dumps(workloads.workload(name)))()
        obs, _ = env.reset(seed=3)
        assert env.observation_space.contains(obs)
        obs, _, terminated, truncated, _ = env.step(env.action_space.sample())
        assert env.observation_space.contains(obs)
        assert not terminated
        assert not truncated
        env.close()

    def test_rows_have_the_shape_asked_for(self) -> None:
        space = workloads.workload("rows:84x84x4")().observation_space
        assert (space.shape, space.dtype) == ((84, 84, 4), np.uint8)

    def test_episodes_end_when_told(self) -> None:
        env = workloads.workload("spin:0us,episode=3")()
        for _ in range(2):
            env.reset()
            assert [env.step(0)[2] for _ in range(3)] == [False, False, True]

    def test_work_is_a_number_of_iterations_in_proportion_to_the_time(self) -> None:
        once, ten = (workloads.workload(f"spin:{us}us") for us in (10, 100))
        assert isinstance(once, workloads.Synthetic)
        assert isinstance(ten, workloads.Synthetic)
        assert once.iterations > 0
        assert ten.iterations == pytest.approx(10 * once.iterations, rel=0.01)

    @pytest.mark.parametrize(
        ("name", "says"),
        [
            ("spin:100", "no time"),
            ("spin:", "no time"),
            ("rows:84x", "shape"),
            ("rows:0x4", "shape"),
            ("spin:1us,episode=0", "episode=STEPS"),
            ("spin:1us,steps=3", "episode=STEPS"),
            ("CartPol-v1", "CartPol-v1"),
            ("CartPole-v77", "CartPole-v77"),
            ("no_such_module:Env-v0", "no_such_module"),
        ],
    )
    def test_bad_names_are_told_in_one_line(self, name: str, says: str) -> None:
        with pytest.raises(workloads.BadRequest, match=says) as caught:
            workloads.workload(name)
        assert "\n" not in str(caught.value)

    def test_synthetic_envs_take_no_kwargs(self) -> None:
        with pytest.raises(workloads.BadRequest, match="no env kwargs"):
            workloads.workload("spin:1us", {"a": 1})


class TestBackendSyntax:
    @pytest.mark.parametrize(
        ("text", "options"),
        [
            ("subproc", {}),
            ("subproc:caller", {"caller_steps": True}),
            ("subproc:w=3,spawn", {"num_workers": 3, "start_method": "spawn"}),
            ("subproc:num_workers=1,caller_steps=true", {"num_workers": 1, "caller_steps": True}),
            ("subproc:autoreset=next_step,step_timeout=2.5", {"autoreset": "next_step", "step_timeout": 2.5}),
            ("dummy:step_timeout=none,copy=false", {"step_timeout": None, "copy": False}),
        ],
    )
    def test_reads(self, text: str, options: dict[str, Any]) -> None:
        backend = contestants.parse(text)
        assert (backend.name, backend.backend, backend.options) == (text, text.partition(":")[0], options)

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("subprocess", "unknown backend 'subprocess': there are dummy, subproc"),
            ("subproc+caller", "options follow a colon"),
            ("subproc:fast", "'fast' is neither"),
            ("dummy:w=2", "dummy has no option 'num_workers'; it has .*autoreset"),
        ],
    )
    def test_refuses(self, text: str, says: str) -> None:
        with pytest.raises(workloads.BadRequest, match=says):
            contestants.parse(text)

    def test_by_default_takes_every_backend_and_those_with_caller_steps_twice(self) -> None:
        chosen, unavailable = contestants.choose(None)
        assert {"dummy", "subproc", "subproc:caller"} <= {backend.name for backend in chosen}
        assert {backend.backend for backend in chosen} | set(unavailable) == set(BACKENDS)

    def test_lists_what_is_not_installed_with_its_remedy(self, monkeypatch: pytest.MonkeyPatch) -> None:
        backend_class = contestants.backend_class

        def without_ray(name: str) -> Any:
            if name == "ray":
                raise BackendUnavailable('no ray: pip install "vecenvs[ray]"')
            return backend_class(name)

        monkeypatch.setattr(contestants, "backend_class", without_ray)
        monkeypatch.setattr(contestants, "BACKENDS", {**BACKENDS, "ray": "nowhere:Ray"})
        assert 'pip install "vecenvs[ray]"' in contestants.choose(None)[1]["ray"]
        chosen, unavailable = contestants.choose(["dummy", "ray"])
        assert [backend.name for backend in chosen] == ["dummy"]
        assert list(unavailable) == ["ray"]


class TestContestants:
    @pytest.mark.parametrize("text", ["dummy", "subproc:w=2,fork", "subproc:caller,fork"])
    @pytest.mark.parametrize("env", ["CartPole-v1", "nested:0us"])
    def test_every_step_counts_for_all_envs(self, text: str, env: str) -> None:
        make_vec = contestants.from_env_fn(workloads.workload(env))
        stepper = contestants.VecContestant(contestants.parse(text), make_vec).make(3)
        try:
            assert [stepper.step(5), stepper.step(300)] == [15, 900]  # more batches than were drawn
        finally:
            stepper.close()

    def test_rows_that_are_no_transitions_do_not_count(self) -> None:
        make_vec = contestants.from_env_fn(workloads.workload("spin:0us,episode=2"))
        stepper = contestants.VecContestant(contestants.parse("dummy:autoreset=next_step"), make_vec).make(3)
        try:
            assert stepper.step(9) == 3 * 6
        finally:
            stepper.close()

    @pytest.mark.parametrize(
        "space",
        [
            gym.spaces.Discrete(3, start=1),
            gym.spaces.Box(-1, 1, (2, 3)),
            gym.spaces.Dict({"a": gym.spaces.MultiBinary(2), "b": gym.spaces.Tuple([gym.spaces.Discrete(2)])}),
            gym.spaces.Text(4),
        ],
    )
    def test_draws_batches_of_the_space(self, space: gym.Space[Any]) -> None:
        batch = contestants.draw_actions(space, 5)[0]
        if isinstance(space, gym.spaces.Text):
            assert all(map(space.contains, batch))
        else:
            assert gym.vector.utils.batch_space(space, 5).contains(batch)

    def test_monitor_is_around_the_envs_of_both_sides(self) -> None:
        workload = workloads.workload("CartPole-v1")
        vec = from_make_vec_env(workload)(2, contestants.parse("dummy"))
        try:
            assert vec.env_is_wrapped(Monitor) == [True, True]
            ours = str(as_made(workload)())
            assert "Monitor" in ours
            assert vec.get_attr("step.__self__.__str__")[0]() == ours  # the same wrappers in the same order
        finally:
            vec.close()


class TestLimit:
    def test_adds_up_its_loops(self) -> None:
        with limit.BareLoops(workloads.workload("spin:0us,episode=10"), 2) as loops:
            reading = loops.run(0.02, 0.01)
            assert reading.steps > 0
            assert reading.rate > 0
            episodes = loops.episodes()
        assert episodes.steps == pytest.approx(10, rel=0.1)
        assert 0 < episodes.reset_share < 1

    def test_envs_that_never_end_have_no_episodes(self) -> None:
        with limit.BareLoops(workloads.workload("spin:0us"), 1) as loops:
            loops.run(0.01, 0.01)
            assert loops.episodes() == limit.Episodes(None, 0.0)

    def test_an_env_that_cannot_be_made_is_told_in_one_line(self) -> None:
        with pytest.raises(workloads.BadRequest, match="cannot make the env: TypeError.*no_such_option") as caught:
            limit.BareLoops(workloads.workload("CartPole-v1", {"no_such_option": 1}), 1)
        assert "\n" not in str(caught.value)

    def test_an_env_that_dies_is_told_with_its_exit_code(self) -> None:
        with limit.BareLoops(Dying(), 1) as loops, pytest.raises(workloads.BadRequest, match="exit code 7"):
            loops.run(0.01, 0.01)

    def test_resets_when_an_episode_ends_and_only_then(self) -> None:
        env = workloads.workload("spin:0us,episode=4")()
        loop = limit.BareLoop(env, [0])
        env.reset()
        loop.step(9)
        assert loop.episodes == 2


class Dying:
    """An env function whose env ends its process at the 20th step."""

    def __call__(self) -> gym.Env[Any, Any]:
        import os

        env = workloads.workload("spin:0us")()
        taken = iter(range(20))
        step = env.step
        env.step = lambda action: step(action) if next(taken, None) is not None else os._exit(7)  # type: ignore[method-assign]
        return env


class TestChild:
    def test_is_deaf_to_ctrl_c_and_leaves_when_the_pipe_closes(self) -> None:
        child = Child(_tell_sigint)
        assert child.receive() is True
        child.close()
        child.close()


def _tell_sigint(connection: Any) -> None:
    connection.send(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)
    connection.recv()


class TestWeigh:
    def test_counts_workers_and_what_they_have(self) -> None:
        make_vec = contestants.from_env_fn(workloads.workload("rows:64x64"))
        found = weigh(contestants.VecContestant(contestants.parse("subproc:w=2,fork"), make_vec), 256)
        assert found is not None
        assert found.processes == 2
        assert found.parent > 256 * 64 * 64  # the rows it has been given, at the least
        assert 0 < found.workers < found.total

    def test_what_cannot_be_made_weighs_nothing(self) -> None:
        assert weigh(Fake([], "a", broken="make"), 4) is None


class TestContest:
    def test_each_round_lies_between_two_readings_of_the_limit(self) -> None:
        log: list[str] = []
        take([Fake(log, "a"), Fake(log, "b")], log)
        a, b = ["a", "a closed"], ["b", "b closed"]
        assert log == [LIMIT, *a, *b, LIMIT, *a, *b, LIMIT]

    def test_who_fails_is_told_of_once_and_left_out(self) -> None:
        log: list[str] = []
        turns = take([Fake(log, "a", "step"), Fake(log, "b", "make"), Fake(log, "c")], log)
        failures = {turn.contestant: turn.failure for turn in turns if turn.failure}
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

        timing = measure.run_for(step, 0.1, clock=lambda: now[0])
        assert timing.steps == 3 * sum(counts)
        assert timing.seconds == pytest.approx(1e-4 * sum(counts))
        assert 0.1 <= timing.seconds < 0.105  # the clock is read often enough
        assert len(counts) < 120  # and no oftener


def a_session() -> Session:
    """Two contestants and a failure, the limit changing from 1000 to 2000 to 3000 steps/s."""
    session = Session(2, [8], 1.0, 2)
    memory = Footprint(8 << 20, 4 << 20, 1 << 20, 2)
    for number in range(2):
        session.turns += [
            Turn(LIMIT, 8, number, Timing(1000 * (number + 1), 1.0)),
            Turn("fast", 8, number, Timing(1500, 1.0), 0.5, memory if number == 0 else None),
            Turn("slow[x]", 8, number, Timing(150, 1.0), 0.001),
        ]
    session.turns += [Turn("broken", 8, 0, failure="ValueError: no"), Turn(LIMIT, 8, 2, Timing(3000, 1.0))]
    return session


class TestReport:
    def test_shares_are_taken_of_the_readings_on_both_sides(self) -> None:
        fast, slow, broken = report.rows(a_session().turns)
        assert fast.share == report.Spread(pytest.approx(0.8), pytest.approx(0.6), pytest.approx(1.0))
        assert slow.rate == report.Spread(150, 150, 150)
        assert (broken.share, broken.failure) == (None, "ValueError: no")

    def test_a_contest_broken_off_has_shares_of_the_reading_before(self) -> None:
        turns = a_session().turns[:2]
        assert report.rows(turns)[0].share == report.Spread(1.5, 1.5, 1.5)

    def test_the_record_is_json_and_complete(self) -> None:
        held = a_session()
        data = json.loads(report.to_json(report.record({"command": "c"}, held)))
        assert data["command"] == "c"
        assert len(data["readings"]) == len(held.turns)
        assert data["readings"][1]["share"] == pytest.approx(1.0)
        assert data["results"][0]["memory"]["processes"] == 2
        assert data["limit_steps_per_second"] == {"median": 2000, "min": 1000, "max": 3000}

    def test_the_table_has_all_of_it_whatever_stdout_is(self, capsys: pytest.CaptureFixture[str]) -> None:
        held = a_session()
        report.show(report.rows(held.turns), "title", report.notes(held, "how it was measured"))
        out = capsys.readouterr().out
        for text in ("title", "0.80  (0.60..1.00)", "1.50 k", "500 ms", "8.00 MiB", "1.00 MiB", "slow[x]", "failed"):
            assert text in out
        assert "- broken failed with 8 envs: ValueError: no" in out
        assert "- how it was measured" in out

    def test_warns_when_episodes_are_longer_than_the_turns(self) -> None:
        held = replace(a_session(), episodes=limit.Episodes(500.0, 0.05))
        warning = [note for note in report.notes(held, "") if "--seconds" in note]
        assert len(warning) == 1
        assert "5%" in warning[0]
        short = replace(a_session(), episodes=limit.Episodes(5.0, 0.05))
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
        chart.draw(report.rows(a_session().turns), path, title="t", subtitle="s", cores=2)
        assert path.stat().st_size > 1000
