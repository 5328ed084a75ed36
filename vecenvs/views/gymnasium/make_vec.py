"""Vector entry points, by which `gym.make_vec` makes VecEnvs behind Gymnasium's interface."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
from gymnasium.envs import registration
from gymnasium.envs.registration import EnvSpec, VectorizeMode
from gymnasium.vector import AutoresetMode, VectorEnv

from vecenvs.arguments import listed, parse_count
from vecenvs.backends import backend_class
from vecenvs.errors import EnvError
from vecenvs.make.env_types import find_spec
from vecenvs.views.gymnasium.errors import raise_as_gymnasium
from vecenvs.views.gymnasium.view import AUTORESET_MODES, GymnasiumView, as_gymnasium

Wrap = Callable[[Any], gym.Env[Any, Any]]


def make_gymnasium_vec(
    num_envs: int = 1,
    *,
    env_id: str,
    backend: str | None = None,
    autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
    vec_kwargs: Mapping[str, Any] | None = None,
    env_wrappers: Sequence[Wrap] = (),
    **env_kwargs: Any,
) -> GymnasiumView:
    """Make `num_envs` envs of a registered id behind Gymnasium's interface.

    An exception from making an env is raised as it is, as by gym.make.

    Args:
        num_envs: the number of envs.
        env_id: the id of a registered env. Each env is made by gym.make, without the passive env checker.
        backend: a name of `vecenvs.backends.BACKENDS`; None means "dummy" for one env, else "subproc".
        autoreset_mode: Gymnasium's enum or its value, such as "NextStep".
        vec_kwargs: arguments for the backend's class.
        env_wrappers: functions that wrap an env, the innermost first.
        **env_kwargs: arguments for gym.make.

    Returns:
        A gymnasium.vector.VectorEnv.

    Raises:
        TypeError: an argument has the wrong type, or `vec_kwargs` names an argument of this function.
        ValueError: `autoreset_mode` or `backend` is unknown.
    """
    num_envs = parse_count("num_envs", num_envs)
    if not isinstance(env_id, str):
        raise TypeError(f"env_id must be the id of a registered env, not {env_id!r}")
    spec = gym.spec(env_id)
    wrappers = listed(env_wrappers)
    if not isinstance(wrappers, Sequence) or not all(map(callable, wrappers)):
        raise TypeError(f"env_wrappers must be a list of functions that wrap an env, not {env_wrappers!r}")
    env_kwargs.setdefault("disable_env_checker", True)
    # The spec and not the id: in a spawned worker, ids registered by the script may be unknown.
    env_fn = functools.partial(_make_env, spec, env_kwargs, tuple(wrappers))
    engine = backend_class(("dummy" if num_envs == 1 else "subproc") if backend is None else backend)
    autoreset, options = _parse_autoreset_mode(autoreset_mode), _check_vec_kwargs(vec_kwargs)
    try:
        vec = engine([env_fn] * num_envs, autoreset=autoreset, **options)
    except EnvError as error:
        raise_as_gymnasium(error, "make")
    return as_gymnasium(vec)


def _make_env(spec: EnvSpec, kwargs: Mapping[str, Any], wrappers: Sequence[Wrap]) -> gym.Env[Any, Any]:
    env = gym.make(spec, **kwargs)
    for wrap in wrappers:
        env = wrap(env)
    return env


def _parse_autoreset_mode(autoreset_mode: Any) -> str:
    """Return the VecEnv's name of Gymnasium's mode."""
    for name, mode in AUTORESET_MODES.items():
        if autoreset_mode is mode or (isinstance(autoreset_mode, str) and autoreset_mode == mode.value):
            return name
    known = ", ".join(repr(mode.value) for mode in AUTORESET_MODES.values())
    raise ValueError(f"autoreset_mode {autoreset_mode!r} is none of {known}")


def _check_vec_kwargs(vec_kwargs: Mapping[str, Any] | None) -> Mapping[str, Any]:
    if vec_kwargs is None:
        return {}
    if not isinstance(vec_kwargs, Mapping):
        raise TypeError(f"vec_kwargs must be a mapping of names to values, not {vec_kwargs!r}")
    for name, instead in (("autoreset", "autoreset_mode"), ("env_fns", "num_envs and env_id")):
        if name in vec_kwargs:
            raise TypeError(f"vec_kwargs has {name!r}, which is given by {instead} here")
    return vec_kwargs


def use_for_make_vec(env_id: str, **kwargs: Any) -> None:
    """Make `gym.make_vec(env_id)` use `make_gymnasium_vec`, in this process.

    This replaces the id's `vector_entry_point`, and `gym.make_vec` by a function which uses that entry point for every
    `vectorization_mode`, and which accepts `vector_kwargs` and `wrappers`. Other ids are made as before.

    Args:
        env_id: the id of a registered env.
        **kwargs: arguments for `make_gymnasium_vec`. Without a `backend`, the vectorization mode "sync" means "dummy"
            and "async" means "subproc".
    """
    gym.spec(env_id).vector_entry_point = functools.partial(make_gymnasium_vec, env_id=env_id, **kwargs)
    for module in (gym, registration):
        vars(module)["make_vec"] = _make_vec


_gymnasium_make_vec = registration.make_vec  # before `use_for_make_vec` replaces it
_BACKENDS = {VectorizeMode.SYNC: "dummy", VectorizeMode.ASYNC: "subproc"}


@functools.wraps(_gymnasium_make_vec)
def _make_vec(
    id: Any,  # noqa: A002  Gymnasium's name
    num_envs: int = 1,
    vectorization_mode: Any = None,
    vector_kwargs: dict[str, Any] | None = None,
    wrappers: Any = None,
    **kwargs: Any,
) -> VectorEnv[Any, Any, Any]:
    """Return what gym.make_vec does, or this project's vector env for an id given to `use_for_make_vec`.

    Gymnasium ignores a vector entry point in the modes "sync" and "async", and refuses `vector_kwargs` and `wrappers`
    with one.
    """
    spec = _find_spec(id)
    entry = getattr(spec, "vector_entry_point", None)
    if not isinstance(entry, functools.partial) or entry.func is not make_gymnasium_vec:
        return _gymnasium_make_vec(id, num_envs, vectorization_mode, vector_kwargs, wrappers, **kwargs)
    merged = {**entry.keywords, **spec.kwargs, **kwargs}
    if vector_kwargs:
        kwargs["vec_kwargs"] = {**_check_vec_kwargs(merged.get("vec_kwargs")), **vector_kwargs}
        if "autoreset_mode" in vector_kwargs:
            kwargs["autoreset_mode"] = kwargs["vec_kwargs"].pop("autoreset_mode")
    if wrappers:
        kwargs["env_wrappers"] = [*merged.get("env_wrappers", ()), *wrappers]
    mode = None if vectorization_mode is None else VectorizeMode(vectorization_mode)
    if mode in _BACKENDS and merged.get("backend") is None:
        kwargs["backend"] = _BACKENDS[mode]
    return _gymnasium_make_vec(id, num_envs, VectorizeMode.VECTOR_ENTRY_POINT, **kwargs)


def _find_spec(id: Any) -> Any:  # noqa: A002
    """Return the spec for an id as gym.make_vec takes it; None for an unknown id, for which gym.make_vec raises."""
    try:
        return find_spec(id) if isinstance(id, str) else id
    except (gym.error.Error, ImportError):
        return None
