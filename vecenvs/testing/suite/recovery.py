"""Combinations of mechanisms: a death beside an autoreset, an exception during a start, slow workers."""

from __future__ import annotations

import functools
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from vecenvs.errors import StepTimeout, WorkerDied
from vecenvs.testing.envs import CountingEnv, DyingEnv, counting_fns
from vecenvs.testing.envs.counting import pid_of
from vecenvs.testing.suite.base import Conformance, Make
from vecenvs.testing.suite.deaths import PROMPT, dying_fns, wait_for_the_end
from vecenvs.testing.suite.interrupts import NappingEnv, interrupted
from vecenvs.testing.suite.restarts import ACTIONS
from vecenvs.vec_env import VecEnv

ASKS: dict[str, Callable[[VecEnv], object]] = {
    "get_attr": lambda vec: vec.get_attr("tag"),
    "set_attr": lambda vec: vec.set_attr("mark", 1),
    "seed": lambda vec: vec.seed(1),
    "set_options": lambda vec: vec.set_options({"a": 1}),
    "step": lambda vec: vec.step(ACTIONS),
    "long": lambda vec: vec.set_attr("long", "x" * 200_000),
}


class HandlerError(Exception):
    """The exception of a signal's handler."""


class EndingEnv(CountingEnv):
    """An env whose action 1 ends the episode. Action 2 ends the process, unless `lives_file` exists."""

    def __init__(self, tag: int, lives_file: Path) -> None:
        super().__init__(tag, length=1000)
        self.lives_file = lives_file

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if action == 2 and not self.lives_file.exists():
            self.lives_file.touch()
            os._exit(17)
        obs, reward, _, _, info = super().step(action)
        return obs, reward, bool(action == 1), False, info


@contextmanager
def raising_at_the_end_of(function: str) -> Iterator[list[str]]:
    """Raise HandlerError, once, where a function of the package with this name returns; yield what that was."""
    found: list[str] = []

    def look(frame: FrameType, event: str, _: object) -> None:
        inside = frame.f_globals.get("__name__", "").startswith("vecenvs.")
        if event == "return" and frame.f_code.co_name == function and inside and not found:
            found.append(frame.f_globals["__name__"])
            raise HandlerError

    sys.setprofile(look)
    try:
        yield found
    finally:
        sys.setprofile(None)


