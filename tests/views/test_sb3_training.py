"""Stable-Baselines3's algorithms, wrappers and evaluation over `as_sb3`, beside the same over SB3's DummyVecEnv."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from stable_baselines3 import A2C, DDPG, DQN, PPO, SAC, TD3, HerReplayBuffer
from stable_baselines3.common.envs import BitFlippingEnv, IdentityEnv
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor as SB3Monitor
from stable_baselines3.common.vec_env import DummyVecEnv as SB3DummyVecEnv
from stable_baselines3.common.vec_env import (
    VecCheckNan,
    VecExtractDictObs,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecVideoRecorder,
)
from stable_baselines3.common.vec_env import VecEnv as SB3VecEnv

from vecenvs import wrappers
from vecenvs.backends.dummy import DummyVecEnv
from vecenvs.backends.subproc import SubprocVecEnv
from vecenvs.testing.compare import assert_same
from vecenvs.testing.envs import RenderingEnv
from vecenvs.views import as_sb3, from_gymnasium
from vecenvs.views.sb3 import SB3View
from vecenvs.wrappers.monitor import Monitor

matrix = "contract"
pytestmark = [pytest.mark.long, pytest.mark.timeout(180)]

EnvFns = list[Callable[[], Any]]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Keep torch on one core: the workers use the others, and sums are reproducible."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def view_of(configuration: Any) -> Iterator[Any]:
    """Make views of VecEnvs on the backend under test; close them."""
    made: list[SB3View] = []

    def make(env_fns: Any) -> SB3View:
        made.append(as_sb3(configuration.make_vec(env_fns)))
        return made[-1]

    yield make
    for view in made:
        view.close()


def gym_fns(env_id: str, n: int = 2, monitor: type = Monitor, **kwargs: Any) -> EnvFns:
    return [lambda: monitor(gymnasium.make(env_id, **kwargs)) for _ in range(n)]


def flipping_fns(n: int = 2, monitor: type = Monitor) -> EnvFns:
    return [lambda: monitor(BitFlippingEnv(n_bits=4, continuous=False, max_steps=6)) for _ in range(n)]


def off_policy(algorithm: Any, venv: SB3VecEnv, policy: str = "MlpPolicy", **kwargs: Any) -> Any:
    """Make a small learner that begins to learn early."""
    small = {"learning_starts": 40, "batch_size": 16, "policy_kwargs": {"net_arch": [16]}}
    return algorithm(policy, venv, seed=3, device="cpu", **small, **kwargs)


HER = {"replay_buffer_class": HerReplayBuffer, "replay_buffer_kwargs": {"n_sampled_goal": 2}}

ALGORITHMS: dict[str, tuple[Callable[[SB3VecEnv], Any], Callable[..., EnvFns], int]] = {
    "PPO": (
        lambda venv: PPO("MlpPolicy", venv, n_steps=32, batch_size=32, n_epochs=2, seed=3, device="cpu"),
        functools.partial(gym_fns, "CartPole-v1", max_episode_steps=25),
        256,
    ),
    "A2C": (
        lambda venv: A2C("MlpPolicy", venv, seed=3, device="cpu"),
        functools.partial(gym_fns, "CartPole-v1", max_episode_steps=25),
        200,
    ),
    "DQN": (
        functools.partial(off_policy, DQN),
        functools.partial(gym_fns, "CartPole-v1"),
        200,
    ),
    "SAC": (
        functools.partial(off_policy, SAC),
        functools.partial(gym_fns, "Pendulum-v1", max_episode_steps=20),
        100,
    ),
    "TD3": (
        functools.partial(off_policy, TD3),
        functools.partial(gym_fns, "Pendulum-v1", max_episode_steps=20),
        100,
    ),
    "DDPG": (
        functools.partial(off_policy, DDPG),
        functools.partial(gym_fns, "Pendulum-v1", max_episode_steps=20),
        100,
    ),
    "HER": (
        functools.partial(off_policy, DQN, policy="MultiInputPolicy", **HER),
        flipping_fns,
        150,
    ),
}


def train(make: Callable[[SB3VecEnv], Any], venv: SB3VecEnv, steps: int) -> tuple[list[Any], torch.Tensor]:
    """Return the learning curve, (return, length) of every episode, and all parameters of the policy."""
    model = make(venv)
    model.learn(steps)
    curve = [(episode["r"], episode["l"]) for episode in model.ep_info_buffer]
    return curve, torch.cat([parameter.detach().flatten() for parameter in model.policy.parameters()])


@functools.cache
def upstream(name: str) -> tuple[list[Any], torch.Tensor]:
    make, env_fns, steps = ALGORITHMS[name]
    return train(make, SB3DummyVecEnv(env_fns(monitor=SB3Monitor)), steps)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_same_seed_learns_the_same(view_of: Any, name: str) -> None:
    make, env_fns, steps = ALGORITHMS[name]
    curve, parameters = train(make, view_of(env_fns()), steps)
    their_curve, their_parameters = upstream(name)
    assert curve == their_curve
    assert len(curve) >= 4
    assert torch.equal(parameters, their_parameters)


def test_an_env_that_samples_from_its_action_space(view_of: Any) -> None:
    """SB3's seed is that of these samples, too."""
    learnt = []
    for _ in range(2):
        model = PPO("MlpPolicy", view_of([lambda: IdentityEnv(4)] * 2), n_steps=8, batch_size=16, seed=0, device="cpu")
        learnt.append(torch.cat([part.detach().flatten() for part in model.learn(48).policy.parameters()]))
    assert torch.equal(*learnt)


