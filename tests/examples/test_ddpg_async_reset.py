"""examples/ddpg_async_reset.py: it runs, and nothing but real transitions gets into its replay buffer."""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from vecenvs import VecEnv, make_vec_env

EXAMPLE = Path(__file__).parents[2] / "examples" / "ddpg_async_reset.py"


@pytest.fixture(scope="module")
def example() -> Any:
    import torch

    spec = importlib.util.spec_from_file_location("ddpg_async_reset", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    threads = torch.get_num_threads()
    yield module
    torch.set_num_threads(threads)  # the example wants one


class SlowReset(gym.Wrapper[Any, Any, Any, Any]):
    """So that steps pass while an env is being reset."""

    def reset(self, **kwargs: Any) -> Any:
        time.sleep(0.01)
        return self.env.reset(**kwargs)


def pendulums(backend: str, lengths: tuple[int, ...]) -> VecEnv:
    """Pendulums whose episodes last `lengths` steps, so that they end at different times."""
    fns = [lambda n=n: SlowReset(gym.make("Pendulum-v1", max_episode_steps=n)) for n in lengths]
    kwargs = {"num_workers": 2} if backend == "subproc" else {}
    return make_vec_env(fns, backend=backend, autoreset="async", **kwargs)


def swing(obs: Any, torque: Any) -> tuple[Any, Any]:
    """Return the next observation and the reward, by the documentation of Pendulum-v1."""
    angle, speed = np.arctan2(obs[:, 1], obs[:, 0]), obs[:, 2]
    reward = -(angle**2 + 0.1 * speed**2 + 0.001 * torque**2)
    speed = np.clip(speed + (15.0 * np.sin(angle) + 3.0 * torque) * 0.05, -8.0, 8.0)
    angle = angle + speed * 0.05
    return np.stack([np.cos(angle), np.sin(angle), speed], 1), reward


def collected(example: ModuleType, vec: VecEnv, steps: int) -> Any:
    rng = np.random.default_rng(0)
    noise = example.Noise(vec.num_envs, 1, rng)
    replay = example.ReplayBuffer(10_000, 3, 1)
    collector = example.Collector(vec, lambda obs: rng.uniform(-1, 1, (len(obs), 1)), noise, replay, seed=0)
    count = sum(collector.step() for _ in range(steps))
    assert count == len(replay) == replay.added
    return replay


@pytest.mark.parametrize("backend", ["dummy", "subproc"])
def test_the_buffer_holds_transitions_alone(example: ModuleType, backend: str) -> None:
    with pendulums(backend, (3, 5, 7)) as vec:
        replay = collected(example, vec, 300)
        assert vec.active.dtype == bool
    n = len(replay)
    assert 100 < n < 900  # some rows were none
    next_obs, rewards = swing(replay.obs[:n], 2.0 * replay.actions[:n, 0])
    np.testing.assert_allclose(replay.next_obs[:n], next_obs, atol=1e-4)
    np.testing.assert_allclose(replay.rewards[:n], rewards, atol=1e-3)
    assert not replay.ended[:n].any()  # Pendulum only ever runs into its time limit


def test_noise_begins_anew_with_each_episode(example: ModuleType) -> None:
    with pendulums("dummy", (3, 4)) as vec:
        noise = example.Noise(2, 1, np.random.default_rng(0))
        collector = example.Collector(
            vec, lambda obs: np.zeros((len(obs), 1)), noise, example.ReplayBuffer(1000, 3, 1), seed=0
        )
        begun = 0
        step = vec.step

        def watched(actions: Any) -> Any:
            nonlocal begun
            result = step(actions)
            begun += sum("episode_start" in info for info in result[3])
            return result

        vec.step = watched  # type: ignore[method-assign]
        restarted = 0
        for _ in range(60):
            collector.step()
            restarted += int((noise.state == 0.0).sum())
        assert restarted == begun > 5


def test_the_replay_buffer_wraps_around(example: ModuleType) -> None:
    replay = example.ReplayBuffer(4, 1, 1)
    for first in (0, 3):
        rows = np.arange(first, first + 3, dtype=np.float32)
        replay.add(rows[:, None], rows[:, None], rows, rows[:, None] + 1, np.zeros(3))
    assert (len(replay), replay.added) == (4, 6)
    assert replay.rewards.tolist() == [4.0, 5.0, 2.0, 3.0]
    assert replay.next_obs[:, 0].tolist() == [5.0, 6.0, 3.0, 4.0]


@pytest.mark.long
@pytest.mark.timeout(180)
def test_it_runs_and_draws_its_curve(example: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "curve.png"
    small = [
        "--num-envs",
        "3",
        "--total-timesteps",
        "240",
        "--learning-starts",
        "90",
        "--eval-frequency",
        "120",
        "--hidden-size",
        "8",
    ]
    mean = example.main([*small, "--num-eval-envs", "2", "--plot", str(path)])
    assert -2000.0 < mean < 0.0
    assert path.read_bytes().startswith(b"\x89PNG")
    assert f"last 20 evaluation episodes: {mean:.1f}" in capsys.readouterr().out
