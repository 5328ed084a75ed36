"""gym.make_vec by this project: what `vector_entry_point` of a registered env can name."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
from gymnasium.envs import registration
from gymnasium.envs.registration import EnvSpec, VectorizeMode
from gymnasium.vector import AutoresetMode

from vecenvs.arguments import listed, parse_count
from vecenvs.backends import backend_class
from vecenvs.errors import EnvError
from vecenvs.views.gymnasium.errors import raise_as_gymnasium
from vecenvs.views.gymnasium.single_envs import AnyVectorEnv
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

    `backend` is a name of `vecenvs.backends.BACKENDS`; None means "dummy" for one env, else "subproc". `vec_kwargs` go
    to its class, `env_kwargs` to gym.make. Each env is what gym.make gives, without the passive checker, in
    `env_wrappers`, the first innermost. What making an env raises is raised as it is, as by gym.make.
    """
    num_envs = parse_count("num_envs", num_envs)
    if not isinstance(env_id, str):
        raise TypeError(f"env_id must be the id of a registered env, not {env_id!r}")
    spec = gym.spec(env_id)
    wrappers = listed(env_wrappers)
    if not isinstance(wrappers, Sequence) or not all(map(callable, wrappers)):
        raise TypeError(f"env_wrappers must be a list of functions that wrap an env, not {env_wrappers!r}")
    env_kwargs.setdefault("disable_env_checker", True)
    # The spec rather than the id: a worker started afresh has not seen what was registered since the import.
    env_fn = functools.partial(_make_env, spec, env_kwargs, tuple(wrappers))
    engine = backend_class(("dummy" if num_envs == 1 else "subproc") if backend is None else backend)
    autoreset, options = _autoreset_of(autoreset_mode), _checked(vec_kwargs)
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


def _autoreset_of(autoreset_mode: Any) -> str:
    """Give our name of Gymnasium's mode."""
    for name, mode in AUTORESET_MODES.items():
        if autoreset_mode is mode or (isinstance(autoreset_mode, str) and autoreset_mode == mode.value):
            return name
    known = ", ".join(repr(mode.value) for mode in AUTORESET_MODES.values())
    raise ValueError(f"autoreset_mode {autoreset_mode!r} is none of {known}")


def _checked(vec_kwargs: Mapping[str, Any] | None) -> Mapping[str, Any]:
    if vec_kwargs is None:
        return {}
    if not isinstance(vec_kwargs, Mapping):
        raise TypeError(f"vec_kwargs must be a mapping of names to values, not {vec_kwargs!r}")
    for name, instead in (("autoreset", "autoreset_mode"), ("env_fns", "num_envs and env_id")):
        if name in vec_kwargs:
            raise TypeError(f"vec_kwargs has {name!r}, which is told by {instead} here")
    return vec_kwargs


def use_for_make_vec(env_id: str, **kwargs: Any) -> None:
    """Have gym.make_vec(env_id) make its envs by `make_gymnasium_vec`, which gets `kwargs`.

    It sets the `vector_entry_point` of the registered id, in this process, in place of any it has, and sees to it that
    gym.make_vec takes this for every `vectorization_mode`, with `vector_kwargs` and `wrappers`. Where `kwargs` name no
    backend, "sync" means "dummy" and "async" means "subproc".
    """
    gym.spec(env_id).vector_entry_point = functools.partial(make_gymnasium_vec, env_id=env_id, **kwargs)
    for module in (gym, registration):
        vars(module)["make_vec"] = _make_vec


_gymnasiums = registration.make_vec  # as it was when this was imported
_BACKENDS = {VectorizeMode.SYNC: "dummy", VectorizeMode.ASYNC: "subproc"}


@functools.wraps(_gymnasiums)
def _make_vec(
    id: Any,  # noqa: A002  Gymnasium's name
    num_envs: int = 1,
    vectorization_mode: Any = None,
    vector_kwargs: dict[str, Any] | None = None,
    wrappers: Any = None,
    **kwargs: Any,
) -> AnyVectorEnv:
    """Make what gym.make_vec makes; of the ids of `use_for_make_vec` whatever it is given, ours.

    Gymnasium takes neither `vector_kwargs` nor `wrappers` for a vector entry point, and asked for "sync" or "async"
    passes it over.
    """
    spec = _spec_of(id)
    entry = getattr(spec, "vector_entry_point", None)
    if not isinstance(entry, functools.partial) or entry.func is not make_gymnasium_vec:
        return _gymnasiums(id, num_envs, vectorization_mode, vector_kwargs, wrappers, **kwargs)
    settled = {**entry.keywords, **spec.kwargs, **kwargs}
    ours: dict[str, Any] = {}
    if vector_kwargs:
        ours["vec_kwargs"] = {**_checked(settled.get("vec_kwargs")), **vector_kwargs}
        if "autoreset_mode" in vector_kwargs:
            ours["autoreset_mode"] = ours["vec_kwargs"].pop("autoreset_mode")
    if wrappers:
        ours["env_wrappers"] = [*settled.get("env_wrappers", ()), *wrappers]
    mode = None if vectorization_mode is None else VectorizeMode(vectorization_mode)
    if mode in _BACKENDS and settled.get("backend") is None:
        ours["backend"] = _BACKENDS[mode]
    return _gymnasiums(id, num_envs, VectorizeMode.VECTOR_ENTRY_POINT, **{**kwargs, **ours})


def _spec_of(id: Any) -> Any:  # noqa: A002
    """Return the registered spec of an id as gym.make_vec takes it; None if there is none, which that will tell."""
    if not isinstance(id, str):
        return id
    try:
        module, _, name = id.rpartition(":")
        if module:
            importlib.import_module(module)
        namespace, base, version = registration.parse_env_id(name)
        if version is None and name not in registration.registry:
            version = registration.find_highest_version(namespace, base)
        return gym.spec(registration.get_env_id(namespace, base, version))
    except (gym.error.Error, ImportError):
        return None