STACKS: dict[str, Callable[[SB3VecEnv], SB3VecEnv]] = {
    "VecNormalize": lambda venv: VecNormalize(venv, gamma=0.9),
    "VecFrameStack": lambda venv: VecFrameStack(venv, 3),
    "VecCheckNan": lambda venv: VecCheckNan(venv, raise_exception=True),
    "all": lambda venv: VecNormalize(VecFrameStack(VecCheckNan(venv), 2)),
}


@pytest.mark.parametrize("wrap", STACKS.values(), ids=STACKS.keys())
def test_sb3s_wrappers(view_of: Any, wrap: Callable[[SB3VecEnv], SB3VecEnv]) -> None:
    ours = wrap(view_of(gym_fns("Pendulum-v1", max_episode_steps=8)))
    theirs = wrap(SB3DummyVecEnv(gym_fns("Pendulum-v1", monitor=SB3Monitor, max_episode_steps=8)))
    ours.seed(1)
    theirs.seed(1)
    assert_same(ours.reset(), theirs.reset())
    for step in range(20):
        actions = np.sin(np.arange(2) + step).astype(np.float32)[:, None]
        rows, their_rows = ours.step(actions), theirs.step(actions)
        assert_same(rows[:3], their_rows[:3], f"step {step}")
        for info, their_info in zip(rows[3], their_rows[3], strict=True):
            assert_same(info.get("terminal_observation"), their_info.get("terminal_observation"))
            assert info.get("episode", {}).get("r") == their_info.get("episode", {}).get("r")


def test_vec_extract_dict_obs(view_of: Any) -> None:
    ours = VecExtractDictObs(view_of(flipping_fns()), "observation")
    assert ours.reset().shape == (2, 4)
    obs, _, _, _ = ours.step(np.zeros(2, np.int64))
    assert obs.shape == (2, 4)


def test_vec_monitor(view_of: Any, tmp_path: Path) -> None:
    fns: EnvFns = [lambda: gymnasium.make("CartPole-v1", max_episode_steps=5) for _ in range(2)]
    venv = VecMonitor(view_of(fns), str(tmp_path / "out"))
    venv.reset()
    infos = [venv.step(np.array([step % 2] * 2))[3] for step in range(5)]
    assert [info["episode"]["r"] for info in infos[-1]] == [5.0, 5.0]
    venv.close()
    assert '"env_id": "CartPole-v1"' in (tmp_path / "out.monitor.csv").read_text().splitlines()[0]


def test_sb3s_vec_monitor_sees_our_monitor(view_of: Any) -> None:
    view = view_of(gym_fns("CartPole-v1"))
    with pytest.warns(UserWarning, match="already wrapped with a `Monitor`"):
        VecMonitor(view)


def scaled(monitor: type) -> Callable[[], Any]:
    def make() -> Any:
        env = monitor(gymnasium.make("CartPole-v1", max_episode_steps=30))
        return gymnasium.wrappers.TransformReward(env, lambda reward: 0.01 * float(reward))

    return make


@pytest.mark.parametrize("monitor", [Monitor, SB3Monitor])
def test_evaluation_reports_raw_returns(view_of: Any, monitor: type) -> None:
    view = view_of([scaled(monitor)] * 2)
    assert view.env_is_wrapped(SB3Monitor) == [True, True]
    model = PPO("MlpPolicy", view, seed=0, device="cpu")
    view.seed(4)
    returns, lengths = evaluate_policy(model, view, n_eval_episodes=6, return_episode_rewards=True)
    theirs = SB3DummyVecEnv([scaled(SB3Monitor)] * 2)
    theirs.seed(4)
    assert (returns, lengths) == evaluate_policy(model, theirs, n_eval_episodes=6, return_episode_rewards=True)
    assert returns == lengths


def test_evaluation_reports_what_our_vec_monitor_recorded() -> None:
    """Returns are raw below a VecNormalize, as with SB3's own VecMonitor."""
    fns = [functools.partial(gymnasium.make, "Pendulum-v1", max_episode_steps=20)] * 2
    theirs = VecNormalize(VecMonitor(SB3DummyVecEnv(fns)))
    view = as_sb3(wrappers.VecNormalize(wrappers.VecMonitor(DummyVecEnv(fns))))
    model = PPO("MlpPolicy", view, seed=0, device="cpu")
    found = []
    for venv in (view, theirs):
        venv.seed(4)
        found.append(evaluate_policy(model, venv, n_eval_episodes=2, return_episode_rewards=True))
        venv.close()
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5)
    assert min(found[0][0]) < -50


