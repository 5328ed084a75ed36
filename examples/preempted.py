"""Train until a scheduler announces the end of the allocation, save, and go on from there the next time.

    python examples/preempted.py checkpoint.npz [BACKEND]

Send it SIGUSR1 (Slurm: --signal=USR1@120) or SIGTERM. On MPI: python -m vecenvs.mpi -n 5 examples/preempted.py FILE mpi
"""

import os
import signal
import sys

import numpy as np

from vecenvs import make_vec_env

NUM_ENVS = 8
END = 20_000_000  # env steps in all


def train(path: str, backend: str) -> None:
    """Step until a signal comes, then save what the next run needs."""
    told: list[int] = []
    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, lambda number, _: told.append(number))  # within a handler the VecEnv may be in a call
    steps, weights = 0, np.random.default_rng(0).normal(size=(4, 2))
    if os.path.exists(path):
        with np.load(path) as saved:
            steps, weights = int(saved["steps"]), saved["weights"]
    print(f"begins at step {steps}", flush=True)
    with make_vec_env("CartPole-v1", num_envs=NUM_ENVS, seed=steps, backend=backend) as vec:
        obs = vec.reset()
        while steps < END and not told:
            obs, rewards, _, _ = vec.step(np.argmax(obs @ weights, axis=1))
            steps += NUM_ENVS
            weights += 1e-6 * rewards.mean()  # here goes your update
        # The workers live as long as this process does: what the envs have can still be read.
        states = np.array([np.asarray(state, dtype=float) for state in vec.get_attr("state")])
        np.savez(f"{path}.part.npz", steps=steps, weights=weights, states=states)
        os.replace(f"{path}.part.npz", path)  # a checkpoint is there as a whole, or not at all
    print(f"saved at step {steps}", flush=True)


if __name__ == "__main__":
    train(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "subproc")
