"""`spares`: views, tasks, files of monitors, Ctrl-C, deaths of workers, forks."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vecenvs import DummyVecEnv, EnvError, SubprocVecEnv, as_gymnasium, as_sb3, make_vec_env
from vecenvs.testing.compare import assert_same
from vecenvs.testing.envs import CountingEnv, SimulatorEnv
from vecenvs.testing.suite.episode_seeds import Episodes
from vecenvs.wrappers.results import read_monitor_file

N = 4


def simulator(_: int = 0) -> SimulatorEnv:
    return SimulatorEnv(length=(1, 4), reset=(0.0, 0.002))


def episodes_of(vec: Any, steps: int) -> list[list[tuple[float, int]]]:
    """Return the return and the length of each episode that ends in some steps, by env."""
    found: list[list[tuple[float, int]]] = [[] for _ in range(vec.num_envs)]
    vec.reset()
    for t in range(steps):
        for slot, info in enumerate(vec.step([t % 4] * vec.num_envs)[3]):
            if "episode" in info:
                found[slot].append((info["episode"]["r"], info["episode"]["l"]))
    return found


@pytest.mark.parametrize("backend", ["dummy", "subproc"])
def test_a_monitor_file_belongs_to_a_slot(backend: str, tmp_path: Path) -> None:
    common: dict[str, Any] = {"num_envs": N, "seed": 3, "episode_seeds": True}
    with make_vec_env(simulator, **common, force_dummy=True) as plain:
        expected = episodes_of(plain, 40)
    workers = {} if backend == "dummy" else {"num_workers": 2}
    with make_vec_env(simulator, **common, backend=backend, spares=3, monitor_dir=tmp_path, **workers) as vec:
        assert episodes_of(vec, 40) == expected
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"0.{slot}.monitor.csv" for slot in range(N)]
    for slot in range(N):
        found = read_monitor_file(str(tmp_path / f"0.{slot}.monitor.csv"))
        assert [(row["r"], row["l"]) for row in found.rows] == expected[slot]


def made(mode: str, spares: int, **common: Any) -> Any:
    vec = SubprocVecEnv([simulator] * N, 2, autoreset=mode, episode_seeds=True, spares=spares, **common)
    vec.seed(3)
    return vec


def assert_equal_rows(views: list[Any]) -> None:
    """Step VecEnvs, or views of them, and close them."""
    assert_same(*[view.reset() for view in views], "first rows")
    for t in range(60):
        assert_same(*[view.step(np.array([t % 4] * N)) for view in views], f"step {t}")
    for view in views:
        view.close()


@pytest.mark.parametrize("mode", ["same_step", "next_step"])
def test_gymnasium_sees_the_same_rows(mode: str) -> None:
    assert_equal_rows([as_gymnasium(made(mode, spares)) for spares in (0, 2)])


def test_sb3_sees_the_same_rows() -> None:
    assert_equal_rows([as_sb3(made("same_step", spares)) for spares in (0, 2)])


@pytest.mark.parametrize("mode", ["same_step", "next_step"])
def test_tasks_are_those_of_their_episodes(mode: str) -> None:
    def tasks(slot: int, number: int, info: dict[str, Any]) -> Any:
        return None if number % 2 else 10 * number + slot, {"difficulty": 100.0 * number + slot}

    assert_equal_rows([made(mode, spares, tasks=tasks) for spares in (0, 1)])


@pytest.mark.parametrize("mode", ["same_step", "next_step"])
@pytest.mark.parametrize("concurrency", [None, "threads"])
def test_ctrl_c(mode: str, concurrency: str | None) -> None:
    """Whatever it ends, the episodes of each slot go on with their numbers, none twice."""
    rng = random.Random()
    with DummyVecEnv([simulator] * N, autoreset=mode, concurrency=concurrency, episode_seeds=True, spares=2) as vec:
        vec.reset(seed=7)
        last = [info["episode_number"] for info in vec.reset_infos]
        for _ in range(40):
            timer = threading.Timer(rng.uniform(1e-4, 3e-3), signal.raise_signal, (signal.SIGINT,))
            with contextlib.suppress(KeyboardInterrupt):
                timer.start()
                for _ in range(200):  # Python may drop what a handler raises
                    vec.step([0] * N)
            with contextlib.suppress(KeyboardInterrupt):
                timer.join()
            recover(vec)
            numbers = [info["episode_number"] for info in vec.reset_infos]
            assert all(a <= b for a, b in zip(last, numbers, strict=True)), (last, numbers)
            last = numbers
        episodes = Episodes(vec)
        episodes.begin(range(N), vec.reset(seed=11))
        for _ in range(20):
            obs, rewards, _, infos = vec.step(episodes.actions(range(N)))
            episodes.take(range(N), obs, rewards, vec.active, (vec.terminated, vec.truncated), infos)
        episodes.check({slot: 11 + slot for slot in range(N)}, simulator)


def recover(vec: Any) -> None:
    """Fetch what an interrupted step has left, and reset all envs."""
    for _ in range(10):
        with contextlib.suppress(Exception):  # there is none, or an env needs a reset
            vec.step_wait()
        try:
            vec.reset()
            return
        except Exception:
            time.sleep(0.01)
    vec.reset()


def test_workers_that_die() -> None:
    rng = random.Random()
    with SubprocVecEnv(
        [simulator] * N, 2, episode_seeds=True, spares=2, on_failure="restart", start_method="fork"
    ) as vec:
        vec.reset(seed=5)
        numbers = [[0] for _ in range(N)]
        while vec.stats()["restarts"] < 3 or min(map(len, numbers)) < 20:
            pid = vec.stats()["workers"][rng.randrange(2)]["pid"]
            if pid is not None and vec.stats()["restarts"] < 3 and rng.random() < 0.1:
                os.kill(pid, signal.SIGKILL)
            for slot, info in enumerate(vec.step([0] * N)[3]):
                if info.get("episode_start"):
                    numbers[slot].append(vec.reset_infos[slot]["episode_number"])
        for each in numbers:
            assert each == [*range(len(each))]


def test_a_fork_of_the_caller_resets_by_itself() -> None:
    with DummyVecEnv([simulator] * N, episode_seeds=True, spares=2) as vec:
        vec.reset(seed=5)
        for _ in range(5):
            vec.step([0] * N)
        child = os.fork()
        if not child:
            for _ in range(20):
                vec.step([0] * N)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        vec.step([0] * N)


class Levels(CountingEnv):
    """An episode of two steps. The observation is the level in its options, or -1; the reward is the attribute."""

    def __init__(self) -> None:
        super().__init__(0, 2)
        self.level = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        obs, info = super().reset(seed=seed)
        obs[1] = (options or {}).get("level", -1)
        return obs, info

    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(action)
        return obs, float(self.level), *rest


@pytest.mark.parametrize("number", [0, 1, 2])
def test_what_a_state_says_of_next_episodes(number: int) -> None:
    """Neither options that were set since nor attributes that were not set: also in another VecEnv."""

    def ready(vec: Any) -> Any:
        time.sleep(0.03)  # until spares are
        return vec

    with DummyVecEnv([Levels], spares=number, episode_seeds=True) as vec:
        vec.reset(seed=0)
        state = ready(vec).get_state()
        vec.set_options({"level": 5})
        ready(vec).set_state(state)
        ready(vec).step([0])
        assert vec.step([0])[0][0, 1] == -1
        vec.set_attr("level", 3)
        state = ready(vec).get_state()
    with DummyVecEnv([Levels], spares=number, episode_seeds=True) as vec:
        vec.reset(seed=1)
        vec.set_attr("tag", 7)
        ready(vec).set_state(state)
        rows = [ready(vec).step([0])[:2] for _ in range(8)]
        assert [reward[0] for _, reward in rows] == [3.0] * 8
        assert [obs[0, 0] for obs, _ in rows] == [0] * 8


def test_a_spare_that_is_being_made_is_closed() -> None:
    made: list[Any] = []

    class Slow(CountingEnv):
        def __init__(self) -> None:
            super().__init__()
            self.closed = 0
            if made:
                time.sleep(0.3)
            made.append(self)

        def close(self) -> None:
            self.closed += 1

    for concurrency in (None, "threads"):
        made.clear()
        with DummyVecEnv([Slow], concurrency=concurrency, spares=1, episode_seeds=True) as vec:
            vec.reset()
            vec.step([0])
        assert [env.closed for env in made] == [1, 1]


def test_envs_are_closed_once_while_one_waits_for_a_spare() -> None:
    made: list[Any] = []

    class Slow(CountingEnv):
        def __init__(self) -> None:
            super().__init__(0, 1)
            self.closed = 0
            made.append(self)

        def reset(self, **kwargs: Any) -> Any:
            time.sleep(0.25 if self is not made[0] else 0)
            return super().reset(**kwargs)

        def close(self) -> None:
            self.closed += 1

    for seconds in (0.05, 0.15, 0.3):
        made.clear()
        with DummyVecEnv([Slow], concurrency="threads", spares=1, episode_seeds=True) as vec:
            vec.reset()
            time.sleep(0.1)
            vec.send([0])
            time.sleep(seconds)
        assert [env.closed for env in made] == [1, 1]


class Bounded(CountingEnv):
    """Refuses levels below 0."""

    made = 0

    def __init__(self) -> None:
        super().__init__(length=2)
        Bounded.made += 1

    @property
    def level(self) -> int:
        return 0

    @level.setter
    def level(self, value: int) -> None:
        if value < 0:
            raise ValueError("negative")


@pytest.mark.parametrize("concurrency", [None, "threads"])
def test_an_attribute_that_was_refused_is_not_set(concurrency: str | None) -> None:
    Bounded.made = 0
    with DummyVecEnv([Bounded], episode_seeds=True, spares=1, concurrency=concurrency) as vec:
        vec.reset(seed=0)
        with pytest.raises(EnvError):
            vec.set_attr("level", -1)
        for _ in range(8):
            vec.step([0])
    assert Bounded.made == 2