def test_env_is_wrapped_answers_as_upstream(view_of: Any) -> None:
    fns: EnvFns = [*gym_fns("CartPole-v1", 1), lambda: gymnasium.make("CartPole-v1"), scaled(SB3Monitor)]
    view, theirs = view_of(fns), SB3DummyVecEnv(fns)
    for cls in (Monitor, gymnasium.Wrapper, gymnasium.wrappers.TimeLimit, gymnasium.wrappers.TransformReward):
        assert view.env_is_wrapped(cls) == theirs.env_is_wrapped(cls)
    assert theirs.env_is_wrapped(SB3Monitor) == [False, False, True]
    assert view.env_is_wrapped(SB3Monitor) == [True, False, True]
    assert view.env_is_wrapped(SB3Monitor, 1) == [False]


def test_workers_do_not_import_sb3() -> None:
    with SubprocVecEnv(gym_fns("CartPole-v1"), 1, "spawn") as vec:
        assert as_sb3(vec).env_is_wrapped(SB3Monitor) == [True, True]
        loaded = vec.call(lambda env: {"torch", "stable_baselines3"} & set(sys.modules), None)
    assert loaded == [set(), set()]


def test_an_env_without_monitor_is_warned_of() -> None:
    view = as_sb3(DummyVecEnv([lambda: gymnasium.make("CartPole-v1", max_episode_steps=5)]))
    model = PPO("MlpPolicy", view, device="cpu")
    with pytest.warns(UserWarning, match="not wrapped with a ``Monitor``"):
        evaluate_policy(model, view, n_eval_episodes=1)
    view.close()


def test_over_gymnasiums_vector_envs() -> None:
    """SB3 trains and evaluates over vector envs without access to single envs."""
    view = as_sb3(from_gymnasium(BatchedEnv()))
    assert view.render_mode is None
    assert view.get_attr("render_mode", [1, 0, 1]) == [None] * 3
    model = PPO("MlpPolicy", view, n_steps=8, batch_size=16, device="cpu").learn(16)
    with pytest.warns(UserWarning, match="not wrapped with a ``Monitor``"):
        assert len(evaluate_policy(model, view, n_eval_episodes=2, return_episode_rewards=True)[0]) == 2
    view.close()
    view = as_sb3(from_gymnasium(BatchedEnv()))
    view.reset()
    assert type(view.step([0, 0])[3]) is list
    with pytest.raises(AttributeError, match="gravity"):
        view.get_attr("gravity")
    assert view.get_attr("t") == [1, 1]
    view.close()


class BatchedEnv(VectorEnv[Any, Any, Any]):
    """A natively batched env: episodes of five steps."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012
    num_envs = 2
    single_observation_space = gymnasium.spaces.Box(0, 9, (1,), np.float32)
    single_action_space = gymnasium.spaces.Discrete(2)
    observation_space = gymnasium.vector.utils.batch_space(single_observation_space, 2)
    action_space = gymnasium.vector.utils.batch_space(single_action_space, 2)
    t = 0

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.t = 0
        return np.zeros((2, 1), np.float32), {}

    def step(self, actions: Any) -> Any:
        self.t = (self.t + 1) % 5
        over = np.full(2, self.t == 0)
        final = np.full((2, 1), 5, np.float32)
        infos = {"final_obs": final, "_final_obs": over} if over.any() else {}
        return np.full((2, 1), self.t, np.float32), np.ones(2), over, np.zeros(2, bool), infos


def test_vec_video_recorder(view_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clips: list[Any] = []

    class Clip:
        """A stand-in for moviepy's class, which gets the frames of the video."""

        def __init__(self, frames: list[Any], fps: int) -> None:
            clips.append((frames, fps))

        def write_videofile(self, path: str) -> None:
            Path(path).touch()

    names = ["moviepy", "moviepy.video", "moviepy.video.io", "moviepy.video.io.ImageSequenceClip"]
    for name in names:
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setattr(sys.modules[names[-1]], "ImageSequenceClip", Clip, raising=False)
    for venv in (view_of(rendering_fns()), SB3DummyVecEnv(rendering_fns())):
        recorder = VecVideoRecorder(venv, str(tmp_path), lambda step: step == 0, video_length=4)
        recorder.reset()
        for _ in range(5):
            recorder.step(np.zeros(3, np.int64))
        recorder.close()
    ours, theirs = clips
    assert_same(ours, theirs)
    assert len(ours[0]) == 5


def rendering_fns() -> EnvFns:
    return [functools.partial(RenderingEnv, tag) for tag in range(3)]


def test_a_saved_model_goes_on_over_a_view(view_of: Any, tmp_path: Path) -> None:
    model = PPO("MlpPolicy", view_of(gym_fns("CartPole-v1")), n_steps=16, batch_size=16, n_epochs=1, device="cpu")
    model.learn(32)
    model.save(tmp_path / "model")
    again = PPO.load(tmp_path / "model", env=view_of(gym_fns("CartPole-v1")), device="cpu")
    again.learn(32)
    assert again.num_timesteps == 32
