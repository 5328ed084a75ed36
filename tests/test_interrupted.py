"""Calls that an exception, as of a signal's handler, cuts off at any bytecode: what comes afterwards is right."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from bytecodes import interrupted
from gymnasium import spaces

import vecenvs
from vecenvs import AlreadySteppingError, DummyVecEnv, EnvError, SubprocVecEnv, VecEnvWrapper
from vecenvs.pool.episodes import Episodes
from vecenvs.pool.unanswered import ReadyRows
from vecenvs.testing.envs import CountingEnv

ROOT = Path(vecenvs.__file__).parent


class Numbered(gymnasium.Env[Any, Any]):
    """Reward, attribute `value`, info and observation have one number, which tells env, episode and step."""

    def __init__(self, index: int, seconds: float = 0.0) -> None:
        self.observation_space, self.action_space = spaces.Box(0, np.inf, (1,), np.float64), spaces.Discrete(2)
        self.index, self.seconds = index, seconds
        self.episode = self.steps = self.value = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.episode += 1
        self.steps = 0
        return self._number(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(self.seconds)
        self.steps += 1
        return self._number(), float(self.value), False, False, {"number": self.value}

    def _number(self) -> Any:
        self.value = self.index * 10_000 + self.episode * 100 + self.steps
        return np.array([self.value], np.float64)


def test_infos_after_a_step() -> None:
    """The first step, in which the columns of infos are opened, is cut off; the next episode's infos are right."""
    files = {str(ROOT / part) for part in ("worker/env_shard.py", "worker/row_writer.py", "batch/infos.py")}
    bytecodes, more = 0, True
    while more:
        with DummyVecEnv([functools.partial(Numbered, index) for index in range(2)], info_attrs=["value"]) as vec:
            vec.reset()
            more = interrupted(lambda vec=vec: vec.step([0, 0]), bytecodes, files)  # type: ignore[misc]
            try:
                vec.reset()
            except AlreadySteppingError:
                with contextlib.suppress(EnvError):  # that the step was cut off
                    vec.step_wait()
                vec.reset()
            for _ in range(2):
                _, rewards, _, infos = vec.step([0, 0])
                found = [(info["value"], info["number"]) for info in infos]
                assert found == [(reward, reward) for reward in rewards], bytecodes
        bytecodes += 1
    assert bytecodes > 20


def test_rows_that_were_cut_off_come_once_when_asked_for_one_by_one() -> None:
    """Also if the answer that has them is taken in again after they have been returned."""
    files = {str(ROOT / "pool" / part) for part in ("answers.py", "unanswered.py")}
    with SubprocVecEnv([functools.partial(Numbered, index, 0.001) for index in range(3)], 1) as vec:
        vec.reset()
        bytecodes, more = 0, True
        while more:
            vec.send([0] * 3)
            batches: list[Any] = []
            more = interrupted(lambda found=batches: found.append(vec.recv()), bytecodes, files)  # type: ignore[misc]
            bytecodes += 1
            while missing := {0, 1, 2} - {index for batch in batches for index in batch.indices.tolist()}:
                batches.append(vec.recv(indices=[min(missing)], timeout=20.0))  # first perhaps what was cut off
            rows = [row for batch in batches for row in zip(batch.indices, batch.obs[:, 0], strict=True)]
            assert sorted(rows) == [(index, index * 10_000 + 100 + bytecodes) for index in range(3)]
            with pytest.raises(vecenvs.NotSteppingError):
                vec.recv()
        assert bytecodes > 20


