"""Envs that raise, and envs whose values cannot be pickled."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np

from vecenvs.testing.envs.counting import CountingEnv, Observation, TriggeredEnv


class ToyError(ValueError):
    """The exception of a FailingEnv."""


class AwkwardError(Exception):
    """An exception that pickles but cannot be unpickled: its constructor takes two arguments and passes one on."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{reason} (code {code})")


class UnpicklableError(Exception):
    """An exception with a lock, which cannot be pickled."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.lock = threading.Lock()


class FailingEnv(TriggeredEnv):
    """Raise at one of its calls. The message names the tag, so a report can be traced to its env.

    Args:
        tag: a number, to tell envs apart.
        where: the call: "init", "reset", "step", "close" or "method" (`add`).
        at: at which of these calls, counted from 1.
        kind: what it raises: "toy", "awkward", "unpicklable", "exit", "cancelled" or "interrupt".
        length: steps per episode.
    """

    def __init__(self, tag: int = 0, where: str = "step", at: int = 1, kind: str = "toy", length: int = 5) -> None:
        self.kind = kind
        super().__init__(tag, where, at, length)

    def _act(self) -> None:
        raise self._error(f"env {self.tag} failed in {self.where}")

    def _error(self, message: str) -> BaseException:
        if self.kind == "awkward":
            return AwkwardError(7, message)
        kinds: dict[str, type[BaseException]] = {
            "toy": ToyError,
            "unpicklable": UnpicklableError,
            "exit": SystemExit,
            "cancelled": asyncio.CancelledError,
            "interrupt": KeyboardInterrupt,
        }
        return kinds[self.kind](message)


class BadObservationEnv(CountingEnv):
    """Return observations of the wrong shape.

    Args:
        tag: a number, to tell envs apart.
        at: the first step with a wrong observation, counted from 1.
        size: the length of the observations, which should be 3.
    """

    def __init__(self, tag: int = 0, at: int = 2, size: int = 4) -> None:
        super().__init__(tag)
        self.at, self.size = at, size

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = super().step(action)
        if self.steps >= self.at:
            obs = np.zeros(self.size, np.int64)
        return obs, reward, terminated, truncated, info


class UnpicklableEnv(CountingEnv):
    """Have an attribute `lock` that cannot be pickled, and put it into one info.

    Args:
        tag: a number, to tell envs apart.
        at: the step with this info, counted from 1.
    """

    def __init__(self, tag: int = 0, at: int = 2) -> None:
        super().__init__(tag)
        self.at = at
        self.lock = threading.Lock()

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated, truncated, {**info, "lock": self.lock} if self.steps == self.at else info
