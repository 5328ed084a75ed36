"""Envs that keep references to the arrays that they return or receive."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Sequence, Tuple
from numpy.typing import NDArray

Observation = dict[str, Any]


class BufferReusingEnv(gymnasium.Env[Any, Any]):
    """Return the same observation dict, arrays and info array every time, written over in place.

    As emulators and simulators do that own their frame. The values count steps, so a late change shows.

    Args:
        tag: a number, to tell envs apart.
        length: steps per episode.
        side: height and width of the frames, in pixels.

    Attributes:
        tampered: whether other code wrote into the buffers between two calls.
    """

    def __init__(self, tag: int = 0, length: int = 4, side: int = 5) -> None:
        pixels = Box(0, 255, (side, side), np.uint8)
        self.observation_space = Dict({"pixels": pixels, "x": Box(-1e9, 1e9, (2,), np.float64)})
        self.action_space = Box(-1.0, 1.0, (2,), np.float32)
        self.tag, self.length = tag, length
        self.tampered = False
        self._clock = self._t = 0
        self._obs: Observation = {"pixels": np.zeros((side, side), np.uint8), "x": np.zeros(2)}
        self._info: dict[str, Any] = {"array": np.zeros(3), "nested": {"array": np.zeros(2)}}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        self._t = 0
        self._refresh()
        return self._obs, self._info

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        self._t += 1
        self._refresh()
        return self._obs, float(self._clock), self._t >= self.length, False, self._info

    def _refresh(self) -> None:
        self.tampered |= bool((self._obs["pixels"] != self._clock % 256).any()) or self._obs["x"][0] != self._clock
        self._clock += 1
        self._obs["pixels"][...] = self._clock % 256
        self._obs["x"][...] = self._clock
        self._info["array"][...] = self._clock
        self._info["nested"]["array"][...] = self._clock


_Float, _Double = np.float32, np.float64
# What SharedBufferEnv returns: a space, and the object that all envs of a process return, written over in place.
SHARED: dict[str, tuple[gymnasium.Space[Any], Any]] = {
    "vector": (Box(-1e9, 1e9, (3,), _Float), np.zeros(3, _Float)),
    "other dtype": (Box(-1e9, 1e9, (3,), _Float), np.zeros(3, _Double)),
    "integers": (Box(-1e9, 1e9, (3,), _Float), np.zeros(3, np.int64)),
    "matrix": (Box(-1e9, 1e9, (2, 2), _Float), np.zeros((2, 2), _Float)),
    "matrix of another dtype": (Box(-1e9, 1e9, (2, 2), _Float), np.zeros((2, 2), _Double)),
    "strided": (Box(-1e9, 1e9, (3,), _Float), np.zeros(6, _Float)[::2]),
    "scalar": (Box(-1e9, 1e9, (), _Double), np.zeros((), _Double)),
    "whole number": (Discrete(10**6), np.zeros((), np.int64)),
    "image": (Box(0, 10**6, (70, 70), np.int32), np.zeros((70, 70), np.int32)),
    "dict": (
        Dict(x=Box(-1e9, 1e9, (2,), _Float), in_it=Dict(y=Box(-1e9, 1e9, (1,), _Float))),
        {"x": np.zeros(2, _Float), "in_it": {"y": np.zeros(1, _Double)}},
    ),
    "tuple": (Tuple([Box(-1e9, 1e9, (2,), _Float)] * 2), (np.zeros(2, _Float), np.zeros(2, _Float))),
    "list": (Sequence(Box(-1e9, 1e9, (1,), _Float)), [np.zeros(1, _Float)]),
}
_INFO: dict[str, Any] = {"array": np.zeros(2), "nested": {"array": np.zeros(1)}}
_REWARD = np.zeros(())


class SharedBufferEnv(gymnasium.Env[Any, Any]):
    """Return objects that all envs of a process share, as those of one simulator or emulator may.

    Every number in them is the env's tag * 10000 + its episode * 100 + its step of that.

    Args:
        kind: a key of `SHARED`.
        tag: a number, to tell envs apart.
        length: steps per episode.
    """

    def __init__(self, kind: str, tag: int, length: int = 3) -> None:
        self.observation_space, self._obs = SHARED[kind]
        self.action_space = Discrete(3)
        self.tag, self.length = tag, length
        self._episode = self._t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._episode += 1
        self._t = 0
        self._write(_INFO)
        return self._obs, _INFO

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._t += 1
        self._write(_INFO)
        return self._obs, _REWARD, self._t >= self.length, False, _INFO

    def _write(self, info: dict[str, Any]) -> None:
        number = self.tag * 10_000 + self._episode * 100 + self._t
        info["number"] = number
        parts = [self._obs, info["array"], info["nested"], _REWARD]
        while parts:
            part = parts.pop()
            if isinstance(part, np.ndarray):
                part[...] = number
            else:
                parts += part.values() if isinstance(part, dict) else part


class ActionKeepingEnv(gymnasium.Env[NDArray[np.float32], Any]):
    """Keep every action without a copy, and write into it one step later.

    Attributes:
        changed: whether an action had another value one step later.
    """

    def __init__(self) -> None:
        self.observation_space = Box(-10.0, 10.0, (2,), np.float32)
        self.action_space = Box(-1.0, 1.0, (2,), np.float32)
        self.changed = False
        self._kept: NDArray[np.float32] | None = None
        self._value: list[float] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        if self._kept is not None:
            self.changed |= self._kept.tolist() != self._value
            self._kept[...] = 9.0
        self._kept, self._value = action, action.tolist()
        return np.array(action), float(action[0]), False, False, {}
