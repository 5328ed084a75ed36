"""The envs that a benchmark steps: a Gymnasium env by its id, or a synthetic env of known cost.

    CartPole-v1   ALE/Pong-v5   package.module:Env-v0      gym.make(id, disable_env_checker=True), with no more wrappers
    package.module:Class   package.module:function         what it returns
    spin:100us       a step costs 100 us of CPU and returns 4 floats
    rows:84x84x4     a step costs nothing and returns 84x84x4 bytes
    nested:10us      a step costs 10 us of CPU and returns a nested dict
    sleep:1ms        a step waits for 1 ms and needs no CPU meanwhile

The episodes of a synthetic env never end, unless its name says when: `spin:100us,episode=50`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from importlib import import_module
from importlib.util import find_spec as find_module
from itertools import repeat
from typing import Any, Protocol
from zlib import crc32

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec

from vecenvs.make.env_types import find_source

_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}

# One iteration of the work reads these bytes, which takes about a microsecond. An empty loop in Python would be up to a
# third faster or slower from one process to the next, depending on where its code lies. From 5 KiB on crc32 releases
# the GIL.
_WORK = bytes(4096)


class BadRequest(ValueError):
    """The benchmark cannot do what it was asked for. The message is one line and says what to change."""


class Workload(Protocol):
    """An env function that can be sent to another process."""

    def __call__(self) -> gym.Env[Any, Any]: ...


@dataclass(frozen=True)
class GymEnv:
    """`gym.make` without the environment checker, which alone costs more than a step of CartPole."""

    spec: EnvSpec  # not the id, which may not be registered in a new process
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self) -> gym.Env[Any, Any]:
        with _quiet(str(self.spec.entry_point)):
            return gym.make(self.spec, disable_env_checker=True, **self.kwargs)


@contextmanager
def _quiet(entry_point: str) -> Iterator[None]:
    """Keep game engines from printing a greeting or a warning for each env that is made meanwhile."""
    if entry_point.startswith("ale_py"):
        import ale_py

        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    if not entry_point.startswith("gymnasium.envs.mujoco") or find_module("mujoco") is None:
        yield
        return
    mujoco = import_module("mujoco")
    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda _: None)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)


@dataclass(frozen=True)
class Synthetic:
    """A function that makes a `SyntheticEnv`. The work of a step is a number of iterations, calibrated once.

    A spin until the clock says so would pass for work even while its process is pre-empted.
    """

    space: gym.Space[Any]
    iterations: int = 0
    sleep: float = 0.0
    episode: int | None = None

    def __call__(self) -> gym.Env[Any, Any]:
        return SyntheticEnv(self)


class SyntheticEnv(gym.Env[Any, Any]):
    """Work or sleep in each step, and return the same observation object each time."""

    def __init__(self, workload: Synthetic) -> None:
        self.observation_space = workload.space
        self.action_space = gym.spaces.Discrete(2)
        self._iterations = workload.iterations
        self._sleep = workload.sleep
        self._episode = workload.episode or float("inf")
        self._taken = 0
        workload.space.seed(0)
        self._obs = workload.space.sample()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._taken = 0
        return self._obs, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._iterations:
            spin(self._iterations)
        if self._sleep:
            time.sleep(self._sleep)
        self._taken += 1
        return self._obs, 1.0, self._taken >= self._episode, False, {}


def workload(name: str, env_kwargs: Mapping[str, Any] | None = None) -> Workload:
    """Return the env function of this name. Raise BadRequest if there is no such env, or the name cannot be parsed."""
    kind, _, rest = name.partition(":")
    kwargs = dict(env_kwargs or {})
    if kind not in SYNTHETIC:
        try:
            source = find_source(name)
            return GymEnv(source, kwargs) if isinstance(source, EnvSpec) else partial(source, **kwargs)
        except Exception as error:  # also what the module of `module:Env-v0` raises on import
            raise BadRequest(f"unknown env {name!r}: {' '.join(str(error).split())}") from None
    if kwargs:
        raise BadRequest(f"{name!r} is a synthetic workload: it takes no env kwargs")
    what, _, option = rest.partition(",")
    match = re.fullmatch(r"episode=([1-9]\d*)", option)
    if option and match is None:
        raise BadRequest(f"{name!r}: expected episode=STEPS after the comma, not {option!r}")
    return SYNTHETIC[kind](what, int(match[1]) if match else None)


def _make_spin(text: str, episode: int | None) -> Synthetic:
    return Synthetic(_floats(), iterations=iterations_for(_seconds(text)), episode=episode)


def _make_sleep(text: str, episode: int | None) -> Synthetic:
    return Synthetic(_floats(), sleep=_seconds(text), episode=episode)


def _make_rows(text: str, episode: int | None) -> Synthetic:
    if re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", text) is None:
        raise BadRequest(f"rows:{text}: expected a shape such as rows:84x84x4")
    shape = tuple(map(int, text.split("x")))
    return Synthetic(gym.spaces.Box(0, 255, shape, np.uint8), episode=episode)


def _make_nested(text: str, episode: int | None) -> Synthetic:
    inner = gym.spaces.Dict({"goal": _floats(3), "mode": gym.spaces.Discrete(5)})
    image = gym.spaces.Box(0, 255, (16, 16, 3), np.uint8)
    space = gym.spaces.Dict({"image": image, "state": gym.spaces.Tuple((_floats(8), inner))})
    return Synthetic(space, iterations=iterations_for(_seconds(text)), episode=episode)


SYNTHETIC: dict[str, Callable[[str, int | None], Synthetic]] = {
    "spin": _make_spin,
    "sleep": _make_sleep,
    "rows": _make_rows,
    "nested": _make_nested,
}


def _floats(count: int = 4) -> gym.spaces.Box:
    return gym.spaces.Box(-1.0, 1.0, (count,), np.float32)


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(s|ms|us)", text)
    if match is None:
        raise BadRequest(f"{text!r} is no time: write it as 100us, 1.5ms or 2s")
    return float(match[1]) * _SECONDS[match[2]]


def spin(iterations: int) -> None:
    """Use CPU for this many iterations, each of which reads `_WORK` once."""
    checksum = crc32
    for _ in repeat(None, iterations):
        checksum(_WORK)


def iterations_for(seconds: float) -> int:
    """Return how many iterations of `spin` cost this many seconds of CPU on this machine."""
    return round(seconds / _iteration_seconds())


@lru_cache(maxsize=1)
def _iteration_seconds() -> float:
    """Time one iteration. It is the best of many short tries, since a disturbance only makes a try longer."""
    iterations, best = 100, float("inf")
    for _ in range(100):
        start = time.perf_counter()
        spin(iterations)
        best = min(best, time.perf_counter() - start)
    return best / iterations
