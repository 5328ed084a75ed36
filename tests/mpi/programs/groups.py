"""Two learners, each with the worker ranks of its own communicator."""

import functools

import gymnasium
import numpy as np
from mpi4py import MPI

from vecenvs.backends.mpi import MpiVecEnv

if __name__ == "__main__":
    group = MPI.COMM_WORLD.rank % 2
    comm = MPI.COMM_WORLD.Split(group)
    with MpiVecEnv([functools.partial(gymnasium.make, "CartPole-v1")] * 3, comm=comm) as vec:
        vec.reset(seed=0)
        vec.step(np.zeros(3, np.int64))
        print(f"group {group}: {vec.stats()['num_workers']} workers", flush=True)