@pytest.mark.parametrize("num_workers", [1, 3])
def test_rows_of_a_command_come_once(num_workers: int) -> None:
    """One env's row, which comes first, is asked for and cut off; others of its command or worker, or not, follow."""
    files = {str(ROOT / "pool" / part) for part in ("answers.py", "unanswered.py")}
    envs = [functools.partial(Numbered, index, 0.002 - index / 1000) for index in range(3)]
    with SubprocVecEnv(envs, num_workers) as vec:
        vec.reset()
        bytecodes, more = 0, True
        while more:
            vec.send([0] * 3)
            batches: list[Any] = []
            more = interrupted(lambda found=batches: found.append(vec.recv(indices=[2])), bytecodes, files)  # type: ignore[misc]
            while (
                len(rows := [row for batch in batches for row in zip(batch.indices, batch.obs[:, 0], strict=True)]) < 3
            ):
                time.sleep(0.003)  # until all have answered
                batches.append(vec.recv(timeout=20.0))
            bytecodes += 1
            assert sorted(rows) == [(index, index * 10_000 + 100 + bytecodes) for index in range(3)]
        assert bytecodes > 20
        with pytest.raises(vecenvs.NotSteppingError):
            vec.recv()


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "make",
    [
        DummyVecEnv,
        functools.partial(DummyVecEnv, concurrency="threads"),
        functools.partial(SubprocVecEnv, num_workers=2, caller_steps=True),
    ],
    ids=["dummy", "threads", "caller"],
)
@pytest.mark.parametrize("autoreset", ["same_step", "async"])
def test_close_goes_on_where_it_was_cut_off(make: Any, autoreset: str) -> None:
    """Each env of this process is closed, and nobody is waited for in vain."""
    closed: set[int] = set()

    class Closing(Numbered):
        def close(self) -> None:
            closed.add(self.index)

    parts = ("pool/workers.py", "worker/worker.py", "worker/calls.py", "backends/in_process.py", "backends/beside.py")
    files = {str(ROOT / part) for part in parts}
    own = {2} if "num_workers" in getattr(make, "keywords", {}) else {0, 1, 2}  # the caller steps the last one
    bytecodes, more = 0, True
    while more:
        vec = make([functools.partial(Closing, index) for index in range(3)], autoreset=autoreset)
        vec.reset()
        closed.clear()
        more = interrupted(vec.close, bytecodes, files)
        begun = time.monotonic()
        vec.close()
        assert time.monotonic() - begun < 4.0, bytecodes
        assert closed == own, bytecodes
        bytecodes += 1
    assert bytecodes > 20


class Ending(Numbered):
    """Each step ends an episode."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, _, _, info = super().step(action)
        return obs, reward, True, False, info


@pytest.mark.parametrize(
    "make", [DummyVecEnv, functools.partial(SubprocVecEnv, num_workers=1, caller_steps=True)], ids=["dummy", "caller"]
)
def test_first_rows_of_async_resets_come_once(make: Any) -> None:
    """A first row, or an error in its place, comes for each env, wherever the call that asks for it is cut off."""
    files = {str(ROOT / "worker" / part) for part in ("async_resets.py", "worker.py")}
    bytecodes, more = 0, True
    while more:
        with make([functools.partial(Ending, index) for index in range(2)], autoreset="async") as vec:
            vec.reset()
            vec.send([0, 0])
            assert vec.recv(2).dones.all()
            came: list[tuple[int, Any]] = []

            def take(timeout: float | None = 20.0, vec: Any = vec, came: Any = came) -> None:
                batch = vec.recv(timeout=timeout)
                came += zip(batch.indices.tolist(), batch.obs[:, 0].tolist(), strict=True)

            more = interrupted(take, bytecodes, files)
            with contextlib.suppress(vecenvs.NotSteppingError):
                while True:
                    try:
                        take()
                    except EnvError as error:  # that the reset was cut off
                        came.append((error.index, error.index * 10_000 + 200))
            assert sorted(came) == [(0, 200), (1, 10_200)], bytecodes
        bytecodes += 1
    assert bytecodes > 10


def test_a_reset_of_an_env_that_is_being_reset() -> None:
    """Wherever it is cut off, a first row comes: of the reset before, or of this one."""
    files = {str(ROOT / "pool" / part) for part in ("pool_vec_env.py", "unanswered.py", "commands.py", "episodes.py")}
    bytecodes, more = 0, True
    while more:
        with DummyVecEnv([functools.partial(Ending, 0)], autoreset="async") as vec:
            vec.reset()
            assert vec.step([0])[2].all()
            more = interrupted(lambda vec=vec: vec.reset_async([0]), bytecodes, files)  # type: ignore[misc]
            assert vec.recv().obs.tolist() in ([[200]], [[300]]), bytecodes
            assert vec.step([0])[0].tolist() in ([[201]], [[301]]), bytecodes
        bytecodes += 1
    assert bytecodes > 20


def test_a_row_that_a_death_has_left_is_overtaken() -> None:
    """By a command for its env, wherever that is cut off: while the row is there the next attempt removes it."""
    files = {str(ROOT / "pool" / "unanswered.py")}
    bytecodes, more = 0, True
    with DummyVecEnv([functools.partial(Numbered, index) for index in range(2)]) as vec:
        commands: Any = vec._commands
        while more:
            commands.add_rows(ReadyRows(range(2), 0b11, {}))
            commands.orphaned = 0b11
            more = interrupted(lambda: commands.forget_rows(0b10), bytecodes, files)
            assert not commands.ready_slots() & ~commands.orphaned, bytecodes
            commands.forget_rows(0b11)
            bytecodes += 1
    assert bytecodes > 5


def test_each_end_is_told() -> None:
    """Wherever the call is cut off that returns it; not where `on_episode` is cut off, which has been told then."""
    files = {str(ROOT / "pool" / part) for part in ("pool_vec_env.py", "step_results.py")}
    bytecodes, more = 0, True
    while more:
        told: list[int] = []
        tell = functools.partial(_tell, told)
        with DummyVecEnv([functools.partial(Ending, 0)], on_episode=tell) as vec:
            vec.reset()
            more = interrupted(lambda vec=vec: vec.step([0]), bytecodes, files)  # type: ignore[misc]
            with contextlib.suppress(vecenvs.NotSteppingError, EnvError):
                vec.step_wait()
            steps = vec.stats()["steps"]
            assert told == [100 + number * 100 + 1 for number in range(steps)], bytecodes
        bytecodes += 1
    assert bytecodes > 20


def test_seeds_are_for_all_envs_or_none() -> None:
    files = {str(ROOT / "worker" / part) for part in ("worker.py", "autoreset.py")}
    bytecodes, more = 0, True
    with DummyVecEnv([functools.partial(Seeded, index) for index in range(3)]) as vec:
        while more:
            vec.reset()
            more = interrupted(lambda: vec.seed(7), bytecodes, files)
            vec.reset()
            assert vec.get_attr("seed") in ([None] * 3, [7, 8, 9]), bytecodes
            bytecodes += 1
    assert bytecodes > 2


def _tell(told: list[int], info: dict[str, Any]) -> None:
    told.append(info["number"])


class Seeded(Numbered):
    """`seed` is that of the last reset."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.seed = seed
        return super().reset()


