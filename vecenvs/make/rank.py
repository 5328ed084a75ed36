"""Which of the processes of one launch this is: its seeds and its monitor files are its own."""

from __future__ import annotations

import os
import sys

_MPI_RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")  # set by MPI's launchers


def spmd_rank() -> int:
    """Return this process's rank in MPI.COMM_WORLD, or else from a launcher, or 0. Does not import mpi4py."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is None or not mpi.Is_initialized():  # the script may still do that
        ranks = (os.environ.get(name, "") for name in _rank_variables())
        return next((int(rank) for rank in ranks if rank.isdecimal()), 0)
    return 0 if mpi.Is_finalized() else int(mpi.COMM_WORLD.Get_rank())


def _rank_variables() -> list[str]:
    """Return the variables that tell this process's rank among those of one launch: torchrun's, MPI's or srun's."""
    torchrun = ["RANK"] if "TORCHELASTIC_RUN_ID" in os.environ else []  # first: srun may have started each torchrun
    tasks = os.environ.get("SLURM_NTASKS", "")
    return [*torchrun, *_MPI_RANKS, *(["SLURM_PROCID"] if tasks.isdecimal() and int(tasks) > 1 else [])]
