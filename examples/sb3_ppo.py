"""Train Stable-Baselines3's PPO on CartPole over worker processes, then evaluate it.

    python examples/sb3_ppo.py                        # 100 000 steps, a minute or two, to the full score
    python examples/sb3_ppo.py --backend dummy        # the same result, in one process
    python examples/sb3_ppo.py --backend sb3          # the same result, over SB3's own DummyVecEnv

Needs: pip install ".[sb3]"
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv

from vecenvs import as_sb3, make_vec_env


def make_venv(args: argparse.Namespace, num_envs: int) -> Any:
    """Make a vectorised env for SB3. Its last line is the only one with vecenvs."""
    if args.backend == "sb3":
        return DummyVecEnv([lambda: Monitor(gym.make(args.env_id)) for _ in range(num_envs)])
    return as_sb3(make_vec_env(args.env_id, num_envs=num_envs, backend=args.backend))


class Progress(BaseCallback):
    """Print the mean return of the last episodes every `every` steps."""

    def __init__(self, every: int) -> None:
        super().__init__()
        self.every, self.printed = every, 0

    def _on_step(self) -> bool:
        if self.num_timesteps >= self.printed + self.every:
            self.printed = self.num_timesteps
            returns = [episode["r"] for episode in self.model.ep_info_buffer]
            mean = sum(returns) / len(returns) if returns else float("nan")
            print(f"step {self.num_timesteps}: mean return {mean:.1f}", flush=True)
        return True


def linear(start: float) -> Any:
    """Return a schedule that falls from `start` to zero."""
    return lambda left: start * left


def main(argv: Sequence[str] | None = None) -> float:
    """Train; return the mean return of the evaluation episodes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env-id", default="CartPole-v1")
    parser.add_argument("--backend", default="subproc", help="dummy, subproc, ..., or sb3 for its own DummyVecEnv")
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--total-timesteps", type=int, default=100_000)
    parser.add_argument("--learning-rate", type=float, default=1e-3, help="at the start; it falls to zero")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(argv)

    venv, evaluation_venv = make_venv(args, args.num_envs), make_venv(args, 4)
    try:
        model = PPO(
            "MlpPolicy",
            venv,
            n_steps=32,
            batch_size=32 * args.num_envs,
            n_epochs=20,
            gamma=0.98,
            gae_lambda=0.8,
            learning_rate=linear(args.learning_rate),
            clip_range=linear(0.2),
            seed=args.seed,
            device="cpu",
        )
        model.learn(args.total_timesteps, callback=Progress(every=5_000))
        evaluation_venv.seed(args.seed + 1000)
        mean, deviation = evaluate_policy(model, evaluation_venv, n_eval_episodes=20)
    finally:
        venv.close()
        evaluation_venv.close()
    print(
        f"{args.env_id} after {model.num_timesteps} steps: mean return {mean:.1f}, standard deviation {deviation:.1f}"
    )
    return float(mean)


if __name__ == "__main__":
    main()
