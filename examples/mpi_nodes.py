r"""A VecEnv on each node of an MPI job, with a process for each of the node's cores.

    python -m vecenvs.mpi -n 2 examples/mpi_nodes.py                            # on this machine
    python -m vecenvs.mpi -n 3 --mpirun-args="--host a:1,b:1,c:1" \
        examples/mpi_nodes.py --num-workers 2                                   # the learner on a, envs on b and c

Rank 0 runs this program. Each other rank hosts one SubprocVecEnv, which uses all cores of its node (or its share, where
several ranks are on one node), so a step is one message per node each way. See docs/mpi.md and docs/batched.md.

Needs: pip install ".[mpi]"
"""

from __future__ import annotations

import argparse
import time
from functools import partial

import gymnasium as gym

from vecenvs import Batched, MpiVecEnv, SubprocVecEnv
from vecenvs.vec_env import VecEnv


def make_node(env_id: str, num_envs: int) -> VecEnv:
    """Make the VecEnv of a node: a worker for each core that it may use."""
    return SubprocVecEnv([partial(gym.make, env_id)] * num_envs)


def main() -> None:
    """Step random actions, and print where the envs are and how fast they step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env-id", default="CartPole-v1")
    parser.add_argument("--num-envs", type=int, default=64, help="of each node")
    parser.add_argument("--num-workers", type=int, default=1, help="nodes with envs: the ranks besides rank 0")
    parser.add_argument("--total-timesteps", type=int, default=20_000, help="steps of all envs together")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    nodes = [Batched(partial(make_node, args.env_id, args.num_envs), args.num_envs)] * args.num_workers
    with MpiVecEnv(nodes, num_workers=args.num_workers, placement="spread") as env:
        for worker in env.stats()["workers"]:
            print(f"{args.num_envs} envs by rank {worker['rank']} on {worker['host']}", flush=True)
        env.reset(seed=args.seed)
        env.action_space.seed(args.seed)
        steps = episodes = 0
        start = time.perf_counter()
        while steps < args.total_timesteps:
            _, _, dones, _ = env.step([env.action_space.sample() for _ in range(env.num_envs)])
            steps += env.num_envs
            episodes += int(dones.sum())
        print(f"{steps} steps, {steps / (time.perf_counter() - start):.0f}/s: {episodes} episodes")


if __name__ == "__main__":
    main()
