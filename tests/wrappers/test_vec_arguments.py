"""Arguments of a wrong type to wrappers and views: the error names them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from vecenvs import DummyVecEnv, VecEnv
from vecenvs.testing.envs import CountingEnv, RenderingEnv, counting_fns
from vecenvs.views import as_gymnasium, as_pfrl, as_sb3, from_gymnasium
from vecenvs.wrappers import Monitor, VecFrameStack, VecMonitor, VecNormalize, VecVideoRecorder

NO_NUMBERS = ["1", None, [1], 1j, True]
NO_PATHS = [5, [1], 1.5]
NO_KEYWORDS = [5, "word", [1]]


@pytest.fixture
def vec() -> Iterator[VecEnv]:
    with DummyVecEnv(counting_fns(3)) as made:
        yield made


@pytest.mark.parametrize("name", ["clip_obs", "clip_reward", "epsilon", "gamma"])
def test_numbers_of_vec_normalize(vec: VecEnv, name: str) -> None:
    for value in NO_NUMBERS:
        with pytest.raises(TypeError, match=f"{name} must be a number, not "):
            VecNormalize(vec, **{name: value})
    for value in (float("nan"), -1.0):
        with pytest.raises(ValueError, match=f"{name} must be (more than 0|from 0 to 1), not "):
            VecNormalize(vec, **{name: value})
    VecNormalize(vec, **{name: np.float32(0.5)})


def test_other_arguments_of_vec_normalize(vec: VecEnv, tmp_path: Path) -> None:
    for keys in (5, "obs", [1]):
        with pytest.raises(TypeError, match="norm_obs_keys must be a tuple of keys"):
            VecNormalize(vec, norm_obs_keys=keys)  # type: ignore[arg-type]
    normalize = VecNormalize(vec)
    for path in NO_PATHS:
        with pytest.raises(TypeError, match="path must be a path, not "):
            normalize.save(path)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="path must be a path, not "):
            VecNormalize.load(path, vec)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="source must be a VecNormalize, not "):
        normalize.copy_statistics(vec)  # type: ignore[arg-type]


def test_vec_frame_stack(vec: VecEnv) -> None:
    for number in ("4", 1.5, None, True):
        with pytest.raises(TypeError, match="n_stack must be an int, not "):
            VecFrameStack(vec, number)  # type: ignore[arg-type]


def test_monitors(vec: VecEnv, tmp_path: Path) -> None:
    for path in NO_PATHS:
        with pytest.raises(TypeError, match="filename must be a path, not "):
            VecMonitor(vec, path)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="filename must be a path, not "):
            Monitor(CountingEnv(), path)  # type: ignore[arg-type]
    for keywords in NO_KEYWORDS:
        with pytest.raises(TypeError, match="info_keywords should be a sequence of strings"):
            VecMonitor(vec, info_keywords=keywords)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="reset_keywords should be a sequence of strings"):
            Monitor(CountingEnv(), reset_keywords=keywords)  # type: ignore[arg-type]


def test_vec_video_recorder(tmp_path: Path) -> None:
    with DummyVecEnv([RenderingEnv]) as vec:
        for fps in ("30", [1], True):
            with pytest.raises(TypeError, match="fps must be a number, not "):
                VecVideoRecorder(vec, tmp_path, bool, fps=fps)  # type: ignore[arg-type]
        for fps in (0, -1.0, float("nan")):
            with pytest.raises(ValueError, match="fps must be more than 0, not "):
                VecVideoRecorder(vec, tmp_path, bool, fps=fps)
        with pytest.raises(TypeError, match="video_folder must be a path, not 5"):
            VecVideoRecorder(vec, 5, bool)  # type: ignore[arg-type]


def test_as_gymnasium(vec: VecEnv) -> None:
    view: Any = as_gymnasium(vec)
    for seed in ("x", 1.5, np.array(5), [1.5, 2, 3]):
        for call in (view.reset, view.reset_async):
            with pytest.raises(TypeError, match="seed must be an int"):
                call(seed=seed)
    for call in (view.reset, view.reset_async):
        with pytest.raises(TypeError, match="options must be a mapping or None, not 5"):
            call(options=5)
    for name in (5, None, ""):
        for call in (view.call, view.get_attr, lambda name: view.set_attr(name, 1)):
            with pytest.raises(TypeError, match="name must be the name of an attribute"):
                call(name)
    view.reset_async()
    with pytest.raises(TypeError, match="timeout must be seconds or None, not 'a'"):
        view.reset_wait("a")
    assert view.reset_wait()[0].tolist() == [[0, 1, 0], [1, 1, 0], [2, 1, 0]]


def test_from_gymnasium() -> None:
    with from_gymnasium(gymnasium.vector.SyncVectorEnv(counting_fns(3))) as found:
        vec: Any = found
        vec.reset()
        vec.send([0] * 3)
        for number in ("2", 1.5, None):
            with pytest.raises(TypeError, match="min_envs must be an int, not "):
                vec.recv(number)
        with pytest.raises(TypeError, match="timeout must be seconds or None, not 'a'"):
            vec.recv(timeout="a")
        assert vec.recv(3).obs[:, 2].tolist() == [1] * 3
        for name in (5, None, ""):
            for call in (vec.get_attr, vec.has_attr, vec.env_method, vec.info_array):
                with pytest.raises(TypeError, match="name must be the name of an attribute"):
                    call(name)
        with pytest.raises(TypeError, match="function must be a function of an env"):
            vec.call(5, None)
        assert vec.step([0] * 3)[0][:, 2].tolist() == [2] * 3


def test_as_sb3(vec: VecEnv) -> None:
    view: Any = as_sb3(vec)
    for indices in (1.5, ["a"], "a", [True], object()):
        with pytest.raises(TypeError, match="indices must be an int, ints or None, not "):
            view.get_attr("tag", indices)
    assert view.get_attr("tag", (i for i in (-1, 0))) == [2, 0]


def test_as_pfrl() -> None:
    with DummyVecEnv(counting_fns(3), autoreset="disabled") as vec:
        view: Any = as_pfrl(vec)
        for mask in (5, "abc", True):
            with pytest.raises(TypeError, match="mask must be a list of bools, one per env, or None, not "):
                view.reset(mask)
