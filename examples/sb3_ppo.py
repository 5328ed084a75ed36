"""Train Stable-Baselines3's PPO on CartPole over worker processes, then evaluate it.

    python examples/sb3_ppo.py                        # 100 000 steps, a minute or two; ends at the full score
    python examples/sb3_ppo.py --backend dummy        # the same result, in one process
    python examples/sb3_ppo.py --upstream             # the same result, over SB3's own DummyVecEnv

Needs: pip install ".[sb3]"
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv

from vecenvs import make_vec_env
from vecenvs.views import as_sb3


def make_venv(args: argparse.Namespace, num_envs: int) -> Any:
    """Make a vectorised env for SB3: the one line in which vecenvs comes in."""
    if args.upstream:
        return DummyVecEnv([lambda: Monitor(gym.make(args.env)) for _ in range(num_envs)])
    return as_sb3(make_vec_env(args.env, num_env=num_envs, backend=args.backend))


def linear(start: float) -> Any:
    """A rate that falls to zero as training goes on."""
    return lambda left: start * left


def main(argv: Sequence[str] | None = None) -> float:
    """Train; give the mean return of the evaluation episodes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--backend", default="subproc")
    parser.add_argument("--upstream", action="store_true", help="use Stable-Baselines3's own DummyVecEnv")
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--steps", type=int, default=100_000)
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
            learning_rate=linear(1e-3),
            clip_range=linear(0.2),
            seed=args.seed,
            device="cpu",
        )
        model.learn(args.steps)
        evaluation_venv.seed(args.seed + 1000)
        mean, deviation = evaluate_policy(model, evaluation_venv, n_eval_episodes=20)
    finally:
        venv.close()
        evaluation_venv.close()
    print(f"{args.env} after {model.num_timesteps} steps: mean return {mean:.1f}, standard deviation {deviation:.1f}")
    return float(mean)


if __name__ == "__main__":
    main()
