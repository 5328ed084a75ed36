"""The contestants: each library at the setting that its documentation recommends for speed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from benchmarks.peers import libraries
from benchmarks.peers.grid import Cell
from benchmarks.peers.steppers import Job
from vecenvs.bench.contest import Stepper
from vecenvs.bench.workloads import BadRequest

OURS = "vecenvs"


@dataclass(frozen=True)
class Contestant:
    """A library's vectorised env in one setting.

    `family` names the process in which it takes its turns, apart from other libraries. `most` is its largest number of
    envs; with a process per env, more take minutes to start. `slow`: it takes long to start, so only the cells for
    everyone have it, in their first rounds. `where`: the cells in which it makes sense. `python`: it steps the same
    Python envs as the others and returns their rows; otherwise it is there for scale and compared with nothing.
    """

    name: str
    library: str
    family: str
    setting: str
    build: Callable[[Job], Stepper]
    most: int = 1024
    slow: bool = False
    python: bool = True
    where: Callable[[Cell], bool] = lambda cell: True

    def takes(self, cell: Cell) -> bool:
        """Return whether it takes part in this cell."""
        return cell.num_envs <= self.most and (cell.everyone or not self.slow) and self.where(cell)


@dataclass(frozen=True)
class Entrant:
    """A contestant with its job: what `vecenvs.bench.contest` lets take turns."""

    contestant: Contestant
    job: Job

    @property
    def name(self) -> str:
        return self.contestant.name

    def make(self, num_envs: int) -> Stepper:
        return self.contestant.build(self.job)


def _with_learner(cell: Cell) -> bool:
    return cell.learner


def _rows_count(cell: Cell) -> bool:
    return cell.relative


def _no_attr(cell: Cell) -> bool:
    return not cell.attr


def _ours(setting: str, text: str, family: str = "ours", **options: bool | Callable[[Cell], bool]) -> Contestant:
    build = partial(libraries.ours, setting=setting)
    return Contestant(setting, OURS, family, text, build, **options)  # type: ignore[arg-type]


def _tianshou(cls: str, text: str, **options: int | bool) -> Contestant:
    build = partial(libraries.tianshou, cls=cls)
    family = "ray" if cls == "RayVectorEnv" else "tianshou"
    return Contestant(f"tianshou {cls}", "tianshou", family, text, build, **options)  # type: ignore[arg-type]


def _puffer(version: str, family: str, distribution: str) -> list[Contestant]:
    def contestant(name: str, workers: str, text: str) -> Contestant:
        build = partial(libraries.pufferlib, workers=workers, distribution=distribution)
        return Contestant(f"{version} {name}", "pufferlib", family, text, build, where=_no_attr)

    halves = partial(libraries.pufferlib_in_part, workers="cores", distribution=distribution)
    return [
        contestant("Serial", "serial", "vector.Serial; its arrays are its own, valid until the next step"),
        contestant("Multiprocessing, 1 worker", "one", "num_workers=1; arrays as above"),
        contestant("Multiprocessing, a worker per core", "cores", "num_workers=cores; arrays as above"),
        Contestant(
            f"{version} Multiprocessing, halves",
            "pufferlib",
            family,
            "num_workers=cores, batch_size=n/2",
            halves,
            where=_with_learner,
        ),
    ]


BOUND = "bare loops in lock-step"

CONTESTANTS: Sequence[Contestant] = [
    _ours("dummy", "DummyVecEnv(env_fns)"),
    _ours("dummy:copy=false", "the same, arrays valid until the next step", where=_rows_count),
    _ours("subproc", "SubprocVecEnv(env_fns): a worker per core"),
    _ours("subproc:caller", "caller_steps=True: the caller steps a share"),
    _ours("subproc:caller,copy=false", "the same, arrays valid until the next step"),
    Contestant(
        "subproc, halves",
        OURS,
        "ours",
        "SubprocVecEnv, recv(n/2, n/2) and send: whichever half is ready",
        partial(libraries.ours_in_part, setting="subproc"),
        where=_with_learner,
    ),
    _ours("mpi", "MpiVecEnv under mpirun, a worker rank per core", "mpi"),
    _ours("ray", "RayVecEnv, an actor per core, rows in shared memory", "ray", slow=True),
    Contestant(
        "Gymnasium SyncVectorEnv",
        "gymnasium",
        "gymnasium",
        "copy=False",
        partial(libraries.gymnasium, cls="SyncVectorEnv"),
    ),
    Contestant(
        "Gymnasium AsyncVectorEnv",
        "gymnasium",
        "gymnasium",
        "shared_memory=True, copy=False, fork; a process per env",
        partial(libraries.gymnasium, cls="AsyncVectorEnv"),
        most=256,
    ),
    Contestant("SB3 DummyVecEnv", "stable-baselines3", "sb3", "defaults", partial(libraries.sb3, cls="DummyVecEnv")),
    Contestant(
        "SB3 SubprocVecEnv",
        "stable-baselines3",
        "sb3",
        'start_method="fork"; a process per env',
        partial(libraries.sb3, cls="SubprocVecEnv", start_method="fork"),
        most=256,
    ),
    _tianshou("DummyVectorEnv", "defaults"),
    _tianshou("SubprocVectorEnv", "defaults; a process per env", most=256),
    _tianshou("ShmemVectorEnv", "shared memory; a process per env", most=256),
    _tianshou("RayVectorEnv", "on a running Ray; an actor per env", most=8, slow=True),
    Contestant(
        "tianshou ShmemVectorEnv, halves",
        "tianshou",
        "tianshou",
        "wait_num=n/2",
        partial(libraries.tianshou_in_part, cls="ShmemVectorEnv"),
        most=256,
        where=_with_learner,
    ),
    Contestant(
        "TorchRL ParallelEnv",
        "torchrl",
        "torchrl",
        'mp_start_method="fork", step_and_maybe_reset; a process per env',
        libraries.torchrl,
        most=64,
        where=_no_attr,
    ),
    *_puffer("PufferLib", "pufferlib", "pufferlib"),
    *_puffer("PufferLib 3", "pufferlib3", "pufferlib-core"),
    Contestant(
        "EnvPool",
        "envpool",
        "envpool",
        "envs in C++, num_threads=cores",
        libraries.envpool,
        python=False,
        where=lambda cell: cell.env in libraries.ENVPOOL and not cell.attr,
    ),
    Contestant(
        BOUND,
        "none",
        "ours",
        "a loop per core over its share of the envs, all waiting for one another after each step; no rows",
        libraries.bound,
        python=False,
        where=lambda cell: not (cell.relative or cell.learner or cell.attr) and cell.num_envs > 1,
    ),
]


def lineup(cell: Cell, only: Sequence[str] | None = None) -> list[Contestant]:
    """Return the contestants of a cell, of those named in `only` by name or library.

    Raises:
        BadRequest: There is no contestant and no library of this name.
    """
    for name in only or ():
        if all(name not in (found.name, found.library) for found in CONTESTANTS):
            there = ", ".join(dict.fromkeys(found.library for found in CONTESTANTS))
            raise BadRequest(f"--contestants {name}: no such contestant; the libraries are {there}")
    return [
        found
        for found in CONTESTANTS
        if found.takes(cell) and (not only or found.name in only or found.library in only)
    ]


def contestant(name: str) -> Contestant:
    """Return the contestant of this name."""
    return next(found for found in CONTESTANTS if found.name == name)
