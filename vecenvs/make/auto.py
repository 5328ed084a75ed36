"""The rule of make_vec_env where no backend is named: by the launcher, the cores, the number of envs and their cost.

Nothing is measured at run time. Of an env's cost the rule knows only whether it is one of Gymnasium's simplest: where
the caller steps a share, the cost matters less. docs/tuning.md has measurements, and where the rule held or did not.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gymnasium.envs.registration import EnvSpec

from vecenvs.arguments import arguments_of, parse_int
from vecenvs.backends import backend_class
from vecenvs.cpus import worker_cores

# Set by launchers: the number of MPI ranks of the job, and of the ranks on this node, torchrun's too.
_RANKS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_LOCAL_RANKS = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "LOCAL_WORLD_SIZE")

# Up to this many envs whose steps take some 10 us are stepped in process: a worker that sleeps beside a learner takes
# about as long to wake up as all of them together.
_FEW = 16
_CHEAP = ("gymnasium.envs.classic_control", "gymnasium.envs.toy_text")


@dataclass(frozen=True)
class Choice:
    """An engine, the arguments that it is given besides the user's own, and the reason in a few words."""

    backend: str
    reason: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def told(self) -> str:
        """The engine and the arguments, as text."""
        return ", ".join([self.backend, *(f"{name}={value}" for name, value in self.options.items())])


def choose(
    num_envs: int,
    *,
    num_workers: int | None = None,
    keep_caller_free: bool = False,
    in_workers: bool = False,
    own_processes: bool = False,
    cheap: bool = False,
    ranks: bool = True,
) -> Choice:
    """Choose an engine for so many envs in this process. Never "ray", which has to be chosen.

    * "mpi" on the ranks of a job that mpirun has started, unless the program itself has begun to use MPI (SPMD);
    * "dummy" in a daemonic process, which may not start others, and unless all are to live `in_workers` for one env,
      for a few `cheap` ones and on one core;
    * else "subproc", a worker per core, one of them the caller itself unless `keep_caller_free`.

    `num_workers` is what the user has asked for, if anything; there are at most `num_envs`. With `keep_caller_free` the
    caller may step no share, with `own_processes` no two envs may share a process; a step of `cheap` envs takes some
    10 us; with `ranks` "mpi" may be chosen.
    """
    if num_workers is not None:
        num_workers = min(num_envs, parse_int("num_workers", num_workers, 1))
    if ranks and _serves_by_mpi():
        return Choice("mpi", "mpirun has started ranks to serve")
    cores = max(1, worker_cores() // _local_ranks())
    if multiprocessing.current_process().daemon:
        return Choice("dummy", "a daemonic process may start no workers")
    if num_envs == 1 and not in_workers:
        return Choice("dummy", "one env")
    if own_processes:
        return Choice("subproc", "each env needs a process")
    keep_caller_free = keep_caller_free or in_workers
    if num_workers is None and cores == 1 and not in_workers:
        return Choice("dummy", "one core")
    if num_workers is None and not keep_caller_free and cheap and num_envs <= _FEW:
        return Choice("dummy", "few and cheap envs")
    workers = num_workers or min(num_envs, cores)
    caller_steps = not keep_caller_free and workers > 1
    return Choice(
        "subproc",
        f"{num_envs} envs, {cores} cores",
        {"num_workers": workers, "caller_steps": caller_steps},
    )


def workers_for(num_workers: int | None, num_envs: int, backend: str | None, common: Mapping[str, Any]) -> int | None:
    """Return the number of workers that the user has asked for, or that `recycle` needs: one for each env."""
    recycled = common.get("recycle") is not None and backend != "dummy"
    return num_envs if num_workers is None and recycled else num_workers


def needs_workers(common: Mapping[str, Any]) -> bool:
    """Tell whether these arguments have no effect on envs that the caller steps."""
    names = ("step_timeout", "reset_timeout", "log_dir", "concurrency", "recycle")
    return common.get("on_failure") == "restart" or any(common.get(name) for name in names)


def has_processes_alone(kwargs: Mapping[str, Any]) -> bool:
    """Tell whether some of these arguments are none of the engine in process."""
    return bool(kwargs.keys() - arguments_of(backend_class("dummy")).keys())


def is_cheap(spec: EnvSpec) -> bool:
    """Tell whether a step of this env is known to take some 10 us: Gymnasium's classic control and toy text."""
    entry = spec.entry_point
    return isinstance(entry, str) and entry.startswith(_CHEAP) and spec.kwargs.get("render_mode") is None


def _serves_by_mpi() -> bool:
    """Tell whether other ranks of this job wait, or would wait, for VecEnvs of this one. Never imports mpi4py."""
    job: Any = sys.modules.get("vecenvs.backends.mpi.job")
    if job is not None and job.has_ranks():  # whatever has started them
        return True
    if max(map(_number, _RANKS)) < 2 or importlib.util.find_spec("mpi4py") is None:
        return False
    mpi = sys.modules.get("mpi4py.MPI")
    return mpi is None or not mpi.Is_initialized()


def _local_ranks() -> int:
    return max(1, *map(_number, _LOCAL_RANKS))


def _number(variable: str) -> int:
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() else 1
