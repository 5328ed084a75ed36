"""Envs that end their process, or hang."""

from __future__ import annotations

import os
import signal
import sys
import time
import warnings
from pathlib import Path

from vecenvs.testing.envs.counting import TriggeredEnv

EXIT_CODE = 17


class DyingEnv(TriggeredEnv):
    """End its process at one of its calls.

    Args:
        tag: a number, to tell envs apart.
        where: the call: "init", "reset" or "step".
        at: at which of these calls, counted from 1.
        how: "exit" (`os._exit(17)`) or "kill" (SIGKILL to itself).
        length: steps per episode.
        lives_file: a file that gets a byte per death. Once it has `deaths` of them the env lives on: a worker that
            replaces the dead one has a healthy env. None for no file.
        deaths: the number of deaths.
    """

    def __init__(
        self,
        tag: int = 0,
        where: str = "step",
        at: int = 1,
        how: str = "exit",
        length: int = 5,
        lives_file: Path | None = None,
        deaths: int = 1,
    ) -> None:
        self.how, self.lives_file, self.deaths = how, lives_file, deaths
        super().__init__(tag, where, at, length)

    def exit_now(self) -> None:
        """End the process by `env_method`."""
        os._exit(EXIT_CODE)

    def _act(self) -> None:
        if self.lives_file is not None:
            if self.lives_file.exists() and self.lives_file.stat().st_size >= self.deaths:
                return
            with self.lives_file.open("a") as file:
                file.write("x")
        if self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(EXIT_CODE)


class ForkingEnv(TriggeredEnv):
    """Fork at a call. The child leaves the call, and the parent waits until it has ended.

    Args:
        tag: a number, to tell envs apart.
        where: the call, as in TriggeredEnv. An env forks at every third reset or step, and at every other call.
        way: how the child leaves it: "exit" (`sys.exit(3)`), "raise" or "return".
        told: a file to which a parent appends how its child has ended; None for none.
        length: steps per episode.

    Attributes:
        exits: how each child has ended: its exit code, or the negative number of a signal.
    """

    def __init__(
        self, tag: int = 0, where: str = "step", way: str = "exit", told: Path | None = None, length: int = 5
    ) -> None:
        self.way, self.told = way, told
        self.exits: list[int] = []
        super().__init__(tag, where, 3 if where in ("reset", "step") else 1, length)

    def _act(self) -> None:
        self._calls = 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns of threads
            child = os.fork()
        if child:
            self.exits.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            if self.told is not None:
                with self.told.open("a") as file:
                    file.write(f"{self.exits[-1]}\n")
            return
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(10)  # if it were to go on as a second worker
        self.tag = 1000  # which no row may have
        os.close(2)  # nobody is to read its traceback
        if self.way == "exit":
            sys.exit(3)
        if self.way == "raise":
            raise ValueError("in the child")


class GatedEnv(TriggeredEnv):
    """Wait at one of its calls until a file exists.

    If the file never exists, the env hangs. Tests that make the file do not depend on times.

    Args:
        tag: a number, to tell envs apart.
        gate: the file.
        where: the call: "init", "reset" or "step".
        at: at which of these calls, counted from 1.
        length: steps per episode.
    """

    def __init__(self, tag: int, gate: Path, where: str = "step", at: int = 1, length: int = 5) -> None:
        self.gate = gate
        super().__init__(tag, where, at, length)

    def _act(self) -> None:
        while not self.gate.exists():
            time.sleep(0.005)


class StubbornEnv(GatedEnv):
    """A GatedEnv whose process ignores SIGTERM and SIGINT: only SIGKILL ends it while it waits.

    Args:
        tag: as in GatedEnv.
        gate: as in GatedEnv.
        where: as in GatedEnv.
        at: as in GatedEnv.
    """

    def __init__(self, tag: int, gate: Path, where: str = "step", at: int = 1) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        super().__init__(tag, gate, where, at)
