"""The contestants: each library's vector env, driven through its own `step`, with a Monitor around every env."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.libraries import envpool_vec, puffer_vec
from benchmarks.peers.steppers import Job
from benchmarks.training.grid import OWN, SB3, Cell
from vecenvs.bench.contestants import Backend, parse
from vecenvs.bench.monitored import from_make_vec_env, monitored

OURS = "vecenvs"
BASE = {SB3: "SB3 DummyVecEnv", OWN: "Gymnasium SyncVectorEnv"}  # rates are relative to these
GAPS_BASE = BASE[SB3]
HALVES = ", halves"  # what a contestant's name ends in
CHOSEN = {"default": Backend("default", None), "auto": Backend("auto", "auto")}  # type: ignore[arg-type]

Rows = tuple[Any, NDArray[Any], NDArray[np.bool_]]  # observations, rewards, and whether the episode has ended


@dataclass
class Driven:
    """Envs that have been made and reset. `obs` are the first observations, the spaces those of one env.

    `rows` picks the rows from what `vec.step` returned. `next_step`: the step after the end of an episode is a reset,
    and its row no transition. `setting`: what the library says about its own setting.
    """

    vec: Any
    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    obs: Any
    rows: Callable[[Any], Rows]
    next_step: bool = False
    setting: Mapping[str, Any] = field(default_factory=dict)
    over: int = 0

    def transitions(self, dones: NDArray[np.bool_]) -> int:
        """Return how many rows of a step are transitions. To be called once for each step."""
        resets, self.over = self.over, int(np.count_nonzero(dones)) if self.next_step else 0
        return len(dones) - resets

    def close(self) -> None:
        self.vec.close()


@dataclass(frozen=True)
class Contestant:
    """A library's vector env in one setting.

    `family` names the process in which it takes its turns, apart from other libraries. `has_sb3`: Stable-Baselines3
    can train on `make(job).vec`.
    """

    name: str
    library: str
    family: str
    setting: str
    make: Callable[[Job], Driven]
    has_sb3: bool = False

    @property
    def halves(self) -> bool:
        return self.name.endswith(HALVES)

    def takes(self, cell: Cell) -> bool:
        """Return whether it takes part in this cell."""
        return self.has_sb3 if cell.measurement == SB3 else cell.measurement == OWN or not self.halves


def _of_four(result: Any) -> Rows:
    return result[0], result[1], result[2]


def _of_five(result: Any) -> Rows:
    return result[0], result[1], result[2] | result[3]


def _driven(vec: Any, reset: Callable[[], Any], *args: Any, **options: Any) -> Driven:
    try:
        return Driven(vec, *args[:2], reset(), *args[2:], **options)
    except BaseException:
        vec.close()
        raise


def _ours(job: Job, setting: str) -> Driven:
    vec = from_make_vec_env(job.env_fn)(job.num_envs, CHOSEN.get(setting) or parse(setting))
    told = vec.stats()
    shown = {key: told[key] for key in ("backend", "num_workers", "caller_steps") if key in told}
    return _driven(vec, partial(vec.reset, seed=0), vec.observation_space, vec.action_space, _of_four, setting=shown)


def _sb3(job: Job, cls: str, **kwargs: Any) -> Driven:
    from stable_baselines3.common import vec_env

    vec = getattr(vec_env, cls)([monitored(job.env_fn)] * job.num_envs, **kwargs)
    vec.seed(0)
    return _driven(vec, vec.reset, vec.observation_space, vec.action_space, _of_four)


def _like_gymnasium(vec: Any, **how: Any) -> Driven:
    def reset() -> Any:
        return vec.reset(**how)[0]

    return _driven(vec, reset, vec.single_observation_space, vec.single_action_space, _of_five, next_step=True)


def _gymnasium(job: Job, cls: str) -> Driven:
    return _like_gymnasium(getattr(gym.vector, cls)([monitored(job.env_fn)] * job.num_envs), seed=0)


def _pufferlib(job: Job, workers: str) -> Driven:
    return _like_gymnasium(puffer_vec(replace(job, env_fn=monitored(job.env_fn)), workers), seed=0)


def _envpool(job: Job) -> Driven:
    vec = envpool_vec(job)

    def reset() -> Any:
        return vec.reset()[0]

    return _driven(vec, reset, vec.observation_space, vec.action_space, _of_five, next_step=True)


def _our(setting: str, text: str) -> Contestant:
    return Contestant(setting, OURS, "ours", text, partial(_ours, setting=setting), has_sb3=True)


def _gym(cls: str, text: str) -> Contestant:
    return Contestant(f"Gymnasium {cls}", "gymnasium", "gymnasium", text, partial(_gymnasium, cls=cls))


def _puffer(name: str, workers: str, text: str) -> Contestant:
    return Contestant(f"PufferLib {name}", "pufferlib", "pufferlib", text, partial(_pufferlib, workers=workers))


def in_halves(setting: str) -> Contestant:
    """Return our contestant that steps one half of the envs while the caller computes on the other."""
    make = partial(_ours, setting=setting)
    return Contestant(f"{setting}{HALVES}", OURS, "ours", "the same, by send and recv(n/2, n/2)", make)


CONTESTANTS: Sequence[Contestant] = [
    _our("dummy", 'make_vec_env(..., backend="dummy")'),
    _our("subproc", 'backend="subproc": a worker per core'),
    _our("subproc:caller", "the same with caller_steps=True: the caller steps a share"),
    _our("default", "make_vec_env without `backend`"),
    _our("auto", 'backend="auto"'),
    in_halves("subproc"),
    Contestant(
        "SB3 DummyVecEnv", "stable-baselines3", "sb3", "defaults", partial(_sb3, cls="DummyVecEnv"), has_sb3=True
    ),
    Contestant(
        "SB3 SubprocVecEnv",
        "stable-baselines3",
        "sb3",
        'start_method="fork"; a process per env',
        partial(_sb3, cls="SubprocVecEnv", start_method="fork"),
        has_sb3=True,
    ),
    _gym("SyncVectorEnv", "defaults"),
    _gym("AsyncVectorEnv", "defaults: fork, shared memory; a process per env"),
    _puffer("Serial", "serial", "vector.Serial"),
    _puffer("Multiprocessing, 1 worker", "one", "vector.Multiprocessing, num_workers=1"),
    _puffer("Multiprocessing, a worker per core", "cores", "vector.Multiprocessing, num_workers=cores"),
    Contestant("EnvPool", "envpool", "envpool", "envs in C++, num_threads=cores; no Monitor", _envpool),
]


def contestant(name: str) -> Contestant:
    """Return the contestant of this name, which may also be any setting of ours, such as "subproc:w=1, halves".

    Raises:
        BadRequest: There is no such contestant or setting.
    """
    for found in CONTESTANTS:
        if name == found.name:
            return found
    setting, halves = name.removesuffix(HALVES), name.endswith(HALVES)
    if setting not in CHOSEN:
        parse(setting)
    return in_halves(setting) if halves else _our(setting, "")


def lineup(cell: Cell, only: Sequence[str] | None = None) -> list[Contestant]:
    """Return the contestants of a cell, of those named in `only` by name, library or setting."""
    named: list[Contestant] = []
    for name in only if only is not None else [found.name for found in CONTESTANTS]:
        of_library = [found for found in CONTESTANTS if found.library == name]
        named += of_library or [contestant(name)]
    return [found for found in dict.fromkeys(named) if found.takes(cell)]
