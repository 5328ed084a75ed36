"""Every class of gymnasium.wrappers.vector around the view, against the same around SyncVectorEnv."""

from __future__ import annotations

import copy
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from gymnasium.wrappers import vector
from gymnasium_parity import MODES, Fns, asynchronous, info_fns, ours, sampled_fns, sync

from vecenvs import DummyVecEnv
from vecenvs.testing.compare import assert_same
from vecenvs.testing.envs import RenderingEnv
from vecenvs.views import as_gymnasium

matrix = "contract"

IMAGES = sampled_fns(spaces.Box(0, 255, (8, 8, 3), np.uint8))
VECTORS = sampled_fns(spaces.Box(-1.0, 1.0, (2, 3), np.float32))
BOXES = sampled_fns(spaces.Box(-1.0, 1.0, (2,), np.float32), spaces.Box(-2.0, 2.0, (3,), np.float32))
DICTS = sampled_fns(spaces.Dict({"a": spaces.Box(-1.0, 1.0, (2,), np.float32), "b": spaces.Discrete(3)}))
RENDERING: Fns = [lambda: RenderingEnv(1), lambda: RenderingEnv(2)]

# class -> (env functions, how it is put around a vector env)
CASES: dict[str, tuple[Fns, Callable[[Any], Any]]] = {
    "VectorizeTransformObservation": (
        VECTORS,
        lambda env: vector.VectorizeTransformObservation(env, gym.wrappers.ReshapeObservation, shape=(6,)),
    ),
    "VectorizeTransformAction": (BOXES, lambda env: vector.VectorizeTransformAction(env, gym.wrappers.ClipAction)),
    "VectorizeTransformReward": (
        VECTORS,
        lambda env: vector.VectorizeTransformReward(env, gym.wrappers.TransformReward, func=lambda r: r / 3),
    ),
    "DictInfoToList": (info_fns(), vector.DictInfoToList),
    "TransformObservation": (VECTORS, lambda env: vector.TransformObservation(env, lambda obs: obs / 2)),
    "FilterObservation": (DICTS, lambda env: vector.FilterObservation(env, ["b"])),
    "FlattenObservation": (DICTS, vector.FlattenObservation),
    "GrayscaleObservation": (IMAGES, vector.GrayscaleObservation),
    "ResizeObservation": (IMAGES, lambda env: vector.ResizeObservation(env, (4, 4))),
    "ReshapeObservation": (VECTORS, lambda env: vector.ReshapeObservation(env, (6,))),
    "RescaleObservation": (VECTORS, lambda env: vector.RescaleObservation(env, 0.0, 1.0)),
    "DtypeObservation": (VECTORS, lambda env: vector.DtypeObservation(env, np.float64)),
    "NormalizeObservation": (VECTORS, vector.NormalizeObservation),
    "TransformAction": (BOXES, lambda env: vector.TransformAction(env, lambda a: np.tanh(a), env.action_space)),
    "ClipAction": (BOXES, vector.ClipAction),
    "RescaleAction": (BOXES, lambda env: vector.RescaleAction(env, -1.0, 1.0)),
    "TransformReward": (VECTORS, lambda env: vector.TransformReward(env, lambda rewards: rewards * 3)),
    "ClipReward": (VECTORS, lambda env: vector.ClipReward(env, -0.1, 0.1)),
    "NormalizeReward": (VECTORS, vector.NormalizeReward),
    "RecordEpisodeStatistics": (VECTORS, vector.RecordEpisodeStatistics),
    "RecordVideo": (RENDERING, lambda env: vector.RecordVideo(env, "unused")),
    "HumanRendering": (RENDERING, vector.HumanRendering),
}
# They convert what passes through to and from arrays of other libraries, which the tests do without.
CONVERTERS = {"ArrayConversion", "JaxToNumpy", "JaxToTorch", "NumpyToTorch"}


def test_no_class_is_forgotten() -> None:
    assert {*CASES, *CONVERTERS} == set(vector.__all__)


@pytest.mark.sparse("name")
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning", "ignore:.*precision lowered:UserWarning")  # Gymnasium's
@pytest.mark.parametrize("mode", list(MODES))
@pytest.mark.parametrize("name", sorted({*CASES} - {"RecordVideo", "HumanRendering"}))
def test_wrapper(mode: str, name: str) -> None:
    fns, wrap = CASES[name]
    run(as_gymnasium(DummyVecEnv(fns, autoreset=mode)), sync(fns, mode), wrap, mode)


