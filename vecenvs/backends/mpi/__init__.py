"""Workers on the ranks of an MPI job, on one node or many."""

from vecenvs.backends.mpi.mpi_vec_env import MpiVecEnv

__all__ = ["MpiVecEnv"]
