"""Make an MpiVecEnv whose workers connect to connecting.py ADDRESS PORT; print how they are reached, or why not."""

import sys

import numpy as np

from vecenvs.backends.mpi import MpiVecEnv
from vecenvs.errors import VecEnvError
from vecenvs.testing.envs import CountingEnv

if __name__ == "__main__":
    address, port = sys.argv[1:]
    try:
        vec = MpiVecEnv([CountingEnv] * 4, transport="messages", address=address, port=int(port))
    except VecEnvError as error:
        sys.exit(print(type(error).__name__, error, flush=True))
    with vec:
        vec.reset()
        vec.step(np.zeros(4, np.int64))
        print("transports", vec.stats()["transports"], vec.stats()["workers"], flush=True)
