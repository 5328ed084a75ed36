"""The candidates: each library's vector env, driven through its own `step`, with a Monitor around every env."""

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
from benchmarks.stack import candidates
from benchmarks.stack.candidates import OURS, Candidate
from benchmarks.training.grid import OWN, SB3, Cell
from vecenvs.bench.candidates import Backend, parse
from vecenvs.bench.monitored import from_make_vec_env, monitored

BASE = {SB3: "SB3 DummyVecEnv", OWN: "Gymnasium SyncVectorEnv"}  # rates are relative to these
GAPS_BASE = BASE[SB3]
HALVES = ", halves"  # what a candidate's name ends in
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


def _anywhere(cell: Cell) -> bool:
    return True


def _beyond_sb3(cell: Cell) -> bool:
    return cell.measurement != SB3


def _setting(name: str, text: str = "") -> Candidate:
    """Return any setting of ours. With halves it steps one half of the envs while the caller computes on the other."""
    setting = name.removesuffix(HALVES)
    if setting not in CHOSEN:
        parse(setting)
    where = _anywhere if setting == name else lambda cell: cell.measurement == OWN
    return Candidate(name, OURS, "ours", text, partial(_ours, setting=setting), where)


def _sb3_one(cls: str, text: str, **kwargs: Any) -> Candidate:
    make = partial(_sb3, cls=cls, **kwargs)
    return Candidate(f"SB3 {cls}", "stable-baselines3", "sb3", text, make, _anywhere)


def _gym(cls: str, text: str) -> Candidate:
    make = partial(_gymnasium, cls=cls)
    return Candidate(f"Gymnasium {cls}", "gymnasium", "gymnasium", text, make, _beyond_sb3)


def _puffer(name: str, workers: str, text: str) -> Candidate:
    make = partial(_pufferlib, workers=workers)
    return Candidate(f"PufferLib {name}", "pufferlib", "pufferlib", text, make, _beyond_sb3)


CANDIDATES: Sequence[Candidate] = [
    _setting("dummy", 'make_vec_env(..., backend="dummy")'),
    _setting("subproc", 'backend="subproc": a worker per core'),
    _setting("subproc:caller", "the same with caller_steps=True: the caller steps a share"),
    _setting("default", "make_vec_env without `backend`"),
    _setting("auto", 'backend="auto"'),
    _setting("subproc, halves", "the same, by send and recv(n/2, n/2)"),
    _sb3_one("DummyVecEnv", "defaults"),
    _sb3_one("SubprocVecEnv", 'start_method="fork"; a process per env', start_method="fork"),
    _gym("SyncVectorEnv", "defaults"),
    _gym("AsyncVectorEnv", "defaults: fork, shared memory; a process per env"),
    _puffer("Serial", "serial", "vector.Serial"),
    _puffer("Multiprocessing, 1 worker", "one", "vector.Multiprocessing, num_workers=1"),
    _puffer("Multiprocessing, a worker per core", "cores", "vector.Multiprocessing, num_workers=cores"),
    Candidate(
        "EnvPool",
        "envpool",
        "envpool",
        "envs in C++, num_threads=cores; no Monitor",
        _envpool,
        _beyond_sb3,
        python=False,
    ),
]
LIBRARIES = {found.library for found in CANDIDATES}


def candidate(name: str) -> Candidate:
    """Return the candidate of this name, which may also be any setting of ours, such as "subproc:w=1, halves".

    Raises:
        BadRequest: There is no such candidate or setting.
    """
    return next((found for found in CANDIDATES if found.name == name), None) or _setting(name)


def candidates_of(cell: Cell, only: Sequence[str] | None = None) -> list[Candidate]:
    """Return the candidates of a cell, of those named in `only` by name, library or setting."""
    named = [candidate(name) for name in only or () if name not in LIBRARIES]
    return candidates.candidates_of(list(dict.fromkeys([*CANDIDATES, *named])), cell, only)
