"""The rule behind backend="auto": by the launcher, the cores and the number of envs. Nothing is measured at run time.

The rule knows nothing of an env's cost: where the caller steps a share, it matters less whether steps are cheap.
docs/tuning.md has the measurements, and where the rule held or did not.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vecenvs.cpus import usable_cores

# Set by a launcher that knows MPI: the number of ranks of the job, and of those on this node.
_RANKS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_LOCAL_RANKS = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")


@dataclass(frozen=True)
class Choice:
    """An engine, the arguments that it is given besides the user's own, and the reason in a few words."""

    backend: str
    reason: str
    options: Mapping[str, Any] = field(default_factory=dict)


def choose(
    num_envs: int, *, num_workers: int | None = None, keep_caller_free: bool = False, own_processes: bool = False
) -> Choice:
    """Choose an engine for so many envs in this process.

    * "mpi" on the ranks of a job that mpirun has started, unless the program itself has begun to use MPI (SPMD);
    * "dummy" for one env, on one core, and in a daemonic process, which may not start others;
    * else "subproc", a worker per core, one of them the caller itself unless `keep_caller_free`.

    Never "ray", which has to be chosen. `num_workers` is what the user has asked for. `own_processes`: no two
    envs may share a process.
    """
    if _serves_by_mpi():
        return Choice("mpi", "mpirun has started ranks to serve")
    cores = max(1, usable_cores() // _local_ranks())
    if multiprocessing.current_process().daemon:
        return Choice("dummy", "a daemonic process may start no workers")
    if num_envs == 1:
        return Choice("dummy", "one env")
    if own_processes:
        return Choice("subproc", "each env needs a process")
    if num_workers is None and cores == 1:
        return Choice("dummy", "one core")
    workers = min(num_envs, cores) if num_workers is None else num_workers
    caller_steps = not keep_caller_free and workers > 1
    return Choice(
        "subproc",
        f"{num_envs} envs, {cores} cores",
        {"num_workers": workers, "caller_steps": caller_steps},
    )


def _serves_by_mpi() -> bool:
    """Tell whether other ranks of this job wait, or would wait, for VecEnvs of this one. Never imports mpi4py."""
    if max(map(_number, _RANKS)) < 2 or importlib.util.find_spec("mpi4py") is None:
        return False
    from vecenvs.backends.mpi.job import has_ranks  # a part of the package that most programs never need

    if has_ranks():
        return True
    mpi = sys.modules.get("mpi4py.MPI")
    return mpi is None or not mpi.Is_initialized()


def _local_ranks() -> int:
    return max(1, *map(_number, _LOCAL_RANKS))


def _number(variable: str) -> int:
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() else 1
