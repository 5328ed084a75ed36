"""What workers log, where, and in which format; and errors that are due to where an env lives."""

from __future__ import annotations

import bdb
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from vecenvs import DummyVecEnv, EnvError, StepTimeout, SubprocVecEnv
from vecenvs.testing.envs import CountingEnv, GatedEnv

PROGRAM = """
import logging, sys
from functools import partial
from vecenvs import SubprocVecEnv
from vecenvs.testing.envs import CountingEnv

def say(env):
    for name, level in ("quiet", logging.INFO), ("loud", logging.DEBUG), ("loud", logging.INFO):
        logging.getLogger(name).log(level, "env %d", env.unwrapped.tag)

if __name__ == "__main__":
    if sys.argv[2] == "configured":
        logging.basicConfig(level=logging.ERROR, format="{levelname:>9} {message}", style="{")
        logging.getLogger("loud").setLevel(logging.DEBUG)
    with SubprocVecEnv([partial(CountingEnv, i) for i in range(5)], 2, sys.argv[1]) as vec:
        vec.call(say, [1])
        vec.call(say, [4])
        vec.call(lambda env: logging.getLogger("quiet").critical("!"), [0])
"""
METHODS = ["fork", *(pytest.param(each, marks=pytest.mark.long) for each in ("forkserver", "spawn"))]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("how", ["configured", "bare"])
def test_workers_log_as_the_caller(method: str, how: str, tmp_path: Path) -> None:
    """By its levels and its format, with a prefix; where it has no handlers, as Python's last resort does."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    told = subprocess.run([sys.executable, program, method, how], capture_output=True, text=True, check=True).stderr
    if how == "bare":
        assert told == "[worker 0 envs 0-2] !\n"
        return
    levels = [("0 envs 0-2", "DEBUG"), ("0 envs 0-2", "INFO"), ("1 envs 3, 4", "DEBUG"), ("1 envs 3, 4", "INFO")]
    lines = [f"[worker {who}] {level:>9} env {who[-1] if who[0] == '1' else 1}" for who, level in levels]
    assert told.splitlines() == [*lines, "[worker 0 envs 0-2]  CRITICAL !"]


def test_a_log_dir_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match="log_dir .* is a file"):
        DummyVecEnv([CountingEnv], log_dir=tmp_path / "file")
    with pytest.raises(TypeError, match="log_dir must be a path"):
        DummyVecEnv([CountingEnv], log_dir=7)


def test_a_log_dir_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "worker-0.log").mkdir()
    with pytest.raises(EnvError, match="IsADirectoryError"):
        SubprocVecEnv([CountingEnv], 1, log_dir=tmp_path)


class AskingEnv(CountingEnv):
    """Wants a terminal, or a thread of its own."""

    def step(self, action: Any) -> Any:
        if action == 1:
            raise bdb.BdbQuit  # as `breakpoint` does without a terminal; pytest has one of its own
        if action == 2:
            input("press enter")
        return super().step(action)


@pytest.mark.parametrize("action", [1, 2])
def test_a_debugger_is_for_the_callers_process(action: int) -> None:
    with SubprocVecEnv([AskingEnv] * 2, 1, "fork") as vec:
        vec.reset()
        with pytest.raises(EnvError, match="use backend='dummy'"):
            vec.step([0, action])


class ThreadBoundEnv(CountingEnv):
    """Refuses other threads than that which made it, in SQLite's words."""

    def __init__(self) -> None:
        super().__init__(length=1)
        self.made_in = threading.get_ident()

    def reset(self, **kwargs: Any) -> Any:
        if threading.get_ident() != self.made_in:
            raise RuntimeError("SQLite objects created in a thread can only be used in that same thread")
        return super().reset(**kwargs)


def test_an_env_that_is_bound_to_its_thread() -> None:
    def play() -> None:
        for _ in range(100):
            vec.step([0, 0])

    with DummyVecEnv([ThreadBoundEnv] * 2, autoreset="async") as vec:
        vec.reset()
        with pytest.raises(EnvError, match="num_workers=num_envs"):
            play()


def test_a_hung_fork_beside_threads(tmp_path: Path) -> None:
    gate, over = tmp_path / "gate", threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    with SubprocVecEnv([lambda: GatedEnv(0, gate, at=1)], 1, "fork", step_timeout=0.3) as vec:
        over.set()
        thread.join()
        vec.reset()
        with pytest.raises(StepTimeout, match="in a fork of a process with threads: start_method='forkserver'"):
            vec.step([0])
        gate.touch()
