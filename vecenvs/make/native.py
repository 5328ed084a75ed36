"""Env functions for ids whose envs come batched: `make_vec_env(vectorization="native")`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.vector import AutoresetMode

from vecenvs.arguments import check_choice, split
from vecenvs.batched import Batched
from vecenvs.make.env_fn import is_flattened

VECTORIZATION = ("native", "auto")
_MODES = {
    AutoresetMode.NEXT_STEP: "next_step",
    AutoresetMode.SAME_STEP: "same_step",
    AutoresetMode.DISABLED: "same_step",  # by masked resets
}


_PLACE = "Batched(make, num_envs), and a list of these to DummyVecEnv, SubprocVecEnv, MpiVecEnv or RayVecEnv itself"


def check_single(env_id: Any) -> None:
    """Raise TypeError if `env_id` is a Batched, or a list with one: make_vec_env wraps single envs."""
    if any(isinstance(source, Batched) for source in (env_id if isinstance(env_id, (list, tuple)) else [env_id])):
        raise TypeError(f"env_id of make_vec_env is for single envs, which it wraps; batched ones go into {_PLACE}")


def wants_native(vectorization: Any, source: Any, others: Mapping[str, Any]) -> bool:
    """Tell whether batched envs are to be made; "auto" decides for them if the id has some and nothing speaks against.

    `source` is the env's spec, or another kind of source. `others` are arguments about single envs: what is not None is
    an obstacle. ValueError if the word is unknown, or "native" is impossible.
    """
    if vectorization is None:
        return False
    check_choice("vectorization", vectorization, VECTORIZATION)
    given = [name for name, value in others.items() if value is not None]
    possible = isinstance(source, EnvSpec) and source.vector_entry_point is not None
    if vectorization == "auto":
        return possible and not given
    if not possible:
        what = f"{source.id} has no vector_entry_point" if isinstance(source, EnvSpec) else "it needs an env id"
        raise ValueError(f"vectorization='native': {what}; functions of batched envs go into {_PLACE}")
    if given:
        raise ValueError(
            f"vectorization='native' has no single envs for {' and '.join(given)}: leave them out, or wrap the VecEnv "
            "(VecMonitor, VecNormalize)"
        )
    return True


def native_fns(
    spec: EnvSpec, num_envs: int, num_workers: int, kwargs: Mapping[str, Any], flatten: bool
) -> list[Callable[[], Any]]:
    """Return one function per worker, which makes a batched env; sizes differ by at most one.

    With `flatten` they raise ValueError for Dict observations, of which single envs would make vectors.
    """
    shards = split(num_envs, num_workers)
    return [Batched(partial(_make, spec, len(part), dict(kwargs), flatten), len(part)) for part in shards]


def mode_of(spec: EnvSpec) -> str:
    """Return the autoreset mode in which the batched envs of an id are stepped."""
    entry: Any = spec.vector_entry_point
    creator = load_env_creator(entry) if isinstance(entry, str) else entry
    declared = (getattr(creator, "metadata", None) or {}).get("autoreset_mode", AutoresetMode.NEXT_STEP)
    return _MODES[AutoresetMode(declared)]


def _make(spec: EnvSpec, num_envs: int, kwargs: dict[str, Any], flatten: bool) -> Any:
    env = gym.make_vec(spec, num_envs=num_envs, vectorization_mode="vector_entry_point", **kwargs)
    if flatten and is_flattened(env.single_observation_space):
        env.close()
        raise ValueError(
            f"the Dict observations of {spec.id}'s batched envs stay dicts: give flatten_dict_observations=False, or "
            "leave vectorization out for single envs, whose observations are flattened"
        )
    return env
