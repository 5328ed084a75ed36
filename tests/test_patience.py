"""What is said about long waits, deaths and start methods, and when a start is given up."""

from __future__ import annotations

import functools
import logging
import os
import signal
import sys
import threading
import time
import types
from pathlib import Path
from typing import Any

import pytest

from vecenvs import SubprocVecEnv
from vecenvs.errors import StartTimeout, WorkerDied
from vecenvs.pool import patience
from vecenvs.testing.envs import CountingEnv, GatedEnv, counting_fns
from vecenvs.testing.suite.deaths import PROMPT


@PROMPT
def test_a_first_reset_that_does_not_end(tmp_path: Path) -> None:
    """As in a fork of a process that has used JAX. A later one is limited by step_timeout alone."""
    fns = [CountingEnv, functools.partial(GatedEnv, 1, tmp_path / "never", where="reset")]
    with SubprocVecEnv(fns, 2, "fork", start_timeout=0.5) as vec:
        with pytest.raises(StartTimeout, match="envs 1 have not been reset.*forkserver") as caught:
            vec.reset()
        assert caught.value.worker == 1
        (tmp_path / "never").touch()
        vec.recv(2)
        (tmp_path / "never").unlink()
        vec.send([0], [0])
        threading.Timer(1.0, (tmp_path / "never").touch).start()
        vec.recv()
        vec.reset()


@PROMPT
def test_a_long_wait_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(patience, "LOG_EVERY", 0.5)
    gate = tmp_path / "gate"
    with SubprocVecEnv([CountingEnv, functools.partial(GatedEnv, 1, gate), CountingEnv], 3, "fork") as vec:
        vec.reset()
        threading.Timer(1.5, gate.touch).start()
        vec.step([0] * 3)
    lines = [record.getMessage() for record in caplog.records]
    assert lines
    assert all(line.startswith("still waiting for envs 1, for") for line in lines)


@PROMPT
def test_a_ctrl_c_says_which_envs_were_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(patience, "_LONG", 0.3)
    gate = tmp_path / "gate"
    with SubprocVecEnv([functools.partial(GatedEnv, 0, gate), CountingEnv], 2, "fork") as vec:
        vec.reset()
        threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            vec.step([0] * 2)
        gate.touch()
        vec.step_wait()
    assert "interrupted while waiting for envs 0, for" in caplog.text


@PROMPT
def test_each_death_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with SubprocVecEnv(counting_fns(4), 2, "fork", on_failure="restart", max_restarts=2) as vec:
        vec.reset()
        for _ in range(2):
            os.kill(vec.call(lambda _: os.getpid(), [3])[0], signal.SIGKILL)
            assert vec.step([0] * 4)[3][2]["worker_restarted"]
        assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
        assert [record.getMessage() for record in caplog.records] == [
            f"worker 1 with envs 2, 3 died (signal 9, SIGKILL): restart {number} of 2" for number in (1, 2)
        ]
        os.kill(vec.call(lambda _: os.getpid(), [3])[0], signal.SIGKILL)
        with pytest.raises(WorkerDied, match="max_restarts"):
            vec.step([0] * 4)


@PROMPT
@pytest.mark.parametrize("library", ["JAX", "CUDA", "neither"])
def test_the_default_start_method_beside_libraries_that_do_not_fork(
    library: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They are loaded in either case, and only matter once they are used."""
    bridge, cuda = types.ModuleType("jax._src.xla_bridge"), types.ModuleType("torch.cuda")
    bridge._backends = {"cpu": 0} if library == "JAX" else {}  # type: ignore[attr-defined]
    cuda.is_initialized = lambda: library == "CUDA"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, bridge.__name__, bridge)
    monkeypatch.setitem(sys.modules, cuda.__name__, cuda)
    monkeypatch.setattr("multiprocessing.get_start_method", lambda: "fork")
    with SubprocVecEnv(counting_fns(1), 1) as vec:
        method = vec.stats()["start_method"]
    if library == "neither":
        assert "start_method" not in caplog.text
    else:
        assert method == "forkserver"
        assert caplog.messages == [
            f"{library} is in use here and does not work in a fork: workers start with start_method='forkserver'"
        ]
    with SubprocVecEnv(counting_fns(1), 1, "fork") as vec:
        assert vec.stats()["start_method"] == "fork"
    assert ("hang in a fork" in caplog.text) == (library != "neither")


class DiesOnce(CountingEnv):
    """Ends its process in step 3 if there is no file; later the step at `slow` takes 2.3 s."""

    def __init__(self, file: Path, seconds: float, slow: int = 0) -> None:
        super().__init__(length=1000)
        self.file, self.seconds, self.slow = file, seconds, slow
        time.sleep(seconds)

    def reset(self, **kwargs: Any) -> Any:
        time.sleep(self.seconds)
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        if not self.file.exists() and self.t == 2:
            self.file.touch()
            os._exit(3)
        time.sleep(2.3 if self.file.exists() and self.t + 1 == self.slow else 0)
        return super().step(action)


@PROMPT
@pytest.mark.parametrize(("seconds", "slow"), [(0.0, 9), (1.1, 0)])
def test_a_replacement_has_all_of_its_time(seconds: float, slow: int, tmp_path: Path) -> None:
    """Its start and its first reset; and once that has come, a step is limited by step_timeout alone."""
    fns = [functools.partial(DiesOnce, tmp_path / "died", seconds, slow)]
    with SubprocVecEnv(fns, 1, "fork", on_failure="restart", start_timeout=2.0) as vec:
        vec.reset()
        ends = [vec.step([0])[3][0].get("worker_restarted", False) for _ in range(20)]
        assert ends == [False] * 2 + [True] + [False] * 17
