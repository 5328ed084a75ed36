"""Envs that end their process, or hang."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from vecenvs.testing.envs.counting import CountingEnv, Observation

EXIT_CODE = 17


class DyingEnv(CountingEnv):
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
        super().__init__(tag, length)
        self.where, self.at, self.how = where, at, how
        self.lives_file, self.deaths = lives_file, deaths
        self._calls = 0
        self._maybe_die("init")

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        self._maybe_die("reset")
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        self._maybe_die("step")
        return super().step(action)

    def exit_now(self) -> None:
        """End the process by `env_method`."""
        os._exit(EXIT_CODE)

    def _maybe_die(self, where: str) -> None:
        if where != self.where:
            return
        self._calls += 1
        if self._calls != self.at:
            return
        if self.lives_file is not None:
            if self.lives_file.exists() and self.lives_file.stat().st_size >= self.deaths:
                return
            with self.lives_file.open("a") as file:
                file.write("x")
        if self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(EXIT_CODE)


class GatedEnv(CountingEnv):
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
        super().__init__(tag, length)
        self.gate, self.where, self.at = gate, where, at
        self._calls = 0
        self._maybe_wait("init")

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        self._maybe_wait("reset")
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        self._maybe_wait("step")
        return super().step(action)

    def _maybe_wait(self, where: str) -> None:
        if where != self.where:
            return
        self._calls += 1
        while self._calls == self.at and not self.gate.exists():
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