@pytest.mark.sparse
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning", "ignore:.*precision lowered:UserWarning")
@pytest.mark.parametrize("case", sorted({*CASES} - {"RecordVideo", "HumanRendering"}))
def test_wrapper_on_other_backends(configuration: Any, case: str) -> None:
    fns, wrap = CASES[case]
    run(ours(configuration, fns, "next_step"), asynchronous(fns, "next_step"), wrap, "next_step")


def run(mine: Any, theirs: Any, wrap: Callable[[Any], Any], mode: str) -> None:
    try:
        compare(mine, theirs, wrap, mode)
    finally:
        mine.close()
        theirs.close()


def compare(mine: Any, theirs: Any, wrap: Callable[[Any], Any], mode: str) -> None:
    refused = refusal(wrap, theirs)
    assert refusal(wrap, mine) == refused
    if refused:  # observation wrappers refuse SAME_STEP, NormalizeObservation also DISABLED
        assert mode != "next_step"
        return
    left, right = wrap(mine), wrap(theirs)
    assert isinstance(left, VectorEnv)
    assert left.unwrapped is mine
    assert left.observation_space == right.observation_space
    assert left.action_space == right.action_space
    right.action_space.seed(5)
    assert_same(left.reset(seed=2), right.reset(seed=2), "reset")
    for t in range(25):
        actions = right.action_space.sample()
        got, wanted = left.step(copy.deepcopy(actions)), right.step(actions)
        assert_same(timeless(got), timeless(wanted), f"step {t}")
        dones = wanted[2] | wanted[3]
        if mode == "disabled" and dones.any():
            if isinstance(right, vector.RecordEpisodeStatistics):
                return  # SyncVectorEnv takes the mask out of the options, so theirs forgets all envs' episodes
            pair = [env.reset(options={"reset_mask": dones.copy()}) for env in (left, right)]
            assert_same(*pair, f"reset after {t}")


def refusal(wrap: Callable[[Any], Any], env: Any) -> str:
    try:
        wrap(env)
    except ValueError as error:
        return str(error)
    return ""


def timeless(result: Any) -> Any:
    """Return a step's results without the wall time that RecordEpisodeStatistics adds."""
    infos = result[4]
    if isinstance(infos, dict) and "t" in infos.get("episode", {}):
        infos["episode"].pop("t")
    return result


def test_statistics_survive_a_masked_reset() -> None:
    """The wrapper reads the mask from the caller's options after the reset: it must still be there."""
    env = vector.RecordEpisodeStatistics(as_gymnasium(DummyVecEnv(info_fns(), autoreset="disabled")))
    env.reset()
    for _ in range(2):
        env.step(np.zeros(4, np.int64))
    env.reset(options={"reset_mask": np.array([True, False, False, False])})
    assert env.episode_lengths.tolist() == [0, 2, 2, 2]
    env.close()


@pytest.mark.filterwarnings("ignore:.*autoreset mode is same-step:UserWarning")
@pytest.mark.parametrize("mode", list(MODES))
def test_record_video(configuration: Any, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "moviepy", types.ModuleType("moviepy"))  # it encodes files, which nobody does here
    frames = []
    for env in (ours(configuration, RENDERING, mode), asynchronous(RENDERING, mode)):
        recorder = vector.RecordVideo(env, str(tmp_path / type(env).__name__), step_trigger=lambda step: step == 0)
        recorder.reset()
        for _ in range(3):
            recorder.step(np.zeros(2, np.int64))
        assert recorder.recording
        frames.append(recorder.recorded_frames)
        recorder.recorded_frames, recorder.recording = [], False  # encoding the file is no part of this
        recorder.close()
    assert len(frames[0]) > 2
    assert_same(frames[0], frames[1])


def test_human_rendering(configuration: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    env = vector.HumanRendering(ours(configuration, RENDERING, "next_step"))
    env.reset()
    env.step(np.zeros(2, np.int64))
    assert env.render_mode == "human"
    assert env.window is not None
    env.close()
