"""Wrong arguments, then right ones; the worker ranks have no functions at all."""

from mpi4py import MPI

from vecenvs.backends.mpi import MpiVecEnv
from vecenvs.testing.envs import CountingEnv

if __name__ == "__main__":
    fns = [CountingEnv] * 4 if MPI.COMM_WORLD.rank == 0 else []
    try:
        MpiVecEnv(fns, autorest="async")
    except TypeError:
        print("told", flush=True)
    with MpiVecEnv(fns) as vec:
        print("shape", vec.reset().shape, flush=True)
