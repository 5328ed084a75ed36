"""Threads of async resets, begun while an exception, as of a signal's handler, comes at any bytecode."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Collection
from typing import Any

import pytest
from bytecodes import interrupted

from vecenvs.backends import in_process
from vecenvs.backends.dummy import DummyVecEnv
from vecenvs.errors import EnvError
from vecenvs.testing.envs import CountingEnv, counting_fns
from vecenvs.worker import async_resets, env_threads, outcomes, row_writer, worker
from vecenvs.worker.async_resets import AsyncResets
from vecenvs.worker.env_threads import EnvThreads
from vecenvs.worker.rules import TimeLimits, WorkShare

FILES = {module.__file__ for module in (async_resets, env_threads, outcomes, threading)}


def env_threads_of() -> EnvThreads:
    return EnvThreads(0, TimeLimits(), WorkShare())


@pytest.mark.timeout(60)
def test_a_reset_begun_again_after_an_exception_is_carried_out_once() -> None:
    bytecodes, more = 0, True
    while more:
        begun: list[int] = []
        sent: list[tuple[int, int, object]] = []
        closed: list[int] = []

        def reset(local: int, begun: list[int] = begun) -> Any:
            begun.append(local)
            return local, {}

        def send(*row: Any, sent: list[Any] = sent) -> None:
            sent.append(row)

        resets = AsyncResets(reset, send, closed.append, env_threads_of(), remote=True)
        more = interrupted(lambda resets=resets: resets.begin(3), bytecodes, FILES)  # type: ignore[misc]
        if bytecodes % 2:  # else the one that asks for the row begins the reset
            resets.begin(3)
        resets.ask(3, 7)
        assert not resets.leave(20.0)
        assert (begun, sent, closed) == ([3], [(7, 3, (3, {}))], []), f"after {bytecodes} bytecodes"
        bytecodes += 1
    assert bytecodes > 5


def test_what_still_runs_at_the_end_closes_its_env_itself() -> None:
    gate, closed = threading.Event(), threading.Event()
    resets = AsyncResets(
        lambda _: (gate.wait(20.0), {}), lambda *_: None, lambda _: closed.set(), env_threads_of(), remote=True
    )
    resets.begin(0)
    assert resets.leave(0.0) == {0}
    assert not closed.is_set()
    gate.set()
    assert closed.wait(20.0)


def test_a_reset_that_could_not_begin_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise RuntimeError("can't start new thread")

    resets = AsyncResets(lambda _: (0, {}), lambda *_: None, lambda _: None, env_threads_of(), remote=True)
    monkeypatch.setattr(threading, "_start_new_thread", fail)
    with pytest.raises(RuntimeError):
        resets.begin(0)
    assert resets.leave(20.0) == set()
    resets.drop([0])


@pytest.mark.timeout(60)
def test_an_episode_whose_end_was_broken_off_is_not_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its env is reported as failed, and so is not to be in another episode by itself."""

    def interrupt(_: object) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    with DummyVecEnv([lambda: CountingEnv(length=1)], autoreset="async") as vec:
        vec.reset(seed=0)
        monkeypatch.setattr(row_writer, "completed", interrupt)
        with pytest.raises(KeyboardInterrupt):
            vec.step([0])
        with pytest.raises(EnvError, match="KeyboardInterrupt"):
            vec.step_wait()
        with pytest.raises(EnvError, match="failed before"):
            vec.step([0])
        vec.reset()
        assert vec.get_attr("episode") == [2]


def at_work(others: Collection[int]) -> bool:
    """Tell whether an env's thread does more than wait for its next job."""
    frames = sys._current_frames().items()
    return any(frame.f_code.co_name != "_serve" for thread, frame in frames if thread not in others)


@pytest.mark.timeout(60)
def test_an_env_reported_as_failed_is_not_renewed_by_its_reset() -> None:
    """At whatever bytecode an exception ends the wait for first rows, of which a reset in a thread may be late."""
    failed, threads = 0, sys._current_frames().keys()
    for bytecodes in itertools.count():
        with DummyVecEnv(counting_fns(2, length=1), autoreset="async") as vec:
            vec.reset()
            vec.step([0, 0])
            vec.step_async([0, 0])
            if not interrupted(vec.step_wait, bytecodes, {in_process.__file__, worker.__file__}):
                break
            try:
                vec.step_wait()
            except EnvError as error:
                failed += 1
                deadline = time.monotonic() + 20.0
                while at_work(threads) and time.monotonic() < deadline:
                    time.sleep(0.001)
                with pytest.raises(EnvError, match=f"env {error.index} failed before"):
                    vec.step([0, 0])
    assert failed > 3
