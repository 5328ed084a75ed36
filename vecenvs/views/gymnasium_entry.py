"""gym.make_vec by this project: what `vector_entry_point` of a registered env can name."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
from gymnasium.vector import AutoresetMode

from vecenvs.arguments import parse_int
from vecenvs.backends import backend_class
from vecenvs.views.gymnasium_view import AUTORESET_MODES, GymnasiumView, as_gymnasium


def make_gymnasium_vec(
    num_envs: int = 1,
    *,
    env_id: str,
    backend: str | None = None,
    autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
    vec_kwargs: Mapping[str, Any] | None = None,
    **env_kwargs: Any,
) -> GymnasiumView:
    """Make `num_envs` envs of a registered id behind Gymnasium's interface.

    `backend` is a name of `vecenvs.backends.BACKENDS`; None means "dummy" for one env, else "subproc". `vec_kwargs` go
    to its class, `env_kwargs` to gym.make. Each env is what gym.make gives, without the passive checker.
    """
    num_envs = parse_int("num_envs", num_envs, 1)
    spec = gym.spec(env_id)
    env_kwargs.setdefault("disable_env_checker", True)
    # The spec rather than the id: a worker started afresh has not seen what was registered since the import.
    env_fn = functools.partial(gym.make, spec, **env_kwargs)
    engine = backend_class(backend or ("dummy" if num_envs == 1 else "subproc"))
    vec = engine([env_fn] * num_envs, autoreset=_autoreset_of(autoreset_mode), **_checked(vec_kwargs))
    return as_gymnasium(vec)


def _autoreset_of(autoreset_mode: Any) -> str:
    """Give our name of Gymnasium's mode."""
    for name, mode in AUTORESET_MODES.items():
        if autoreset_mode in (mode, mode.value):
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

    It sets the `vector_entry_point` of the registered id, in this process, in place of any it has.
    """
    gym.spec(env_id).vector_entry_point = functools.partial(make_gymnasium_vec, env_id=env_id, **kwargs)
