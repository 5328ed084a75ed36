"""`vecenvs.evaluate` over wrappers, and what the suite on every engine (`vecenvs.testing.suite.evaluating`) leaves."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import vecenvs
from vecenvs import (
    DummyVecEnv,
    VecCheckNan,
    VecEnvError,
    VecEnvWrapper,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecVideoRecorder,
    evaluate,
)
from vecenvs.testing.envs import RenderingEnv, counting_fns
from vecenvs.testing.envs.teams import Teams
from vecenvs.testing.suite.evaluating import TaskEnv, bare, by_sign
from vecenvs.wrappers import load_results

MODES = ["same_step", "next_step", "async", "disabled"]


def by_sum(obs: Any) -> Any:
    """Return actions that depend on all numbers of each row alone."""
    return (np.abs(obs).sum(axis=tuple(range(1, obs.ndim))) * 7).astype(int) % 4


def wrapped(n: int, mode: str) -> Any:
    vec = VecFrameStack(VecNormalize(VecMonitor(DummyVecEnv([TaskEnv] * n, autoreset=mode))), 3)
    vec.venv.obs_rms.mean += 0.5
    vec.venv.ret_rms.var *= 9
    return vec


class Halving(VecEnvWrapper):
    """A wrapper as written for baselines."""

    def reset(self) -> Any:
        return self.venv.reset() / 2

    def step_wait(self) -> Any:
        obs, *rest = self.venv.step_wait()
        return (obs / 2, *rest)


@pytest.mark.parametrize("mode", MODES)
def test_wrappers_keep_no_memory_of_other_episodes(mode: str) -> None:
    """Frame stacks begin anew, statistics stay as they are, rewards too."""
    found = []
    for n in (1, 3, 7):
        with wrapped(n, mode) as vec:
            before = vec.venv.obs_rms.mean.copy(), vec.venv.obs_rms.count, vec.venv.ret_rms.count
            found.append(evaluate(vec, by_sum, 12, 5))
            after = vec.venv.obs_rms.mean, vec.venv.obs_rms.count, vec.venv.ret_rms.count
            assert repr(before) == repr(after)
            assert (vec.venv.training, vec.venv.norm_reward) == (True, True)
            vec.venv.training = False
            with pytest.raises(ZeroDivisionError):
                evaluate(vec, lambda obs: 1 // 0)
            assert (vec.venv.training, vec.venv.norm_reward) == (False, True)
    for other in found[1:]:
        np.testing.assert_array_equal(found[0].returns, other.returns)
        np.testing.assert_array_equal(found[0].lengths, other.lengths)
    assert found[0].lengths.std() > 0


def test_returns_without_a_monitor_are_not_normalized() -> None:
    with VecNormalize(DummyVecEnv([TaskEnv] * 2), norm_obs=False) as vec:
        np.testing.assert_array_equal(evaluate(vec, by_sign, 9, 5).returns, bare(TaskEnv(), 9, 5).returns)


def test_a_monitor_has_raw_returns(tmp_path: Path) -> None:
    with vecenvs.make_vec_env("CartPole-v1", num_envs=3, reward_scale=0.01, monitor_dir=tmp_path) as vec:
        found = evaluate(vec, lambda obs: np.ones(len(obs), int), 8)
    assert found.returns.tolist() == found.lengths.tolist()
    assert sorted(found.returns)[:8] == sorted(load_results(tmp_path).r)[:8]
    assert found.successes is None


def test_episodes_that_are_not_the_monitors() -> None:
    class Lives(gymnasium.Wrapper):
        def step(self, action: Any) -> Any:
            obs, reward, _, truncated, info = self.env.step(action)
            return obs, reward, True, truncated, info

    with vecenvs.make_vec_env("CartPole-v1", num_envs=2, wrapper_class=Lives) as vec:
        with pytest.raises(VecEnvError, match=r"not for its Monitor.*wrapper_kwargs=\{'episode_life': False\}"):
            evaluate(vec, lambda obs: np.ones(len(obs), int), 8)
        vec.reset()


@pytest.mark.parametrize("mode", MODES)
def test_copy_false(mode: str) -> None:
    with DummyVecEnv([TaskEnv] * 4, autoreset=mode, copy=False) as vec:
        np.testing.assert_array_equal(evaluate(vec, by_sign, 9, 5).returns, bare(TaskEnv(), 9, 5).returns)


def test_a_model_is_asked_by_predict() -> None:
    class Model:
        def predict(self, obs: Any, deterministic: bool = False) -> Any:
            assert deterministic is self.expected
            return by_sign(obs).astype(np.float32), None

    model: Any = Model()
    with DummyVecEnv([TaskEnv] * 2) as vec:
        for model.expected in (True, False):
            found = evaluate(vec, model, 5, 5, deterministic=model.expected)
            np.testing.assert_array_equal(found.returns, bare(TaskEnv(), 5, 5).returns)
        model.predict = lambda obs, deterministic: (by_sign(obs), "a state")
        with pytest.raises(ValueError, match="Model has a state.*policy\\(obs, indices, started\\)"):
            evaluate(vec, model)


def test_small_wrappers_and_a_video(tmp_path: Path) -> None:
    fns = [functools.partial(RenderingEnv, tag) for tag in range(2)]
    with DummyVecEnv(fns) as vec:
        recorder = VecVideoRecorder(VecCheckNan(vec), tmp_path, record_video_trigger=lambda t: t == 1, video_length=3)
        assert len(evaluate(recorder, lambda obs: [0] * len(obs), 3).lengths) == 3
        assert Path(recorder.video_path).stat().st_size


def test_what_it_cannot_take() -> None:
    halving = "Halving has a step_wait or reset of its own, but no recv"
    with DummyVecEnv(counting_fns(2)) as vec, pytest.raises(VecEnvError, match=halving):
        evaluate(Halving(vec), by_sign)
    with (
        vecenvs.make_multi_agent(functools.partial(Teams, dogs=0), 2) as team,
        pytest.raises(TypeError, match="agents of flat"),
    ):
        evaluate(team.flat(), by_sign)
