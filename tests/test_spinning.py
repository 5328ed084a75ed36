"""How long a process tries a semaphore before it sleeps: by a simulated clock, and by the CPU time of real workers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

import pytest

from vecenvs import SubprocVecEnv
from vecenvs.testing.envs import counting_fns
from vecenvs.transport import spinning
from vecenvs.transport.spinning import ALONE, NEVER, SHARED, Rhythm, spins

TRY = 1e-6  # seconds that an attempt takes
US = 1e-6


class Simulation:
    """A semaphore that is released at `due`, and the clock. `tried` and `slept` are the seconds of the last wait."""

    def __init__(self, spin: float = ALONE) -> None:
        self.now = self.due = self.tried = self.slept = 0.0
        self.taken_away = 0.0  # seconds for which another program takes the core at the next attempt
        self.rhythm = Rhythm(self.acquire, partial(self.acquire, True), spin)

    def acquire(self, block: bool, timeout: float | None = 1e9) -> bool:
        if block:
            timeout = 1e9 if timeout is None else timeout
            until = max(self.now, min(self.due, self.now + timeout))
            self.slept += until - self.now
            self.now = until
        else:
            self.now += TRY + self.taken_away
            self.tried += TRY
            self.taken_away = 0.0
        return self.now >= self.due

    def wait(self, seconds: float, timeout: float | None = None) -> bool:
        self.tried = self.slept = 0.0
        self.due = self.now + seconds
        return self.rhythm.wait(timeout)

    def waits(self, *seconds: float) -> None:
        for each in seconds:
            assert self.wait(each)


@pytest.fixture
def simulation(monkeypatch: pytest.MonkeyPatch) -> Iterator[Simulation]:
    found = Simulation()
    monkeypatch.setattr(spinning.time, "perf_counter", lambda: found.now)
    monkeypatch.setattr(spinning, "_TIMED", True)
    yield found
    monkeypatch.undo()  # before pytest asks the clock


def test_short_waits_are_never_slept_through(simulation: Simulation) -> None:
    for wait in (300, 280, 330, 300, 700, 300) * 10:
        simulation.waits(wait * US)
        assert not simulation.slept


def test_long_regular_waits_are_slept_through_until_shortly_before_their_end(simulation: Simulation) -> None:
    simulation.waits(*[5000 * US] * 60)
    for wait in (5000, 4950, 5050) * 5:
        simulation.waits(wait * US)
        assert simulation.slept > 4000 * US
        assert 0 < simulation.tried < ALONE, "the end of the wait is seen by an attempt"
        assert simulation.slept + simulation.tried < (wait + 2) * US


def test_long_irregular_waits_are_tried_for_a_moment(simulation: Simulation) -> None:
    simulation.waits(*[3000 * US, 9000 * US] * 40)
    for wait in (3000, 9000):
        simulation.waits(wait * US)
        assert simulation.tried < 120 * US
    assert simulation.slept > 8000 * US


def test_waits_without_a_limit_of_time_off_linux(simulation: Simulation, monkeypatch: pytest.MonkeyPatch) -> None:
    """There a semaphore with a timeout polls: it is waited for without one."""
    monkeypatch.setattr(spinning, "_TIMED", False)
    simulation.waits(*[5000 * US] * 60)
    assert simulation.tried < 120 * US


def test_one_long_wait_changes_nothing(simulation: Simulation) -> None:
    simulation.waits(*[300 * US] * 50)
    simulation.waits(0.05, 300 * US)
    assert not simulation.slept
    simulation.waits(*[0.05] * 60)
    assert simulation.slept > 0.04


def test_an_idle_process_sleeps(simulation: Simulation) -> None:
    simulation.waits(*[300 * US] * 50)
    assert not simulation.wait(10.0, timeout=1.0)
    assert simulation.tried < 2 * ALONE
    for _ in range(5):
        begin = simulation.now
        assert not simulation.wait(10.0, timeout=1.0)
        assert not simulation.tried
        assert simulation.now - begin == pytest.approx(1.0)
    simulation.waits(10.0, 300 * US)
    assert not simulation.slept, "the first command after a pause ends it"


def test_it_gives_way_to_other_programs(simulation: Simulation) -> None:
    simulation.waits(*[300 * US] * 50)
    rests = []
    for wait in (4000, 300) * 6:  # the command may have come meanwhile
        simulation.taken_away = 3000 * US
        simulation.waits(wait * US)
        rests.append(0)
        while simulation.waits(300 * US) or not simulation.tried:
            rests[-1] += 1
    assert rests[:2] == [4, 8]
    assert rests == sorted(rests)
    assert rests[-1] == pytest.approx(128, abs=10)
    simulation.waits(*[300 * US] * 200)  # undisturbed
    simulation.taken_away = 3000 * US
    simulation.waits(4000 * US, *[300 * US] * 5)
    assert simulation.tried, "the rest is short again"


def test_it_never_tries(simulation: Simulation) -> None:
    simulation.rhythm = Rhythm(simulation.acquire, partial(simulation.acquire, True), NEVER)
    simulation.waits(*[10 * US] * 3)
    assert not simulation.tried
    assert not simulation.wait(2.0, timeout=1.0)


def test_the_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VECENVS_SPIN", raising=False)
    assert [spins(spare) for spare in (1, 0, -1)] == [(ALONE, ALONE), (NEVER, SHARED), (NEVER, NEVER)]
    monkeypatch.setenv("VECENVS_SPIN", "0")
    assert spins(1) == (NEVER, NEVER)
    monkeypatch.setenv("VECENVS_SPIN", "off")
    with pytest.raises(ValueError, match="VECENVS_SPIN must be 0 or 1, not 'off'"):
        spins(1)


def test_workers_leave_the_cores_to_an_update(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a learner makes no steps for 50 ms, workers use less than 5 % of a core."""
    monkeypatch.setattr("vecenvs.backends.subproc.usable_cores", lambda: 3)
    pauses, pause = 20, 0.05
    with SubprocVecEnv(counting_fns(4), 2, caller_steps=True, start_method="fork") as vec:
        vec.reset()
        pid = vec.stats()["workers"][0]["pid"]
        used = 0.0
        for _ in range(pauses):
            for _ in range(4):
                vec.step([0] * 4)
            before = cpu_seconds(pid)
            time.sleep(pause)
            used += cpu_seconds(pid) - before
    assert used < 0.05 * pauses * pause


def cpu_seconds(pid: int) -> float:
    return time.clock_gettime((~pid << 3) | 2)  # see clock_getcpuclockid(3)
