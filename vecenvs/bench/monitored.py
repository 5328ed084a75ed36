"""Envs with the preprocessing and the Monitor of make_vec_env, for the bare loops and for the candidates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gymnasium.envs.registration import EnvSpec

from vecenvs.bench.candidates import Backend, MakesVec
from vecenvs.bench.workloads import GymEnv, Workload
from vecenvs.make.env_fn import EnvFn, Recipe
from vecenvs.make.env_types import check_env_type
from vecenvs.make.make_vec_env import make_vec_env
from vecenvs.make.preprocessing import preprocessing


def from_make_vec_env(workload: Workload, **arguments: Any) -> MakesVec:
    """Return a function which makes VecEnvs by make_vec_env, with these arguments and those of the backend."""
    source, env_kwargs = _source(workload)

    def make(num_envs: int, backend: Backend) -> Any:
        chosen = {"backend": backend.backend, **arguments, **backend.options}
        return make_vec_env(source, None, num_envs, env_kwargs=env_kwargs, **chosen)

    return make


def monitored(workload: Workload) -> Workload:
    """Return a function which makes one env with the same wrappers, for the loops of the limit."""
    source, env_kwargs = _source(workload)
    env_type = check_env_type(None, source if isinstance(source, EnvSpec) else None)
    recipe = Recipe(preprocessing(env_type, {}), env_kwargs)
    return EnvFn(recipe, source, 0)


def _source(workload: Workload) -> tuple[EnvSpec | Callable[..., Any], Mapping[str, Any]]:
    if isinstance(workload, GymEnv):
        return workload.spec, workload.kwargs
    return workload, {}
