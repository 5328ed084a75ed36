"""VecExtractDictObs, VecTransposeImage and VecCheckNan: equal to SB3's, and the same on every path."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from conftest import sb3
from gymnasium import spaces
from vec_plays import DICT, IMAGE, MODES, SPACES, VECTOR, compare_with_sb3, env_fns, equal, rows_by_recv, rows_by_step

from vecenvs import DummyVecEnv, VecEnv
from vecenvs.testing.envs import counting_fns
from vecenvs.views import as_gymnasium, as_pfrl, as_sb3
from vecenvs.wrappers import (
    VecCheckNan,
    VecExtractDictObs,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecTransposeImage,
    VecVideoRecorder,
)

WRAPPERS: dict[str, Any] = {
    "VecCheckNan": VecCheckNan,
    "VecExtractDictObs": partial(VecExtractDictObs, key="x"),
    "VecFrameStack": partial(VecFrameStack, n_stack=2),
    "VecMonitor": VecMonitor,
    "VecNormalize": VecNormalize,
    "VecTransposeImage": VecTransposeImage,
    "VecVideoRecorder": partial(VecVideoRecorder, video_folder="films", record_video_trigger=bool),
}
VIEWS: dict[str, Any] = {"as_gymnasium": as_gymnasium, "as_pfrl": as_pfrl, "as_sb3": as_sb3}


@pytest.mark.parametrize("name", [*WRAPPERS, *VIEWS])
def test_what_is_no_vec_env(name: str) -> None:
    """Every wrapper and view raises an error that says what to do instead."""
    take = {**WRAPPERS, **VIEWS}[name]
    with DummyVecEnv(env_fns(VECTOR)) as vec:
        for view in (as_sb3(vec), as_gymnasium(vec)):
            with pytest.raises(
                TypeError, match=f"^{name} takes a VecEnv, not a view of one, as this .* put our wrappers"
            ):
                take(view)
    single, vector = gymnasium.make("CartPole-v1"), gymnasium.make_vec("CartPole-v1", 1)
    with pytest.raises(TypeError, match=f"^{name} takes a VecEnv, not {type(single).__name__}: make_vec_env makes"):
        take(single)
    with pytest.raises(TypeError, match=f"^{name} takes a VecEnv, not {type(vector).__name__}: from_gymnasium makes"):
        take(vector)
    with (
        contextlib.closing(sb3().DummyVecEnv([partial(gymnasium.make, "CartPole-v1")])) as theirs,
        pytest.raises(TypeError, match=f"^{name} takes a VecEnv, not Stable-Baselines3's DummyVecEnv: .* vecenvs."),
    ):
        take(theirs)


@pytest.mark.parametrize("key", ["image", "vector"])
def test_extract_as_sb3(key: str) -> None:
    compare_with_sb3(DICT, lambda vec: VecExtractDictObs(vec, key), lambda vec: sb3().VecExtractDictObs(vec, key))


@pytest.mark.parametrize("name", ["image", "dict"])
def test_transpose_as_sb3(name: str) -> None:
    compare_with_sb3(SPACES[name], VecTransposeImage, sb3().VecTransposeImage)
    compare_with_sb3(
        SPACES[name], lambda vec: VecTransposeImage(vec, skip=True), lambda vec: sb3().VecTransposeImage(vec, skip=True)
    )
    with VecTransposeImage(DummyVecEnv(env_fns(SPACES[name]))) as vec:
        theirs = sb3().VecTransposeImage(sb3().DummyVecEnv(env_fns(SPACES[name])))
        assert vec.observation_space == theirs.observation_space


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("play", [rows_by_step, rows_by_recv])
def test_extract_and_transpose_by_every_path(play: Any, mode: str) -> None:
    with DummyVecEnv(env_fns(DICT), autoreset=mode) as raw:
        plain = play(raw, 20)
    with VecTransposeImage(VecExtractDictObs(DummyVecEnv(env_fns(DICT), autoreset=mode), "image")) as vec:
        for rows, theirs in zip(plain, play(vec, 20), strict=True):
            for row, changed in zip(rows, theirs, strict=False):
                equal(changed[0], row[0]["image"].transpose(2, 0, 1))
                if "terminal_observation" in row[4]:
                    equal(
                        changed[4]["terminal_observation"], row[4]["terminal_observation"]["image"].transpose(2, 0, 1)
                    )


def test_what_they_refuse() -> None:
    with DummyVecEnv(env_fns(VECTOR)) as vec:
        for make, error in ((partial(VecExtractDictObs, key="x"), TypeError), (VecTransposeImage, ValueError)):
            with pytest.raises(error):
                make(vec)
    with DummyVecEnv(env_fns(SPACES["first"])) as vec, pytest.raises(ValueError, match="channels first already"):
        VecTransposeImage(vec)
    with DummyVecEnv(env_fns(DICT)) as vec, pytest.raises(KeyError, match="image, vector"):
        VecExtractDictObs(vec, "none")
    with DummyVecEnv(env_fns(spaces.Dict({"x": VECTOR}))) as vec, pytest.raises(ValueError, match="none of"):
        VecTransposeImage(vec)
    assert IMAGE.shape == (6, 5, 3)


@pytest.mark.parametrize(
    "wrap",
    [VecTransposeImage, VecNormalize, lambda vec: VecFrameStack(vec, 2)],
    ids=["transpose", "normalize", "stack"],
)
def test_keys_stay_in_their_order(wrap: Callable[[VecEnv], VecEnv]) -> None:
    with DummyVecEnv(env_fns(SPACES["unsorted"])) as vec:
        wrapped = wrap(vec)
        assert list(wrapped.observation_space) == list(wrapped.reset()) == list(vec.observation_space)
        assert list(VecFrameStack(wrapped, 2).reset()) == ["vector", "image"]


class Broken(gymnasium.Env):
    """Return given values, one per step; episodes have two steps."""

    observation_space = spaces.Dict({"x": spaces.Box(-np.inf, np.inf, (2,), np.float32), "n": spaces.Discrete(9)})
    action_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)

    def __init__(self, obs: dict[int, float], rewards: dict[int, float]) -> None:
        self.obs, self.rewards, self.steps, self.t = obs, rewards, 0, 0

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.t = 0
        return self._obs(self.obs.get(-1, 0.0)), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        self.t += 1
        return self._obs(self.obs.get(self.steps, 0.0)), self.rewards.get(self.steps, 0.0), self.t == 2, False, {}

    def _obs(self, value: float) -> Any:
        return {"x": np.array([0.0, value], np.float32), "n": 0}


def checked(obs: dict[int, float] | None = None, rewards: dict[int, float] | None = None, **kwargs: Any) -> VecCheckNan:
    fns = [partial(Broken, {}, {}), partial(Broken, obs or {}, rewards or {})]
    return VecCheckNan(DummyVecEnv(fns), **{"raise_exception": True, **kwargs})


ACTIONS = np.array([[0.5], [0.25]], np.float32)


def test_nan_in_actions_is_found_before_they_are_sent() -> None:
    with checked() as vec:
        vec.reset()
        for value, kind in ((np.nan, "nan"), (np.inf, "inf")):
            with pytest.raises(ValueError, match=f"{kind} in the action of env 1, which the agent gave"):
                vec.step(np.array([[0.0], [value]], np.float32))
            with pytest.raises(ValueError, match=f"{kind} in the action of env 1"):
                vec.send([np.array([value], np.float32)], [1])
        vec.step(ACTIONS)


@pytest.mark.parametrize(
    ("obs", "rewards", "message"),
    [
        ({1: np.nan}, {}, r"nan in the observation\['x'\] of env 1, after action .*0.25"),
        ({2: -np.inf}, {}, r"inf in the terminal_observation\['x'\] of env 1"),
        ({}, {1: np.nan}, "nan in the reward of env 1"),
        ({-1: np.nan}, {}, r"observation\['x'\] of env 1, at its reset"),
    ],
)
@pytest.mark.parametrize("path", ["step", "recv"])
def test_nan_from_an_env(obs: Any, rewards: Any, message: str, path: str) -> None:
    with checked(obs, rewards) as vec, pytest.raises(ValueError, match=message):
        play_twice(vec, path)


def play_twice(vec: VecCheckNan, path: str) -> None:
    vec.reset()
    for _ in range(2):
        if path == "step":
            vec.step(ACTIONS)
        else:
            vec.send(ACTIONS)
            vec.recv(2)


def test_the_action_named_is_the_one_that_was_given() -> None:
    """Not the contents of its array when the row comes."""
    with checked({1: np.nan}) as vec:
        vec.reset()
        actions = ACTIONS.copy()
        vec.step_async(actions)
        actions[:] = 7
        with pytest.raises(ValueError, match=r"after action .*0\.25"):
            vec.step_wait()


def test_warnings_once_or_each_time() -> None:
    nans = dict.fromkeys(range(1, 9), np.nan)
    with checked(nans, raise_exception=False) as vec, checked(nans, raise_exception=False, warn_once=False) as often:
        vec.reset()
        often.reset()
        with pytest.warns(UserWarning, match="env 1"):
            vec.step(ACTIONS)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            vec.step(ACTIONS)
        for _ in range(3):
            with pytest.warns(UserWarning, match="env 1"):
                often.step(ACTIONS)
    with checked({1: np.inf}, check_inf=False) as vec:
        vec.reset()
        vec.step(ACTIONS)


def test_integers_are_let_through() -> None:
    with VecCheckNan(DummyVecEnv(counting_fns(2)), raise_exception=True) as vec:
        vec.reset()
        vec.step([0, 1])


class OwnKeys(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Add to every info, as an env may, the keys by which a VecEnv describes rows."""

    def reset(self, **kwargs: Any) -> Any:
        obs, info = self.env.reset(**kwargs)
        return obs, {**info, "resetting": True}

    def step(self, action: Any) -> Any:
        *row, info = self.env.step(action)
        return *row, {
            **info,
            "terminal_observation": "own",
            "episode_start": 17.5,
            "resetting": True,
            "env_error": None,
        }


