"""`python -m vecenvs evaluate`."""

from __future__ import annotations

import argparse
import json
import os
import pickle
import re
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from terminal import until_ctrl_c

import vecenvs
from vecenvs.__main__ import main
from vecenvs.bench import report
from vecenvs.cli._arguments import output
from vecenvs.cli._policies import function_policy, load_policy, statistics_in
from vecenvs.testing.envs import CountingEnv, FailingEnv, SampledEnv
from vecenvs.testing.suite.evaluating import TaskEnv, bare
from vecenvs.wrappers import VecNormalize


def always_right(obs: Any) -> Any:
    return np.ones(len(obs), np.int64)


def by_time(obs: Any, indices: Any, started: Any) -> Any:
    times[indices] = np.where(started, 0, times[indices] + 1)
    return times[indices] % 4


times = np.zeros(9, int)


def wrong(obs: Any) -> Any:
    return np.ones(99, np.int64)


class Choosing:
    """Has a policy as a method."""

    @staticmethod
    def left(obs: Any) -> Any:
        return np.zeros(len(obs), np.int64)


def played(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    """Run the command; return what its file of --json has."""
    assert main(["evaluate", *arguments, "--quiet", "--json", str(tmp_path / "found.json")]) == 0
    found: dict[str, Any] = json.loads((tmp_path / "found.json").read_text())
    return found


@pytest.mark.parametrize("policy", ["random", f"{__name__}:always_right"])
def test_the_number_of_envs_does_not_matter(policy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for n, backend in ((1, "dummy"), (5, "dummy"), (4, "subproc")):
        more = ["--num-envs", str(n), "--backend", backend, "--policy", policy, "--episodes", "7", "--seed", "3"]
        found.append(played(tmp_path, "CartPole-v1", *more))
        assert found[-1].pop("slots") == [0] * 7 or n > 1
    assert found[0] == found[1] == found[2]
    assert found[0]["seeds"] == [*range(3, 10)]
    lines = capsys.readouterr().out.splitlines()
    returns = np.array(found[0]["returns"])
    assert lines[0].startswith(f"7 episodes, seeds 3 to 9: return {returns.mean():.4g} +- ")
    assert f"({returns.min():.4g} to {returns.max():.4g}), length" in lines[0]
    assert lines[1] == f"episodes: {tmp_path / 'found.json'}"


def test_an_env_by_its_function_and_a_policy_with_a_state(tmp_path: Path) -> None:
    found = played(tmp_path, f"{__name__}:TaskEnv", "--policy", f"{__name__}:by_time", "--episodes", "9")
    expected = bare(TaskEnv(), 9, 1000, by_time=True)
    assert found["lengths"] == expected.lengths.tolist()
    assert found["successes"] == expected.successes.tolist()  # type: ignore[union-attr]


class CartPole(TaskEnv):
    """Has the name of one of Gymnasium's, without its version."""


def test_an_env_with_the_name_of_a_registered_one(tmp_path: Path) -> None:
    both = [played(tmp_path, f"{__name__}:{name}", "--episodes", "3") for name in ("CartPole", "TaskEnv")]
    assert both[0]["returns"] == both[1]["returns"]
    assert max(played(tmp_path, f"{__name__}:CartPole-v1", "--episodes", "3")["lengths"]) > 8


def test_a_file_that_cannot_be_written(capsys: pytest.CaptureFixture[str]) -> None:
    """It is said before the first episode."""
    for path in ("/proc/found.json", "/", "/missing/found.json"):
        with pytest.raises(SystemExit):
            main(["evaluate", "CartPole-v1", "--json", path])
        assert f"'{path}' cannot be written: " in capsys.readouterr().err


def test_files_of_other_kinds(tmp_path: Path) -> None:
    """A link stays one, and a pipe is not opened by the check."""
    link, target, fifo = tmp_path / "link.json", tmp_path / "target.json", tmp_path / "fifo.json"
    link.symlink_to(target)
    os.mkfifo(fifo)
    assert (output(str(link)), output(str(fifo))) == (link, fifo)
    assert link.is_symlink()
    assert not target.exists()
    report.write(link, {"a": 1})
    assert link.is_symlink()
    assert json.loads(target.read_text()) == {"a": 1}
    with pytest.raises(argparse.ArgumentTypeError, match="File name too long"):
        output(str(tmp_path / ("x" * 300)))


def test_games_of_atari_are_whole(tmp_path: Path) -> None:
    shorter = ["--env-kwargs", '{"max_num_frames_per_episode": 2000}', "--num-envs", "1", "--episodes", "1"]
    assert played(tmp_path, "ALE/Breakout-v5", *shorter)["lengths"][0] > 10
    assert main(["evaluate", "ALE/Breakout-v5", *shorter, "--quiet", "--wrapper-kwargs", '{"episode_life": true}']) == 1


def test_a_method_as_policy() -> None:
    assert function_policy(f"{__name__}:Choosing.left") is Choosing.left
    with pytest.raises(ValueError, match="has no 'Choosing.right'"):
        function_policy(f"{__name__}:Choosing.right")


def test_models_of_stable_baselines3(tmp_path: Path) -> None:
    import stable_baselines3 as sb3

    for name, env in (("PPO", "CartPole-v1"), ("A2C", "CartPole-v1"), ("DQN", "CartPole-v1"), ("SAC", "Pendulum-v1")):
        model = getattr(sb3, name)("MlpPolicy", env, seed=0)
        path = tmp_path / f"{name}.zip"
        model.save(path)
        with vecenvs.make_vec_env(env, num_env=2) as vec:
            loaded = load_policy(str(path), vec)
            obs = vec.reset(seed=0)
            expected = model.predict(obs, deterministic=True)[0]
            np.testing.assert_array_equal(loaded.predict(obs, deterministic=True)[0], expected)
    shorter = ["Pendulum-v1", "--policy", str(path), "--num-envs", "2", "--episodes", "2"]
    assert played(tmp_path, *shorter)["lengths"] == [200] * 2
    with vecenvs.make_vec_env("Pendulum-v1", num_env=1) as vec:
        VecNormalize(vec).save(tmp_path / "normal.npz")
    more = ["--normalize", str(tmp_path / "normal.npz"), "--stochastic", "--algo", "SAC"]
    assert min(played(tmp_path, *shorter, *more)["returns"]) < -200  # raw ones


def test_a_normalized_policy_on_raw_observations_is_told_sb3(tmp_path: Path) -> None:
    import stable_baselines3 as sb3

    with vecenvs.make_vec_env("Pendulum-v1", num_env=1) as vec:
        sb3.PPO("MlpPolicy", vecenvs.as_sb3(VecNormalize(vec)), seed=0).save(tmp_path / "model.zip")
        with pytest.warns(UserWarning, match="learned from observations in Box.*VecNormalize.*--normalize FILE"):
            load_policy(str(tmp_path / "model.zip"), vec)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("within", [False, True])
def test_images_that_sb3_transposes_are_as_learned(within: bool, tmp_path: Path) -> None:
    import stable_baselines3 as sb3

    image = spaces.Box(0, 255, (36, 40, 3), np.uint8)
    space = spaces.Dict({"image": image, "vector": spaces.Box(-1, 1, (2,), np.float64)}) if within else image
    with vecenvs.DummyVecEnv([partial(SampledEnv, space, spaces.Discrete(2))]) as vec:
        policy = "MultiInputPolicy" if within else "CnnPolicy"
        sb3.PPO(policy, vecenvs.as_sb3(vec), n_steps=2, batch_size=2, seed=0).save(tmp_path / "model.zip")
        load_policy(str(tmp_path / "model.zip"), vec)


def test_statistics_that_sb3_saved(tmp_path: Path) -> None:
    """They normalize as its own VecNormalize does."""
    from stable_baselines3.common.vec_env import VecNormalize as TheirNormalize

    for k, space in enumerate((TaskEnv, Goals)):
        with vecenvs.DummyVecEnv([space] * 2) as vec:
            theirs = TheirNormalize(vecenvs.as_sb3(vec), clip_obs=1.5)
            theirs.reset()
            for _ in range(30):
                theirs.step([0, 1])
            theirs.save(tmp_path / f"{k}.pkl")
            saved = statistics_in(tmp_path / f"{k}.pkl")
            assert saved is not None
            assert saved.dicts is (space is Goals)
            ours, obs = saved.applied(vec), vec.reset()
            np.testing.assert_equal(ours.normalize_obs(obs), theirs.normalize_obs(obs))  # type: ignore[attr-defined]
    found = [
        played(tmp_path, f"{__name__}:TaskEnv", "--policy", f"{__name__}:by_time", *more)
        for more in ([], ["--normalize", str(tmp_path / "0.pkl")])
    ]
    assert found[0]["returns"] == found[1]["returns"]  # of raw rewards, and the policy sees no observations


class Goals(gymnasium.Env):
    """An env with goal observations, as HER needs them, with unsorted keys; episodes have five steps."""

    _part = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    observation_space = gymnasium.spaces.Dict(observation=_part, achieved_goal=_part, desired_goal=_part)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return self._obs(), float(action), self.t == 5, False, {}

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        return -np.linalg.norm(achieved_goal - desired_goal, axis=-1)

    def _obs(self) -> Any:
        return {key: self.np_random.random(2).astype(np.float32) for key in self.observation_space}


def test_models_of_dict_observations(tmp_path: Path) -> None:
    import stable_baselines3 as sb3

    her: dict[str, Any] = {"replay_buffer_class": sb3.HerReplayBuffer, "buffer_size": 100}
    models: list[Any] = [
        sb3.PPO("MultiInputPolicy", Goals(), seed=0),
        sb3.DQN("MultiInputPolicy", Goals(), seed=0, **her, replay_buffer_kwargs={"n_sampled_goal": 2}),
    ]
    with vecenvs.DummyVecEnv([Goals] * 2) as vec:
        VecNormalize(vec, norm_obs_keys=["observation"]).save(tmp_path / "normal.npz")
        for k, model in enumerate(models):
            model.save(tmp_path / f"{k}.zip")
    shorter = [f"{__name__}:Goals", "--num-envs", "2", "--backend", "dummy", "--episodes", "4"]
    normalize = ["--normalize", str(tmp_path / "normal.npz")]
    for policy in ([], ["--policy", str(tmp_path / "0.zip")], ["--policy", str(tmp_path / "1.zip")]):
        for more in ([], normalize):
            assert played(tmp_path, *shorter, *policy, *more)["lengths"] == [5] * 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["NoSuchEnv-v0"], "NoSuchEnv"),
        (["CartPole-v1", "--episodes", "0"], "at least 1"),
        (["CartPole-v1", "--policy", "no"], "none of: random"),
        (["CartPole-v1", "--policy", "no_such_module:f"], "no_such_module"),
        (["CartPole-v1", "--policy", "os:no"], "has no 'no'"),
        (["CartPole-v1", "--policy", "os:name"], "not a class or function"),
        (["CartPole-v1", "--policy", f"{__name__}:wrong"], "policy: ValueError: actions"),
        (["CartPole-v1", "--policy", f"{__name__}:np.full"], "this function takes shape, fill_value"),
        (["CartPole-v1", "--policy", f"{__name__}:always_right", "--stochastic"], "a function chooses"),
        (["CartPole-v1", "--policy", "none.zip"], "none.zip"),
        (["CartPole-v1", "--policy", __file__ + ".zip"], ".zip"),
        (["CartPole-v1", "--normalize", __file__], "not a file that VecNormalize.save wrote"),
        (["CartPole-v1", "--normalize", "none.npz"], "none.npz"),
        (["CartPole-v1", "--normalize", "list.pkl"], "holds a list, not Stable-Baselines3's"),
        (["CartPole-v1", "--normalize", "cut.pkl"], "cannot be unpickled"),
        (["CartPole-v1", "--wrapper-kwargs", '{"episode_life": 0}'], "episode_life"),
    ],
)
def test_bad_input_is_one_line_and_2(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("list.pkl").write_bytes(pickle.dumps([1]))
    Path("cut.pkl").write_bytes(pickle.dumps([1])[:-4])
    try:
        code: object = main(["evaluate", "--quiet", "--num-envs", "2", "--backend", "dummy", *arguments])
    except SystemExit as error:
        code = error.code
    assert code == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert message in lines[0]


def failing() -> FailingEnv:
    return FailingEnv(0, at=7)


def test_an_env_that_raises_is_exit_code_1_with_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", f"{__name__}:failing", "--num-envs", "2", "--backend", "dummy", "--quiet"]) == 1
    err = capsys.readouterr().err
    assert "env 0 raised ToyError in step" in err
    assert "Traceback from where env 0 lives" in err


def test_lines_without_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("vecenvs.cli.evaluate._LINE_EVERY", 0.0)
    monkeypatch.setattr("vecenvs.cli.evaluate._SHOW_EVERY", 0.0)
    assert main(["evaluate", f"{__name__}:CountingEnv", "--episodes", "3", "--num-envs", "1"]) == 0
    assert capsys.readouterr().err.splitlines() == [f"{k} of 3 episodes, mean return 15" for k in (1, 2, 3)]
    assert CountingEnv().length == 5


def test_a_progress_bar_and_ctrl_c() -> None:
    """In a terminal: the bar moves, and Ctrl-C to the whole group ends it."""
    command = ["evaluate", "CartPole-v1", "--backend", "subproc", "--num-envs", "2", "--episodes", "10000000"]
    shown, out = until_ctrl_c(*command, word=b"mean return")
    assert re.search(rb"mean return \d", shown)
    assert b"/10000000" in shown
    assert out == b""
