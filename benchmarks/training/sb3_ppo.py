"""Stable-Baselines3's PPO over a candidate, with the same rollouts and minibatches as our own."""

from __future__ import annotations

from typing import Any

from benchmarks.training.candidates import Driven
from benchmarks.training.grid import EPOCHS, MINIBATCHES
from benchmarks.training.phases import Phases, clock


def train(driven: Driven, rollout: int, seconds: float) -> tuple[int, Phases]:
    """Train for whole rollouts and updates, at least one; return the number of transitions and the times.

    A rollout that does not count comes first, without an update.
    """
    from stable_baselines3 import PPO

    venv = sb3_vec(driven.vec)
    length = max(1, rollout // venv.num_envs)
    rollout = length * venv.num_envs
    policy = "CnnPolicy" if len(venv.observation_space.shape) == 3 else "MlpPolicy"
    model = PPO(policy, venv, n_steps=length, batch_size=rollout // MINIBATCHES, n_epochs=EPOCHS, seed=0, device="cpu")
    update, forward, values, step = model.train, model.policy.forward, model.policy.predict_values, venv.step
    model.train = lambda: None
    model.learn(rollout)
    phases = Phases()
    model.train = phases.timed("update", update)
    model.policy.forward = phases.timed("inference", forward)
    model.policy.predict_values = phases.timed("inference", values)
    venv.step = phases.timed("step", step)
    made, begin = 0, clock()
    while not made or clock() - begin < seconds:
        model.learn(rollout, reset_num_timesteps=False)
        made += rollout
    phases.wall = clock() - begin
    return made, phases


def sb3_vec(vec: Any) -> Any:
    """Return the VecEnv as Stable-Baselines3's."""
    from stable_baselines3.common.vec_env import VecEnv

    if isinstance(vec, VecEnv):
        return vec
    from vecenvs.views import as_sb3

    return as_sb3(vec)
