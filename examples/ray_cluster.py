"""Collect a rollout with envs on whatever Ray there is: this laptop, or a cluster.

    python examples/ray_cluster.py                                                    # a Ray is started here
    RAY_ADDRESS=10.0.0.5:6379 python examples/ray_cluster.py --num-envs 64            # on a node of a cluster
    ray job submit --address http://127.0.0.1:8265 --working-dir . -- python examples/ray_cluster.py --num-envs 64

On a cluster every node needs vecenvs and the env's package; see docs/ray.md.

Needs: pip install ".[ray]"
"""

from __future__ import annotations

import argparse
import time
from collections import Counter

import numpy as np

from vecenvs import make_vec_env


def main() -> None:
    """Step random actions and tell where the envs were."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--num-workers", type=int, default=None, help="default: one per CPU of the cluster")
    parser.add_argument("--steps", type=int, default=500)
    args = parser.parse_args()

    with make_vec_env(
        args.env,
        num_env=args.num_envs,
        seed=0,
        backend="ray",
        num_workers=args.num_workers,
        on_failure="restart",  # a node that goes takes only its envs' current episodes with it
        step_timeout=60.0,
    ) as env:
        for node, workers in Counter(worker["node"][:8] for worker in env.stats()["workers"]).items():
            print(f"{workers} workers on node {node}")
        env.reset()
        returns = []
        begun = time.perf_counter()
        for _ in range(args.steps):
            actions = [env.action_space.sample() for _ in range(env.num_envs)]
            _, _, _, infos = env.step(actions)
            returns += [info["episode"]["r"] for info in infos if "episode" in info]
        seconds = time.perf_counter() - begun
        print(
            f"{args.steps * env.num_envs / seconds:.0f} steps/s, {len(returns)} episodes, mean {np.mean(returns):.1f}"
        )


if __name__ == "__main__":
    main()