class RecoveryConformance(Conformance):
    """Recovery with `on_failure="restart"`, and with slow or stopped workers."""

    @PROMPT
    def test_a_death_beside_a_row_that_ends_an_episode(self, make: Make, tmp_path: Path) -> None:
        """In async mode an env whose last row waits in the caller still begins its next episode."""
        lives = tmp_path / "lives"
        vec = make([functools.partial(EndingEnv, tag, lives) for tag in range(4)], autoreset="async",
                   on_failure="restart")  # fmt: skip
        vec.reset()
        vec.send([1, 2], [0, 1])
        batch = vec.recv(2, timeout=30)
        assert sorted(batch.indices.tolist()) == [0, 1]
        firsts = vec.recv(2, timeout=30)
        assert sorted(firsts.indices.tolist()) == [0, 1]
        assert [info["episode_start"] for info in firsts.infos] == [True, True]
        assert vec.step([0] * 4)[0][:, 0].tolist() == [0, 1, 2, 3]

    @PROMPT
    @pytest.mark.parametrize("function", ["launch", "accept", "attach", "started", "get"])
    def test_an_exception_while_a_replacement_starts(self, make: Make, function: str, tmp_path: Path) -> None:
        """After an exception of a signal's handler the start is repeated, without counting as a restart."""
        vec = make(dying_fns(at=2, lives_file=tmp_path / "lives"), on_failure="restart", max_restarts=1)
        vec.reset()
        vec.step(ACTIONS)
        vec.step_async(ACTIONS)
        with raising_at_the_end_of(function) as found, pytest.raises(HandlerError):
            vec.step_wait()
        assert found
        infos = vec.step_wait(timeout=30)[3]
        assert infos[0]["worker_restarted"] is True
        assert vec.stats()["restarts"] == 1
        assert vec.step(ACTIONS)[0][:, 0].tolist() == [0, 1, 2, 3]

    @PROMPT
    def test_the_last_row_handed_out_ends_the_lost_episode(self, make: Make, tmp_path: Path) -> None:
        """The row excludes what env 0 had written when env 1, of the same worker, died."""
        fns = counting_fns(4)
        fns[1] = functools.partial(DyingEnv, 1, at=3, lives_file=tmp_path / "lives")
        vec = make(fns, on_failure="restart")
        vec.reset()
        vec.step(ACTIONS)
        last = vec.step(ACTIONS)[0].copy()
        infos = vec.step(ACTIONS)[3]
        lost = [i for i, info in enumerate(infos) if info.get("worker_restarted")]
        assert 1 in lost
        for i in lost:
            assert infos[i]["terminal_observation"].tolist() == last[i].tolist()

    @PROMPT
    def test_a_death_is_raised_anew(self, make: Make) -> None:
        """The message is the same each time, and the traceback does not grow."""
        vec = make(dying_fns())
        vec.reset()
        with pytest.raises(WorkerDied) as caught:
            vec.step(ACTIONS)
        errors, frames = [caught.value], set()
        for _ in range(3):
            with pytest.raises(WorkerDied) as caught:
                vec.step(ACTIONS)
            errors.append(caught.value)
            frames.add(len(traceback.extract_tb(caught.value.__traceback__)))
        assert len(frames) == 1
        assert len({id(error) for error in errors}) == 4
        assert len({str(error) for error in errors}) == 1

    def test_many_slow_envs_in_one_worker(self, make: Make) -> None:
        """`step_timeout` holds for each env. A worker may take longer for all of its envs."""
        vec = make([functools.partial(NappingEnv, tag) for tag in range(8)], step_timeout=1.4, on_failure="restart")
        vec.reset()
        vec.set_attr("nap", 0.4)
        for t in (1, 2):
            assert vec.step([0] * 8)[0][:, 2].tolist() == [t] * 8
        assert vec.stats()["restarts"] == 0

    @PROMPT
    @pytest.mark.parametrize("ask", ASKS)
    def test_a_stopped_worker(self, make: Make, ask: str) -> None:
        """Every call on it raises StepTimeout and can be repeated once it continues."""
        vec = make(counting_fns(4), step_timeout=1.0, info_attrs=["t"])
        vec.reset()
        pid = vec.call(pid_of, [0])[0]
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(StepTimeout) as caught:
                ASKS[ask](vec)
            assert 0 in caught.value.indices
            assert 3 not in caught.value.indices
        finally:
            os.kill(pid, signal.SIGCONT)
        if ask == "step" and not _is_free(vec):
            vec.step_wait()
        assert vec.get_attr("tag") == [0, 1, 2, 3]
        assert vec.step(ACTIONS)[0][:, 0].tolist() == [0, 1, 2, 3]

    @PROMPT
    def test_a_stopped_worker_is_replaced(self, make: Make) -> None:
        vec = make(counting_fns(4), step_timeout=1.0, on_failure="restart")
        vec.reset()
        pid = vec.call(pid_of, [0])[0]
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(WorkerDied, match="Another worker takes its place"):
                vec.get_attr("tag")
        finally:
            _continue(pid)
        assert vec.get_attr("tag") == [0, 1, 2, 3]
        assert vec.step(ACTIONS)[3][0]["worker_restarted"] is True

    @PROMPT
    def test_more_stopped_workers_than_restarts(self, make: Make) -> None:
        """`max_restarts` limits those of a moment, too."""
        vec = make(counting_fns(4), step_timeout=1.0, on_failure="restart", max_restarts=1)
        vec.reset()
        pids = [pid for pid in dict.fromkeys(vec.call(pid_of, None)) if pid != os.getpid()]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(StepTimeout):
                vec.step(ACTIONS)
            assert vec.stats()["restarts"] == 1
        finally:
            for pid in pids:
                _continue(pid)
        obs, *_ = vec.step_wait()
        assert obs[:, 0].tolist() == [0, 1, 2, 3]
        assert vec.stats()["restarts"] == 1

    @PROMPT
    def test_a_death_after_an_interrupted_call(self, make: Make, tmp_path: Path) -> None:
        """Nothing waits for the call any more, so nothing fails for it."""
        vec = make([functools.partial(NappingEnv, tag) for tag in range(4)], on_failure="restart")
        vec.reset()
        pid = vec.call(pid_of, [0])[0]
        vec.set_attr("folder", tmp_path, [0])
        with interrupted(tmp_path, opens=False):
            vec.env_method("rest", indices=[0])
        os.kill(pid, signal.SIGKILL)
        wait_for_the_end(pid)
        obs, _, _, infos = vec.step(ACTIONS)
        assert obs[:, 0].tolist() == [0, 1, 2, 3]
        assert infos[0]["worker_restarted"] is True

    @PROMPT
    @pytest.mark.parametrize("function", ["send_request", "begin", "call_async"])
    def test_a_death_after_a_call_that_a_handler_has_ended(self, make: Make, function: str) -> None:
        """It may have been sent, or not: in both cases the rows of a new worker come."""
        vec = make(counting_fns(4), on_failure="restart")
        vec.reset()
        pid = vec.call(pid_of, [0])[0]
        with raising_at_the_end_of(function) as found, pytest.raises(HandlerError):
            vec.get_attr("tag")
        assert found
        os.kill(pid, signal.SIGKILL)
        wait_for_the_end(pid)
        assert vec.step(ACTIONS)[3][0]["worker_restarted"] is True
        assert vec.get_attr("tag") == [0, 1, 2, 3]

    @PROMPT
    def test_close_beside_an_async_reset(self, make: Make, tmp_path: Path) -> None:
        """No env is closed while it resets."""
        closed = tmp_path / "closed"
        vec = make([functools.partial(CheckedEnv, tag, closed) for tag in range(4)], autoreset="async")
        vec.reset()
        vec.step([0] * 4)
        vec.close()
        assert sorted(closed.read_text().split()) == ["after", "after", "after", "after"]


class CheckedEnv(CountingEnv):
    """An env with episodes of one step and slow resets, except the first. `close` records a reset under way."""

    def __init__(self, tag: int, closed: Path) -> None:
        super().__init__(tag, length=1)
        self.closed = closed
        self.resetting = False

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        self.resetting = True
        if self.episode:
            time.sleep(0.4)
        result = super().reset(**given)
        self.resetting = False
        return result

    def close(self) -> None:
        with self.closed.open("a") as file:
            file.write("during\n" if self.resetting else "after\n")


def _is_free(vec: VecEnv) -> bool:
    """Return whether the step was not begun."""
    try:
        vec.get_attr("tag")
    except Exception:
        return False
    return True


def _continue(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)
