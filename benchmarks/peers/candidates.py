"""The candidates: each library at the setting that its documentation recommends for speed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from benchmarks.peers import libraries
from benchmarks.peers.grid import Cell
from benchmarks.stack.candidates import OURS, Candidate

BOUND = "bare loops in lock-step"


def _with_learner(cell: Cell) -> bool:
    return cell.learner


def _no_attr(cell: Cell) -> bool:
    return not cell.attr


def _ours(setting: str, text: str, family: str = "ours", **options: Any) -> Candidate:
    return Candidate(setting, OURS, family, text, partial(libraries.ours, setting=setting), **options)


def _gymnasium(cls: str, text: str, **options: Any) -> Candidate:
    make = partial(libraries.gymnasium, cls=cls)
    return Candidate(f"Gymnasium {cls}", "gymnasium", "gymnasium", text, make, **options)


def _sb3(cls: str, text: str, most: int = 1024, **arguments: str) -> Candidate:
    make = partial(libraries.sb3, cls=cls, **arguments)
    return Candidate(f"SB3 {cls}", "stable-baselines3", "sb3", text, make, most=most)


def _tianshou(cls: str, text: str, make: Callable[..., Any] = libraries.tianshou, **options: Any) -> Candidate:
    family = "ray" if cls == "RayVectorEnv" else "tianshou"
    return Candidate(
        f"tianshou {cls}", "tianshou", family, text, partial(make, cls=cls.removesuffix(", halves")), **options
    )


def _puffer(version: str, family: str, distribution: str) -> list[Candidate]:
    def one(name: str, workers: str, text: str) -> Candidate:
        make = partial(libraries.pufferlib, workers=workers, distribution=distribution)
        return Candidate(f"{version} {name}", "pufferlib", family, text, make, _no_attr)

    halves = partial(libraries.pufferlib_in_part, workers="cores", distribution=distribution)
    name, text = f"{version} Multiprocessing, halves", "num_workers=cores, batch_size=n/2"
    return [
        one("Serial", "serial", "vector.Serial; its arrays are its own, valid until the next step"),
        one("Multiprocessing, 1 worker", "one", "num_workers=1; arrays as above"),
        one("Multiprocessing, a worker per core", "cores", "num_workers=cores; arrays as above"),
        Candidate(name, "pufferlib", family, text, halves, _with_learner),
    ]


CANDIDATES: Sequence[Candidate] = [
    _ours("dummy", "DummyVecEnv(env_fns)"),
    _ours("dummy:copy=false", "the same, arrays valid until the next step", where=lambda cell: cell.relative),
    _ours("subproc", "SubprocVecEnv(env_fns): a worker per core"),
    _ours("subproc:caller", "caller_steps=True: the caller steps a share"),
    _ours("subproc:caller,copy=false", "the same, arrays valid until the next step"),
    Candidate(
        "subproc, halves",
        OURS,
        "ours",
        "SubprocVecEnv, recv(n/2, n/2) and send: whichever half is ready",
        partial(libraries.ours_in_part, setting="subproc"),
        _with_learner,
    ),
    _ours("mpi", "MpiVecEnv under mpirun, a worker rank per core", "mpi"),
    _ours("ray", "RayVecEnv, an actor per core, rows in shared memory", "ray", slow=True),
    _gymnasium("SyncVectorEnv", "copy=False"),
    _gymnasium("AsyncVectorEnv", "shared_memory=True, copy=False, fork; a process per env", most=256),
    _sb3("DummyVecEnv", "defaults"),
    _sb3("SubprocVecEnv", 'start_method="fork"; a process per env', 256, start_method="fork"),
    _tianshou("DummyVectorEnv", "defaults"),
    _tianshou("SubprocVectorEnv", "defaults; a process per env", most=256),
    _tianshou("ShmemVectorEnv", "shared memory; a process per env", most=256),
    _tianshou("RayVectorEnv", "on a running Ray; an actor per env", most=8, slow=True),
    _tianshou("ShmemVectorEnv, halves", "wait_num=n/2", libraries.tianshou_in_part, most=256, where=_with_learner),
    Candidate(
        "TorchRL ParallelEnv",
        "torchrl",
        "torchrl",
        'mp_start_method="fork", step_and_maybe_reset; a process per env',
        libraries.torchrl,
        _no_attr,
        most=64,
    ),
    *_puffer("PufferLib", "pufferlib", "pufferlib"),
    *_puffer("PufferLib 3", "pufferlib3", "pufferlib-core"),
    Candidate(
        "EnvPool",
        "envpool",
        "envpool",
        "envs in C++, num_threads=cores",
        libraries.envpool,
        lambda cell: cell.env in libraries.ENVPOOL and not cell.attr,
        python=False,
    ),
    Candidate(
        BOUND,
        "none",
        "ours",
        "a loop per core over its share of the envs, all waiting for one another after each step; no rows",
        libraries.bound,
        lambda cell: not (cell.relative or cell.learner or cell.attr) and cell.num_envs > 1,
        python=False,
    ),
]


def candidate(name: str) -> Candidate:
    """Return the candidate of this name."""
    return next(found for found in CANDIDATES if found.name == name)
