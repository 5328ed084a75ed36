"""After a Ctrl-C a VecEnv stays usable, as users of a notebook expect."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from vecenvs import env_calls
from vecenvs.errors import EnvError
from vecenvs.testing.envs import CountingEnv
from vecenvs.testing.suite.base import Conformance, Make
from vecenvs.vec_env import VecEnv


class NappingEnv(CountingEnv):
    """A CountingEnv that sleeps for `nap` seconds in each reset, step and call of `rest`."""

    nap = 0.0

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        time.sleep(self.nap)
        return super().reset(**kwargs)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(self.nap)
        return super().step(action)

    def rest(self) -> int:
        time.sleep(self.nap)
        return self.tag


@contextlib.contextmanager
def interrupted() -> Iterator[None]:
    """Send SIGINT while the block runs, and expect KeyboardInterrupt from the block."""

    def press(*_: Any) -> None:
        if not done:
            raise KeyboardInterrupt

    done = False
    before = signal.signal(signal.SIGINT, press)
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
        done = True
    finally:
        done = True
        timer.join()
        signal.signal(signal.SIGINT, before)


class InterruptConformance(Conformance):
    """Ctrl-C while the caller waits for a call, a step or a reset."""

    def napping(self, make: Make, **common: Any) -> VecEnv:
        """Return a VecEnv with envs that are slow from now on."""
        vec = make([functools.partial(NappingEnv, tag) for tag in range(4)], **common)
        vec.reset()
        vec.set_attr("nap", 0.4)
        return vec

    def test_a_call(self, make: Make) -> None:
        """The results of an interrupted call are dropped."""
        vec = self.napping(make)
        with interrupted():
            vec.env_method("rest")
        self.goes_on(vec, nap=0.0)

    def test_a_call_of_two_parts(self, make: Make) -> None:
        """It can be finished later, with its results or with an error of the env that ran in the caller's process."""
        vec = self.napping(make)
        vec.call_async(env_calls.env_method, None, "rest")
        with interrupted():
            vec.call_wait()
        try:
            assert vec.call_wait(timeout=30) == [0, 1, 2, 3]
        except EnvError as error:
            assert "KeyboardInterrupt" in str(error)
        self.goes_on(vec, nap=0.0)

    @pytest.mark.parametrize("autoreset", ["same_step", "async"])
    def test_a_step(self, make: Make, autoreset: str) -> None:
        """It can be finished later, too: `step_wait` returns its rows."""
        vec = self.napping(make, autoreset=autoreset)
        with interrupted():
            vec.step([0] * 4)
        try:
            assert vec.step_wait(timeout=30)[0][:, 2].tolist() == [1] * 4
        except EnvError as error:
            assert "KeyboardInterrupt" in str(error)
        self.goes_on(vec, nap=0.0)

    def test_a_reset(self, make: Make) -> None:
        """`recv` returns its rows."""
        vec = self.napping(make)
        with interrupted():
            vec.reset()
        left = set(range(4))
        while left:
            try:
                left -= set(vec.recv(timeout=30).indices.tolist())
            except EnvError as error:
                assert "KeyboardInterrupt" in str(error)
                left.discard(error.index)
        self.goes_on(vec, nap=0.0)
