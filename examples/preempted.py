"""Train until a scheduler announces the end of the allocation, save, and go on from there the next time.

    python examples/preempted.py checkpoint.npz --backend subproc

Send it SIGUSR1 (Slurm: --signal=USR1@120) or SIGTERM. On MPI:

    python -m vecenvs.mpi -n 5 examples/preempted.py checkpoint.npz --backend mpi
"""

import argparse
import os
import signal

import numpy as np

from vecenvs import make_vec_env


def train(args: argparse.Namespace) -> None:
    """Step until a signal comes, then save what the next run needs."""
    told: list[int] = []
    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, lambda number, _: told.append(number))  # within a handler the VecEnv may be in a call
    steps, weights = 0, np.random.default_rng(args.seed).normal(size=(4, 2))
    if os.path.exists(args.checkpoint):
        with np.load(args.checkpoint) as saved:
            steps, weights = int(saved["steps"]), saved["weights"]
    print(f"begins at step {steps}", flush=True)
    seed = args.seed + steps  # not the episodes that it has seen
    with make_vec_env(args.env_id, num_envs=args.num_envs, seed=seed, backend=args.backend) as vec:
        obs = vec.reset()
        while steps < args.total_timesteps and not told:
            obs, rewards, _, _ = vec.step(np.argmax(obs @ weights, axis=1))
            steps += args.num_envs
            weights += 1e-6 * rewards.mean()  # here goes your update
        # The workers live as long as this process does: what the envs have can still be read.
        states = np.array([np.asarray(state, dtype=float) for state in vec.get_attr("state")])
        part = f"{args.checkpoint}.part.npz"
        np.savez(part, steps=steps, weights=weights, states=states)
        os.replace(part, args.checkpoint)  # a checkpoint is there as a whole, or not at all
    print(f"saved at step {steps}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", help="a file, which the next run goes on from")
    parser.add_argument("--env-id", default="CartPole-v1", help="an env with four numbers and two actions")
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--total-timesteps", type=int, default=20_000_000, help="env steps of all runs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", default="subproc")
    train(parser.parse_args())
