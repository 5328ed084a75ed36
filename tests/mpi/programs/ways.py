"""Make an MpiVecEnv whose workers may connect to the address ways.py ADDRESS; tell how they are reached."""

import sys
import warnings

import numpy as np

from vecenvs.backends.mpi import MpiVecEnv
from vecenvs.testing.envs import CountingEnv

if __name__ == "__main__":
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        vec = MpiVecEnv([CountingEnv] * 4, transport="messages", address=sys.argv[1])
    vec.reset()
    vec.step(np.zeros(4, np.int64))
    print("ways", vec.stats()["transports"], vec.stats()["workers"], flush=True)
    for warning in caught:
        print(warning.category.__name__, warning.message, flush=True)
    vec.close()
