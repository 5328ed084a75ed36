"""Every wrapper treats the rows beside an env's exception like any others, whichever call brings them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import vecenvs.compat.baselines as names_of_baselines
import vecenvs.wrappers
from vecenvs import Batch, DummyVecEnv, EnvError, VecEnv
from vecenvs.wrappers import (
    VecCheckNan,
    VecExtractDictObs,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecTransposeImage,
    VecVideoRecorder,
)
from vecenvs.wrappers.base import VecEnvWrapper
from vecenvs.wrappers.vec_torch import VecTensors

FAILING, OTHERS = 2, [0, 1, 3]


class NamedRows(gymnasium.Env[Any, Any]):
    """Every value names the env, its episode and its step. `fails` is the step of the first episode that raises."""

    observation_space = spaces.Dict(image=spaces.Box(0, 255, (4, 5, 3), np.uint8), vector=spaces.Box(-9, 999, (3,)))
    action_space = spaces.Discrete(2)
    render_mode = "rgb_array"
    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012  # Gymnasium's class attribute

    def __init__(self, tag: int, length: int, fails: int | None = None) -> None:
        self.tag, self.length, self.fails = tag, length, fails
        self.episode, self.t = -1, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.episode, self.t = self.episode + 1, 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return self._obs(), self.tag + self.t / 8, self.t == self.length, False, {"own": (self.tag, self.t)}

    def _obs(self) -> Any:
        if (self.episode, self.t) == (0, self.fails):
            raise ValueError("as asked")
        image = np.arange(60, dtype=np.uint8).reshape(4, 5, 3) // 4 + np.uint8(
            60 * self.episode + 10 * self.t + self.tag
        )
        return {"image": image, "vector": np.array([self.tag, self.episode, self.t], np.float32)}

    def render(self) -> Any:
        return np.full((32, 32, 3), 9 * self.t, np.uint8)


class Negated(VecTensors):
    """Stands in for tensors."""

    def _converted(self, arrays: list[Any]) -> list[Any]:
        return [~array if array.dtype == bool else np.negative(array) for array in arrays]


class Halved(names_of_baselines.VecEnvObservationWrapper):
    """Halve observations."""

    def process(self, obs: Any) -> Any:
        return {key: value // 2 for key, value in obs.items()}


def vector_of(vec: VecEnv) -> VecEnv:
    return VecExtractDictObs(vec, "vector")


WRAPPERS: dict[str, Callable[[VecEnv, Path], VecEnv]] = {
    "VecCheckNan": lambda vec, path: VecCheckNan(vec, raise_exception=True),
    "VecExtractDictObs": lambda vec, path: VecExtractDictObs(vec, "image"),
    "VecFrameStack": lambda vec, path: VecFrameStack(vec, 3),
    "VecMonitor": lambda vec, path: VecMonitor(vec, path / "monitor.csv"),
    "VecNormalize": lambda vec, path: VecNormalize(vec, clip_obs=99.0, clip_reward=99.0),
    "VecTransposeImage": lambda vec, path: VecTransposeImage(vec),
    "VecVideoRecorder": lambda vec, path: VecVideoRecorder(vec, path, lambda step: True, video_length=1),
    "VecTensors": lambda vec, path: Negated(vec),
    "VecEnvObservationWrapper": lambda vec, path: Halved(vec),
    "all": lambda vec, path: Negated(VecMonitor(VecNormalize(VecFrameStack(vector_of(vec), 2)))),
}


def make(fails: int | None, mode: str) -> VecEnv:
    # The episodes of envs 0 and 3 end with the step in which env 2 raises.
    lengths = (2, 3, 9, 2)
    fns = [partial(NamedRows, i, n, fails if i == FAILING else None) for i, n in enumerate(lengths)]
    return DummyVecEnv(fns, autoreset=mode)


def told(batch: Batch) -> list[Any]:
    """Return all that a batch says, in a form that can be compared."""
    infos = [{k: {**v, "t": 0} if k == "episode" else v for k, v in info.items()} for info in batch.infos]
    rows = batch.indices, batch.obs, batch.rewards, batch.terminated, batch.truncated, batch.active
    return [shown(rows), batch.dones.tolist(), [shown(info) for info in infos]]


def shown(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: shown(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [shown(part) for part in value]
    return (value.dtype, value.tolist()) if isinstance(value, np.ndarray) else value


def some(vec: VecEnv, call: str) -> Batch:
    """Step or reset all envs but the one that fails elsewhere."""
    if call == "reset":
        vec.reset_async(OTHERS)
    else:
        vec.send([0] * len(OTHERS), OTHERS)
    return vec.recv(indices=OTHERS)


def beside_an_error(vec: VecEnv, call: str) -> Batch:
    if call == "recv":
        vec.send([0] * 4)
    calls: dict[str, Callable[[], Any]] = {
        "reset": vec.reset,
        "step": lambda: vec.step([0] * 4),
        "recv": lambda: vec.recv(indices=[*OTHERS, FAILING]),
    }
    with pytest.raises(EnvError) as raised:
        calls[call]()
    assert raised.value.index == FAILING
    assert raised.value.batch is not None
    return raised.value.batch


@pytest.mark.sparse("name")
@pytest.mark.parametrize("mode", ["same_step", "next_step"])
@pytest.mark.parametrize("call", ["step", "recv", "reset"])
@pytest.mark.parametrize("name", WRAPPERS)
def test_rows_beside_an_exception_are_as_any_others(tmp_path: Path, name: str, call: str, mode: str) -> None:
    """The same rows come without an exception to another VecEnv, in which no env fails and that one takes no part."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.mkdir()
    theirs.mkdir()
    fails = 0 if call == "reset" else 2
    with WRAPPERS[name](make(fails, mode), ours) as vec, WRAPPERS[name](make(None, mode), theirs) as other:
        if call != "reset":
            vec.reset()
            other.reset()
            vec.step([0] * 4)
            other.step([0] * 4)
        assert told(beside_an_error(vec, call)) == told(some(other, call))
        for _ in range(3):  # what the wrapper has kept of the rows is the same, too
            assert told(some(vec, "recv")) == told(some(other, "recv"))
        for seen in ("step_id", "recording", "episode_count"):
            steps = seen == "step_id" and call == "reset"  # a recv counts as a step, whatever its rows are
            assert getattr(vec, seen, None) == getattr(other, seen, None) or steps


def test_every_wrapper_is_among_them() -> None:
    found = {
        cls.__name__
        for module in (vecenvs.wrappers, names_of_baselines)
        for _, cls in inspect.getmembers(module, inspect.isclass)
        if issubclass(cls, VecEnvWrapper) and cls.__mro__[1] is not VecTensors
    }
    passed_on = {"VecRecorder"}  # its rows are those that it gets; tests/wrappers/test_vec_recorder.py
    assert found - {"VecEnvWrapper", "VecRowsWrapper"} - passed_on <= {*WRAPPERS}


def test_returns_are_exact_beside_an_exception() -> None:
    """Rewards that float32 rounds: 1e6 + 0.1 would be 1e6 + 0.125."""

    class Large(NamedRows):
        def step(self, action: Any) -> Any:
            obs, _, *rest = super().step(action)
            return obs, 1e6 + 0.1, *rest

    with VecMonitor(DummyVecEnv([partial(Large, 0, 3), partial(Large, 1, 9, fails=2)])) as vec:
        vec.reset()
        vec.step([0, 0])
        with pytest.raises(EnvError):
            vec.step([0, 0])
        vec.reset([1])
        infos = vec.step([0, 0])[3]
    assert infos[0]["episode"]["r"] == 3e6 + 0.3
