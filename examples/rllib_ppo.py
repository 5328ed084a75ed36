"""PPO of RLlib, whose env runner steps a VecEnv of this library.

RLlib's env runners step vector envs of Gymnasium. `as_gymnasium` makes one of any VecEnv, so the envs of a runner live
in processes, with restarts and time limits. Run: `python examples/rllib_ppo.py`.

Needs RLlib with its PyTorch. `ray[rllib]` asks for Gymnasium 1.2; without that pin it runs with a newer one, too:
`pip install ray torch dm-tree lz4 ormsgpack pyarrow scipy`.
"""

from __future__ import annotations

import argparse
from typing import Any

import gymnasium
import ray
from ray.rllib.algorithms.ppo import PPOConfig
from ray.tune.registry import register_env

from vecenvs import as_gymnasium, make_vec_env


def make_envs(config: dict[str, Any]) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
    """Return the envs of one runner. RLlib takes them to begin ended episodes with the next step."""
    vec = make_vec_env(
        config["env_id"],
        num_envs=config["num_envs"],
        backend="subproc",
        num_workers=2,
        seed=config["seed"],
        autoreset="next_step",
        on_failure="restart",
    )
    return as_gymnasium(vec)


def main(args: argparse.Namespace) -> None:
    """Train, and print the mean return after each iteration."""
    register_env("envs", make_envs)
    config = (
        PPOConfig()
        .environment("envs", env_config={"env_id": args.env_id, "seed": args.seed})
        .env_runners(
            num_env_runners=0,  # in this process; with more of them each has a VecEnv of its own
            num_envs_per_env_runner=args.num_envs,
            gym_env_vectorize_mode=gymnasium.VectorizeMode.VECTOR_ENTRY_POINT,
        )
        .training(train_batch_size=2000, minibatch_size=250, num_epochs=10, lr=1e-3)
        .learners(num_learners=0)
        .debugging(seed=args.seed, log_level="ERROR")
    )
    algorithm = config.build_algo()
    steps = 0
    while steps < args.total_timesteps:
        result = algorithm.train()["env_runners"]
        steps = int(result["num_env_steps_sampled_lifetime"])
        print(f"{steps} steps, mean return {result['episode_return_mean']:.1f}", flush=True)
    algorithm.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env-id", default="CartPole-v1")
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--total-timesteps", type=int, default=40_000)
    parser.add_argument("--seed", type=int, default=0)
    ray.init(include_dashboard=False, num_cpus=4)
    main(parser.parse_args())
    ray.shutdown()
