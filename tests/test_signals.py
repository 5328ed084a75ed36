"""What a signal's handler raises (Ctrl-C, SIGALRM) comes after any call into C: nothing is lost by it."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from vecenvs import DummyVecEnv, SubprocVecEnv
from vecenvs.errors import EnvError
from vecenvs.pool.pool_vec_env import PoolVecEnv
from vecenvs.testing.envs import CountingEnv, counting_fns
from vecenvs.worker import process, serve
from vecenvs.worker.autoreset import Autoreset
from vecenvs.worker.rules import Rules

PATIENCE = 60.0  # seconds for what takes far less
ROOM = "x" * 70_000  # more than a ring takes at once


class TimeIsUp(Exception):
    """What a handler raises."""


class RaiseAfter:
    """A profile function that raises when the library's own code has called so many functions written in C."""

    def __init__(self, calls: int) -> None:
        self.left = calls
        self.where = ""

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event == "c_return" and "vecenvs" in frame.f_globals.get("__name__", ""):
            self.left -= 1
            if self.left < 0:
                sys.setprofile(None)
                self.where = f"{frame.f_globals['__name__']}, line {frame.f_lineno}"
                raise TimeIsUp


def take_what_is_due(vec: PoolVecEnv) -> None:
    """Do as a program that goes on."""
    if vec._commands.in_step:
        vec.step_wait(timeout=PATIENCE)
    while vec._commands.due or vec._result:
        vec.recv(timeout=PATIENCE)


def send_and_receive(vec: PoolVecEnv) -> None:
    vec.send(np.zeros(4, dtype=np.int64))
    vec.recv(4)


def set_long(vec: PoolVecEnv) -> None:
    vec.set_attr("long", [ROOM] * 4)


@pytest.mark.sparse
@pytest.mark.parametrize(
    "do", [lambda vec: vec.step([0] * 4), lambda vec: vec.reset(), send_and_receive, set_long],
    ids=["step", "reset", "send", "set_attr"],
)  # fmt: skip
def test_an_exception_after_any_call(do: Callable[[PoolVecEnv], None]) -> None:
    with SubprocVecEnv(counting_fns(4), 2, "fork") as vec:
        vec.reset(seed=0)
        for calls in range(10_000):
            at = RaiseAfter(calls)
            sys.setprofile(at)
            try:
                do(vec)
            except Exception:
                assert at.where
            finally:
                sys.setprofile(None)
            if not at.where:
                break
            try:
                take_what_is_due(vec)
                assert vec.get_attr("tag") == [0, 1, 2, 3]
                vec.reset()
                assert [info["t"] for info in vec.step([0] * 4)[3]] == [1] * 4
            except Exception as exc:
                raise AssertionError(f"after an exception in {at.where}") from exc
        assert calls > 10


def test_the_info_of_an_interrupted_reset_comes_with_no_other_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        monkeypatch.undo()
        raise TimeIsUp

    with DummyVecEnv([lambda: CountingEnv()] * 3) as vec:
        vec.reset(seed=0)
        monkeypatch.setattr(Autoreset, "step_of", interrupt)
        with pytest.raises(EnvError, match="env 1 raised TimeIsUp in reset"):
            vec.reset([1])
        vec.send([0], [2])
        assert vec.recv().indices.tolist() == [2]


class Marking(CountingEnv):
    """Makes a file when it is closed."""

    def __init__(self, folder: Path, tag: int) -> None:
        super().__init__(tag)
        self.mark = folder / str(tag)

    def close(self) -> None:
        self.mark.touch()


def a_worker_whose_caller_hangs_up(folder: Path, channel: Any, other: Any, when: str) -> None:
    real: Any = getattr(serve, when)

    def and_sigterm(*args: Any) -> None:
        """As what watches the caller does at this moment, in a thread."""
        os.kill(os.getpid(), signal.SIGTERM)
        real(*args)

    setattr(serve, when, and_sigterm)
    other.close()
    fns = [partial(Marking, folder, tag) for tag in range(2)]
    serve.serve_worker(channel, fns, 0, Rules("same_step"), os.getppid())


@pytest.mark.parametrize(("when", "code"), [("leave", 1), ("unlink_semaphores", 0)])
def test_a_worker_that_ends_is_told_once_more(
    when: str, code: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    context = multiprocessing.get_context("fork")
    channel, other = context.Pipe()
    worker = context.Process(target=a_worker_whose_caller_hangs_up, args=(tmp_path, channel, other, when))
    worker.start()
    channel.close()
    other.close()
    worker.join(30)
    assert worker.exitcode == code
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]
    assert capfd.readouterr().err == ""


def test_blocks_within_each_other() -> None:
    """As where baselines' `clear_mpi_env_vars` stood around what starts processes; signals are let through after it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    with process.child_environment():
        with process.child_environment():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before


def test_signals_come_through_after_a_failed_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OSError(24, "Too many open files")

    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    monkeypatch.setattr(process.resource_tracker, "ensure_running", fail)
    with pytest.raises(OSError, match="Too many"), process.child_environment():
        pass
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before
    assert gc.isenabled()
