"""MPI: the helpers of SPMD programs, in which every rank is a learner with envs of its own.

The other way to use MPI, one learner with its envs on all ranks, is `MpiVecEnv`. `python -m vecenvs.mpi` starts either.
"""

from vecenvs.mpi.spmd import (
    Moments,
    RunningMeanStd,
    assert_synced,
    average_gradients,
    mean_of_dicts,
    moments,
    rank_seed,
    sync_from_root,
)

__all__ = [
    "Moments",
    "RunningMeanStd",
    "assert_synced",
    "average_gradients",
    "mean_of_dicts",
    "moments",
    "rank_seed",
    "sync_from_root",
]
