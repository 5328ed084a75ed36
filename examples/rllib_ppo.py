"""PPO of RLlib, whose env runner steps a VecEnv of this library.

RLlib's env runners step vector envs of Gymnasium. `as_gymnasium` makes one of any VecEnv, so the envs of a runner live
in processes, with restarts and time limits. Run: `python examples/rllib_ppo.py --iterations 20`.

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
        "CartPole-v1",
        num_envs=config["num_envs"],
        backend="subproc",
        num_workers=2,
        autoreset="next_step",
        on_failure="restart",
    )
    return as_gymnasium(vec)


def main(iterations: int) -> float:
    """Train; return the mean return of the last iteration."""
    register_env("cartpoles", make_envs)
    config = (
        PPOConfig()
        .environment("cartpoles")
        .env_runners(
            num_env_runners=0,  # in this process; with more of them each has VecEnvs of its own
            num_envs_per_env_runner=8,
            gym_env_vectorize_mode=gymnasium.VectorizeMode.VECTOR_ENTRY_POINT,
        )
        .training(train_batch_size=2000, minibatch_size=250, num_epochs=10, lr=1e-3)
        .learners(num_learners=0)
        .debugging(seed=0, log_level="ERROR")
    )
    algorithm = config.build_algo()
    mean = float("nan")
    for iteration in range(iterations):
        mean = algorithm.train()["env_runners"]["episode_return_mean"]
        print(f"iteration {iteration}: mean return {mean:.1f}")
    algorithm.stop()
    return mean


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--iterations", type=int, default=20)
    ray.init(include_dashboard=False, num_cpus=4)
    main(parser.parse_args().iterations)
    ray.shutdown()
