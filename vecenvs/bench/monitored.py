"""Envs with the preprocessing and the Monitor of make_vec_env, for the bare loops and for the contestants."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from gymnasium.envs.registration import EnvSpec

from vecenvs.bench.contestants import Backend, MakesVec
from vecenvs.bench.workloads import GymEnv, Workload
from vecenvs.make.env_fn import EnvFn, Recipe, this_process
from vecenvs.make.env_types import check_env_type
from vecenvs.make.make_vec_env import make_vec_env
from vecenvs.make.preprocessing import preprocessing


def from_make_vec_env(workload: Workload) -> MakesVec:
    """Return a function which makes VecEnvs by make_vec_env, with its defaults for all but the backend's arguments."""
    source, env_kwargs = _source(workload)

    def make(num_envs: int, backend: Backend) -> Any:
        return make_vec_env(source, None, num_envs, env_kwargs=env_kwargs, backend=backend.backend, **backend.options)

    return make


def monitored(workload: Workload) -> Workload:
    """Return a function which makes one env with the same wrappers, for the loops of the limit."""
    source, env_kwargs = _source(workload)
    recipe = Recipe(
        preprocessing=preprocessing(check_env_type(None, source if isinstance(source, EnvSpec) else None), {}),
        env_kwargs=env_kwargs,
        module="",
        flatten=True,
        wrappers=(),
        reward_scale=1.0,
        monitor_dir=None,
        monitor_kwargs={},
        seed=None,
        mpi_rank=0,
        initializer=None,
        home=this_process(),
        begun=time.time(),
    )
    return EnvFn(recipe, source, 0)


def _source(workload: Workload) -> tuple[EnvSpec | Callable[..., Any], Mapping[str, Any]]:
    if isinstance(workload, GymEnv):
        return workload.spec, workload.kwargs
    return workload, {}
