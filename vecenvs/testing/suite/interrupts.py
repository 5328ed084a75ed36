"""After a Ctrl-C a VecEnv stays usable, as users of a notebook expect."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from vecenvs import env_calls
from vecenvs.errors import EnvError
from vecenvs.testing.envs import CountingEnv
from vecenvs.testing.suite.base import Conformance, Make
from vecenvs.vec_env import VecEnv


class NappingEnv(CountingEnv):
    """A CountingEnv that sleeps for `nap` seconds in each reset, step and call of `rest`.

    With a `folder` it makes the file "entered" there, and waits until there is one named "open".
    """

    nap = 0.0
    folder: Path | None = None

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        self.rest()
        return super().reset(**kwargs)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.rest()
        return super().step(action)

    def rest(self) -> int:
        time.sleep(self.nap)
        if self.folder is not None:
            (self.folder / "entered").touch()
            while not (self.folder / "open").exists():
                time.sleep(0.005)
        return self.tag


@contextlib.contextmanager
def interrupted(folder: Path, *, opens: bool = True) -> Iterator[None]:
    """Send SIGINT once an env in the block has made "entered"; expect KeyboardInterrupt, and make "open" with it."""

    def press(*_: Any) -> None:
        if opens:
            (folder / "open").touch()
        if not done:
            raise KeyboardInterrupt

    def send() -> None:
        while not (folder / "entered").exists() and not done:
            time.sleep(0.005)
        time.sleep(0.1)  # until the call has reached the other workers, too
        os.kill(os.getpid(), signal.SIGINT)

    done = False
    before = signal.signal(signal.SIGINT, press)
    thread = threading.Thread(target=send)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        done = True
        thread.join()
        signal.signal(signal.SIGINT, before)


class InterruptConformance(Conformance):
    """Ctrl-C while the caller waits for a call, a step or a reset."""

    def napping(self, make: Make, folder: Path, **common: Any) -> VecEnv:
        """Return a VecEnv with envs that wait in each call from now on."""
        vec = make([functools.partial(NappingEnv, tag) for tag in range(4)], **common)
        vec.reset()
        vec.set_attr("folder", folder)
        return vec

    def test_a_call(self, make: Make, tmp_path: Path) -> None:
        """The results of an interrupted call are dropped."""
        vec = self.napping(make, tmp_path)
        with interrupted(tmp_path):
            vec.env_method("rest")
        self.goes_on(vec, folder=None)

    def test_a_call_of_two_parts(self, make: Make, tmp_path: Path) -> None:
        """It can be finished later, with its results or with an error of the env that ran in the caller's process."""
        vec = self.napping(make, tmp_path)
        vec.call_async(env_calls.env_method, None, "rest")
        with interrupted(tmp_path):
            vec.call_wait()
        try:
            assert vec.call_wait(timeout=30) == [0, 1, 2, 3]
        except EnvError as error:
            assert "KeyboardInterrupt" in str(error)
        self.goes_on(vec, folder=None)

    @pytest.mark.parametrize("autoreset", ["same_step", "async"])
    def test_a_step(self, make: Make, autoreset: str, tmp_path: Path) -> None:
        """It can be finished later, too: `step_wait` returns its rows."""
        vec = self.napping(make, tmp_path, autoreset=autoreset)
        with interrupted(tmp_path):
            vec.step([0] * 4)
        try:
            assert vec.step_wait(timeout=30)[0][:, 2].tolist() == [1] * 4
        except EnvError as error:
            assert "KeyboardInterrupt" in str(error)
        self.goes_on(vec, folder=None)

    def test_a_reset(self, make: Make, tmp_path: Path) -> None:
        """`recv` returns its rows."""
        vec = self.napping(make, tmp_path)
        with interrupted(tmp_path):
            vec.reset()
        left = set(range(4))
        while left:
            try:
                left -= set(vec.recv(timeout=30).indices.tolist())
            except EnvError as error:
                assert "KeyboardInterrupt" in str(error)
                left.discard(error.index)
        self.goes_on(vec, folder=None)