def own_keys(fn: Callable[[], Any]) -> Any:
    return OwnKeys(fn())


@pytest.mark.parametrize("mode", ["same_step", "next_step", "disabled"])
@pytest.mark.parametrize(
    ("space", "wrap"),
    [
        (VECTOR, VecCheckNan),
        (VECTOR, partial(VecFrameStack, n_stack=3)),
        (VECTOR, VecNormalize),
        (VECTOR, VecMonitor),
        (IMAGE, VecTransposeImage),
        (DICT, partial(VecExtractDictObs, key=next(iter(DICT.spaces)))),
    ],
)
def test_an_envs_own_keys_say_nothing_of_its_rows(mode: str, space: spaces.Space[Any], wrap: Any) -> None:
    with (
        wrap(DummyVecEnv(env_fns(space), autoreset=mode)) as plain,
        wrap(DummyVecEnv([partial(own_keys, fn) for fn in env_fns(space)], autoreset=mode)) as vec,
    ):
        equal(vec.reset(seed=1), plain.reset(seed=1))
        for _ in range(25):
            actions = [vec.action_space.sample() for _ in range(3)]
            got, wanted = vec.step(actions), plain.step(actions)
            for mine, other in zip(got[:3], wanted[:3], strict=True):
                equal(mine, other)
            for done, mine, other in zip(wanted[2], got[3], wanted[3], strict=True):
                if done:
                    equal(mine["terminal_observation"], other["terminal_observation"])
            if mode == "disabled" and wanted[2].any():
                equal(vec.reset(wanted[2]), plain.reset(wanted[2]))
