"""Workers that die: an error says so soon, and nothing hangs or is left behind."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from vecenvs.errors import AlreadySteppingError, NotSteppingError, StepTimeout, WorkerDied
from vecenvs.testing.envs import CountingEnv, DyingEnv, GatedEnv
from vecenvs.testing.envs.counting import pid_of
from vecenvs.testing.envs.ill import EXIT_CODE
from vecenvs.testing.suite.base import Conformance, Make
from vecenvs.testing.suite.interrupts import NappingEnv

PROMPT = pytest.mark.timeout(100)
"""For tests beside an env that hangs: waiting for it fails the test."""


def dying_fns(num_envs: int = 4, **kwargs: Any) -> list[Any]:
    """Return env functions, of which env 0 dies as `kwargs` say."""
    return [functools.partial(DyingEnv, 0, **kwargs), *(functools.partial(CountingEnv, i) for i in range(1, num_envs))]


def expect_death(error: WorkerDied, how: str) -> None:
    """Check the worker, the slots (0 among them) and the exit status in the error."""
    assert error.worker == 0
    assert 0 in error.indices
    assert 2 not in error.indices
    if how == "kill":
        assert error.signal == signal.SIGKILL
        assert "SIGKILL" in str(error)
    else:
        assert error.exitcode == EXIT_CODE
        assert str(EXIT_CODE) in str(error)


def wait_for_the_end(pid: int) -> None:
    """Wait until a process has ended, without reaping it."""
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.005)


def tag_when_open(env: Any, gate: Path) -> Any:
    """Return the env's tag once a file exists."""
    while not gate.exists():
        time.sleep(0.005)
    return env.unwrapped.tag


def slow_env() -> NappingEnv:
    """Return an env whose rows do not travel with those of the next one."""
    env = NappingEnv()
    env.nap = 0.01
    return env


def say(_: Any, text: str) -> None:
    print(f"{text} printed")  # noqa: T201
    logging.getLogger("toys").warning("%s logged", text)


