"""EnvPool on the nodes of a Ray: one EnvPool per node, with a thread for each CPU that its actor has.

    python examples/envpool_ray.py                                                            # starts a local Ray
    RAY_ADDRESS=10.0.0.5:6379 python examples/envpool_ray.py --num-workers 2 --num-cpus 16      # on a node of a cluster

On a cluster every node needs vecenvs and EnvPool; see docs/batched.md and docs/ray.md.

Needs: pip install ".[envpool,ray]"
"""

from __future__ import annotations

import argparse
import functools
import time
from collections import Counter
from typing import Any

import envpool
import numpy as np

from vecenvs import Batched, RayVecEnv, worker_cores


def make(env_id: str, num_envs: int, seed: int) -> Any:
    """Make an EnvPool in its actor, with a thread for each CPU there."""
    return envpool.make_gymnasium(env_id, num_envs=num_envs, seed=seed, num_threads=worker_cores())


def main() -> None:
    """Step random actions, and print where the envs are and how fast they step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env-id", default="CartPole-v1", help="one of EnvPool's")
    parser.add_argument("--num-envs", type=int, default=64, help="of each EnvPool")
    parser.add_argument(
        "--num-workers", type=int, default=1, help="EnvPools, each on a node of its own if there are enough"
    )
    parser.add_argument("--num-cpus", type=int, default=1, help="CPUs, and so threads, of each EnvPool")
    parser.add_argument("--total-timesteps", type=int, default=20_000, help="steps of all envs together")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    hosts = []
    for node in range(args.num_workers):  # EnvPool takes seeds where it is made: its env i gets seed + i
        seed = args.seed + node * args.num_envs
        hosts.append(Batched(functools.partial(make, args.env_id, args.num_envs, seed), args.num_envs))
    rng = np.random.default_rng(args.seed)
    with RayVecEnv(
        hosts,
        num_workers=args.num_workers,
        actor_options={"num_cpus": args.num_cpus},
        placement="spread",
        autoreset="next_step",  # as EnvPool does
    ) as env:
        for node, workers in Counter(worker["node"][:8] for worker in env.stats()["workers"]).items():
            print(f"{workers} EnvPools on node {node}", flush=True)
        env.reset()
        steps = episodes = 0
        start = time.perf_counter()
        while steps < args.total_timesteps:
            actions = rng.integers(env.action_space.n, size=env.num_envs)
            _, _, dones, _ = env.step(actions)
            steps += int(env.active.sum())  # rows of resets are no transitions
            episodes += int(dones.sum())
        print(f"{steps} steps, {steps / (time.perf_counter() - start):.0f}/s: {episodes} episodes")


if __name__ == "__main__":
    main()
