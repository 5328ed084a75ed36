"""Inside one rank: SubprocVecEnv by every start method, and envs that import mpi4py; MPI still works afterwards."""

import warnings

import gymnasium
from mpi4py import MPI

from vecenvs import SubprocVecEnv
from vecenvs.backends.mpi import MpiVecEnv


def make():
    from mpi4py import MPI  # noqa: F401  what an env of some simulator does

    return gymnasium.make("CartPole-v1")


if __name__ == "__main__":
    world = MPI.COMM_WORLD
    for method in ("forkserver", "spawn"):
        with SubprocVecEnv([make] * 2, num_workers=2, start_method=method) as vec:
            vec.reset(seed=0)
            vec.step([0, 1])
        assert world.allreduce(1) == world.size
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from Python 3.12 on a fork of a process with threads (MPI's) warns
        vec = SubprocVecEnv([lambda: gymnasium.make("CartPole-v1")] * 2, num_workers=2, start_method="fork")
    vec.reset(seed=0)
    vec.close()
    assert world.allreduce(1) == world.size
    with MpiVecEnv([make] * 3) as vec:
        vec.reset(seed=0)
        vec.step([0, 1, 0])
    print("neighbours live", flush=True)
