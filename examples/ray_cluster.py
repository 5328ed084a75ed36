"""Collect a rollout with envs on any Ray: a local one, or a cluster.

    python examples/ray_cluster.py                                                    # starts a local Ray
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
    """Step random actions, and print where the envs are and how fast they step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env-id", default="CartPole-v1")
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--num-workers", type=int, default=None, help="default: one per CPU of the cluster")
    parser.add_argument("--total-timesteps", type=int, default=10_000, help="steps of all envs together")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    with make_vec_env(
        args.env_id,
        num_envs=args.num_envs,
        seed=args.seed,
        backend="ray",
        num_workers=args.num_workers,
        on_failure="restart",  # a node that is lost costs only the current episodes of its envs
        step_timeout=60.0,
    ) as env:
        for node, workers in Counter(worker["node"][:8] for worker in env.stats()["workers"]).items():
            print(f"{workers} workers on node {node}", flush=True)
        env.reset()
        env.action_space.seed(args.seed)
        returns, steps = [], 0
        start = printed = time.perf_counter()
        while steps < args.total_timesteps:
            actions = [env.action_space.sample() for _ in range(env.num_envs)]
            _, _, _, infos = env.step(actions)
            steps += env.num_envs
            returns += [info["episode"]["r"] for info in infos if "episode" in info]
            now = time.perf_counter()
            if now > printed + 2.0 or steps >= args.total_timesteps:
                mean = np.mean(returns) if returns else float("nan")
                print(f"{steps} steps, {steps / (now - start):.0f}/s: {len(returns)} episodes, mean return {mean:.1f}")
                printed = now


if __name__ == "__main__":
    main()