class DeathConformance(Conformance):
    """WorkerDied."""

    @PROMPT
    def test_log_dir_tells_what_it_said(self, make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        """Each worker has a file; the error and the line in the log have the last lines."""
        vec = make(dying_fns(at=1), log_dir=tmp_path / "logs")
        vec.call(say, [0], "the first")
        vec.call(say, [2], "another")
        vec.reset()
        with pytest.raises(WorkerDied) as caught:
            vec.step([0, 0, 0, 0])
        *_, printed, logged = caught.value.printed.splitlines()
        assert printed == "the first printed"
        assert logged.startswith("[worker 0 envs 0")
        assert logged.endswith("the first logged")
        assert str(caught.value).endswith(logged)
        assert caught.value.printed in caplog.text
        assert "it is not replaced" in caplog.text
        others = [file.read_text() for file in (tmp_path / "logs").iterdir() if file.name != "worker-0.log"]
        assert sum("another printed" in text for text in others) == (caught.value.worker == 0 and len(others) > 0)

    @PROMPT
    @pytest.mark.parametrize("where", ["step", "reset"])
    def test_what_it_sent_before(self, make: Make, where: str) -> None:
        """A row that was sent before its worker died is not lost, even if no call has looked for it until then."""
        vec = make([slow_env, functools.partial(DyingEnv, 1, where, 1 if where == "step" else 2), CountingEnv])
        vec.reset()
        (pid,) = vec.call(pid_of, [1])
        if where == "step":
            vec.send([0, 0], [0, 1])
        else:
            vec.reset_async([0, 1])
        wait_for_the_end(pid)
        rows: list[Any] = []
        deaths: list[WorkerDied] = []
        with pytest.raises(NotSteppingError):
            while True:
                try:
                    rows += vec.recv(timeout=30.0).obs.tolist()
                except WorkerDied as died:
                    deaths.append(died)
        assert rows == [[0, 1, 1] if where == "step" else [0, 2, 0]]
        assert [(1 in died.indices, died.exitcode) for died in deaths] == [(True, EXIT_CODE)]

    @PROMPT
    @pytest.mark.parametrize("how", ["exit", "kill"])
    def test_in_a_step(self, make: Make, how: str, tmp_path: Path) -> None:
        """The death is reported while env 2 is still stepping."""
        gate = tmp_path / "gate"
        fns = dying_fns(at=2, how=how)
        fns[2] = functools.partial(GatedEnv, 2, gate, at=2)
        vec = make(fns)
        vec.reset()
        vec.step([0] * 4)
        with pytest.raises(WorkerDied) as caught:
            vec.step([0] * 4)
        gate.touch()
        expect_death(caught.value, how)
        with pytest.raises(WorkerDied):
            vec.step_wait()
        assert sorted(vec.recv(2).indices.tolist()) == [2, 3]
        with pytest.raises(NotSteppingError):
            vec.recv()

    @PROMPT
    def test_rows_of_the_others_by_their_indices(self, make: Make, tmp_path: Path) -> None:
        """Also of an env that is still at the step in which another's worker has died."""
        gate = tmp_path / "gate"
        fns = dying_fns(at=1)
        fns[2] = functools.partial(GatedEnv, 2, gate)
        vec = make(fns)
        vec.reset()
        with pytest.raises(WorkerDied):
            vec.step([0] * 4)
        with pytest.raises(StepTimeout):
            vec.recv(indices=[2], timeout=0.01)
        gate.touch()
        assert vec.recv(indices=[2]).obs.tolist() == [[2, 1, 1]]
        assert vec.recv(indices=[3]).obs.tolist() == [[3, 1, 1]]

    @PROMPT
    def test_beside_others_that_always_have_something(self, make: Make) -> None:
        vec = make(dying_fns(at=1))
        vec.reset()
        vec.send([0] * 4)
        with pytest.raises(WorkerDied) as caught:
            while True:
                batch = vec.recv()
                vec.send([0] * len(batch.indices), batch.indices)
        expect_death(caught.value, "exit")

    @PROMPT
    def test_in_a_reset(self, make: Make) -> None:
        vec = make(dying_fns(where="reset", at=2))
        vec.reset()
        with pytest.raises(WorkerDied) as caught:
            vec.reset()
        expect_death(caught.value, "exit")

    @PROMPT
    @pytest.mark.parametrize("how", ["exit", "kill"])
    def test_while_being_made(self, make: Make, how: str, tmp_path: Path) -> None:
        """The constructor raises, though env 2 is never made, and leaves nothing behind (fixture no_leaks)."""
        fns = dying_fns(where="init", how=how)
        fns[2] = functools.partial(GatedEnv, 2, tmp_path / "never", "init")
        with pytest.raises(WorkerDied) as caught:
            make(fns)
        assert "have not been made" in str(caught.value)
        expect_death(caught.value, how)

    @PROMPT
    def test_beside_a_call_that_needs_other_workers(self, make: Make, tmp_path: Path) -> None:
        """The call goes on: a later call_wait returns its results."""
        fns: list[Any] = dying_fns()
        fns[0] = functools.partial(GatedEnv, 0, tmp_path / "never")
        vec = make(fns)
        vec.reset()
        (pid,) = vec.call(pid_of, [0])
        vec.send([0], [0])
        vec.call_async(tag_when_open, [2], tmp_path / "gate")
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(WorkerDied) as caught:
            vec.call_wait()
        expect_death(caught.value, "kill")
        with pytest.raises(AlreadySteppingError, match="call_wait first"):
            vec.send([0], [2])
        (tmp_path / "gate").touch()
        assert vec.call_wait() == [2]
        vec.send([0], [2])
        assert vec.recv().indices.tolist() == [2]

    @PROMPT
    def test_every_later_call_says_so_too(self, make: Make) -> None:
        vec = make(dying_fns())
        vec.reset()
        for call in (
            lambda: vec.step([0] * 4),
            lambda: vec.step([0] * 4),
            lambda: vec.reset(),
            lambda: vec.get_attr("tag"),
        ):
            with pytest.raises(WorkerDied) as caught:
                call()
            expect_death(caught.value, "exit")

    @PROMPT
    def test_close_afterwards(self, make: Make) -> None:
        vec = make(dying_fns())
        vec.reset()
        vec.step_async([0] * 4)
        vec.close()
        assert vec.closed
        vec.close()

    @PROMPT
    def test_two_workers_at_once(self, make: Make) -> None:
        fns = dying_fns()
        fns[2] = functools.partial(DyingEnv, 2)
        vec = make(fns)
        vec.reset()
        with pytest.raises(WorkerDied):
            vec.step([0] * 4)
        with pytest.raises(WorkerDied):
            vec.get_attr("tag", [0])
        with pytest.raises(WorkerDied):
            vec.get_attr("tag", [2])