class Interrupting(CountingEnv):
    """Its first reset sends the caller a Ctrl-C, if it is env 1, and takes a while."""

    def __init__(self, tag: int, caller: int) -> None:
        super().__init__(tag, 9)
        self.caller = caller

    def reset(self, **kwargs: Any) -> Any:
        result = super().reset(**kwargs)
        if (self.tag, self.episode) == (1, 1):
            os.kill(self.caller, signal.SIGINT)
            time.sleep(0.2)
        return result


class NarrowWrapper(VecEnvWrapper):
    """As baselines' wrappers are."""

    def reset(self) -> Any:
        return self.venv.reset()

    def step_wait(self) -> Any:
        return self.venv.step_wait()


LAYERS: dict[str, Any] = {
    "none": lambda vec: vec, "wrapper": NarrowWrapper, "monitor": vecenvs.VecMonitor, "gymnasium": vecenvs.as_gymnasium,
    "sb3": vecenvs.as_sb3, "pfrl": vecenvs.as_pfrl, "tianshou": vecenvs.as_tianshou,
}  # fmt: skip


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize(
    "engine", [DummyVecEnv, functools.partial(SubprocVecEnv, num_workers=2)], ids=["dummy", "fork"]
)
def test_a_reset_after_one_that_was_interrupted(engine: Any, layer: str) -> None:
    """It takes the place of the other one, whatever is around the VecEnv: nobody has acted upon those first rows."""
    mode = "disabled" if layer == "tianshou" else "same_step"
    vec = engine([functools.partial(Interrupting, tag, os.getpid()) for tag in range(3)], autoreset=mode)
    layered = LAYERS[layer](vec)
    try:
        with pytest.raises(KeyboardInterrupt):
            layered.reset()
        first = layered.reset()
        obs = np.stack(first[0] if layer in ("gymnasium", "tianshou") else first)
        assert obs[:, ::2].tolist() == [[tag, 0] for tag in range(3)]
        found = layered.step(np.zeros(3, np.int64))[0]
        assert np.stack(found).tolist() == [[tag, episode, 1] for tag, episode, _ in obs.tolist()]
    finally:
        vec.close()


@pytest.mark.parametrize(
    "engine", [DummyVecEnv, functools.partial(SubprocVecEnv, num_workers=2)], ids=["dummy", "fork"]
)
def test_a_reset_after_one_that_was_interrupted_before_it_was_sent(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = Episodes.record_options

    def interrupted(*args: Any) -> None:
        monkeypatch.undo()
        signal.raise_signal(signal.SIGINT)
        record(*args)

    with engine([functools.partial(CountingEnv, tag) for tag in range(2)]) as vec:
        vec.reset()
        monkeypatch.setattr(Episodes, "record_options", interrupted)
        with pytest.raises(KeyboardInterrupt):
            vec.reset()
        assert vec.reset()[:, 2].tolist() == [0, 0]
        assert vec.step([0, 0])[0][:, 2].tolist() == [1, 1]


def test_a_reset_takes_the_place_of_no_other_call() -> None:
    with DummyVecEnv([functools.partial(Interrupting, tag, os.getpid()) for tag in range(3)]) as vec:
        with pytest.raises(KeyboardInterrupt):
            vec.reset()
        vec.reset()
        for call in (vec.reset_async, functools.partial(vec.send, [0] * 3)):
            call()
            for _ in range(2):
                with pytest.raises(AlreadySteppingError):
                    vec.reset()
            assert len(vec.recv(3)) == 3
