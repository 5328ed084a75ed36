"""A toy simulator that starts and resets slowly, leaks, raises, crashes and listens on a port, as it is told."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from vecenvs.testing.envs.failing import ToyError
from vecenvs.testing.envs.ill import EXIT_CODE

Observation = NDArray[np.float32]
Range = float | tuple[float, float]
NEVER = 10**9

_leaked: list[bytearray] = []  # for as long as the process lives, as a simulator's own library leaks


class SimulatorEnv(gymnasium.Env[Observation, Any]):
    """Draw all that happens in an episode from the seed of its reset, so that any env object plays it in the same way.

    A pair (low, high) in the place of a number is drawn for each episode.

    Args:
        start: seconds until it is made.
        reset: seconds of a reset.
        step: seconds of a step.
        length: steps per episode.
        leak: megabytes that each episode leaves behind in the process.
        raises: the probability that a step of an episode raises a ToyError.
        raises_in_reset: the probability that a reset does.
        crashes: the probability that a step of an episode ends the process by `os._exit`.
        port: the port of this machine at which it listens while it is open; 0 for any that is free, None for none.
        log: a file that gets a line for each env that is made: "begin" or "made", the process's id and the time on the
            monotonic clock. None for no file.

    Attributes:
        port: the port at which it listens.
        difficulty: a number that a reset adds to all observations of its episode: an attribute for `set_attr`.
    """

    def __init__(
        self,
        start: float = 0.0,
        reset: Range = 0.0,
        step: Range = 0.0,
        length: int | tuple[int, int] = 10,
        leak: float = 0.0,
        raises: float = 0.0,
        raises_in_reset: float = 0.0,
        crashes: float = 0.0,
        port: int | None = None,
        log: Path | None = None,
    ) -> None:
        self.observation_space = Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = Discrete(4)
        self.seconds, self.length, self.leak = {"reset": reset, "step": step}, length, leak
        self.odds = {"raises": raises, "reset": raises_in_reset, "crashes": crashes}
        self.difficulty = 0.0
        self._log = log
        self._tell("begin")
        self._socket: socket.socket | None = None
        if port is not None:
            self._socket = socket.create_server(("127.0.0.1", port))
            port = self._socket.getsockname()[1]
        self.port = port
        self._begin(0, 0.0)
        time.sleep(start)
        self._tell("made")

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        draw, difficulty = self.np_random, self.difficulty + (options or {}).get("difficulty", 0.0)
        time.sleep(self._drawn(self.seconds["reset"]))
        if self.leak:
            _leaked.append(bytearray(os.urandom(1024)) * int(1024 * self.leak))
        if draw.random() < self.odds["reset"]:
            raise ToyError("the simulator cannot load its scene")
        self._begin(int(self._drawn(self.length, whole=True)), difficulty)
        for what in ("raises", "crashes"):
            if draw.random() < self.odds[what]:
                self._ill[what] = int(draw.integers(1, self._length + 1))
        return self._observe(), {"scene": int(draw.integers(1000))}

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        time.sleep(self._drawn(self.seconds["step"]))
        self._t += 1
        if self._t == self._ill["crashes"]:
            os._exit(EXIT_CODE)
        if self._t == self._ill["raises"]:
            raise ToyError(f"the simulator fails at step {self._t}")
        over = self._t >= self._length
        reward = float(self.np_random.normal()) + int(action)
        return self._observe(), reward, over, False, {"left": self._length - self._t} if over else {}

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()

    def _begin(self, length: int, difficulty: float) -> None:
        self._t, self._length, self._added = 0, length, difficulty
        self._ill = {"raises": NEVER, "crashes": NEVER}

    def _observe(self) -> Observation:
        return np.array([self._t, self._added + self.np_random.random(), self._length], np.float32)

    def _drawn(self, value: Any, *, whole: bool = False) -> float:
        if not isinstance(value, tuple):
            return float(value)
        low, high = value
        return float(self.np_random.integers(low, high + 1) if whole else self.np_random.uniform(low, high))

    def _tell(self, what: str) -> None:
        if self._log is not None:
            with self._log.open("a") as file:
                file.write(f"{what} {os.getpid()} {time.monotonic()}\n")
