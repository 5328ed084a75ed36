"""Adapters: the state of objects that are no plain data, such as those of simulators."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from gymnasium import ActionWrapper


class Context(NamedTuple):
    """Where an object is: whose attribute, in which layers of an env, and what that env's last action was, if any."""

    owner: Any
    layers: list[Any]
    action: Any


class Adapter(NamedTuple):
    """How to read and write the state of one object."""

    get: Callable[[Any, Context], Any]
    set: Callable[[Any, Any], Any]


def register(cls: type, get: Callable[[Any], Any], set: Callable[[Any, Any], Any]) -> None:  # noqa: A002
    """Tell how the state of objects of a class is read and written: of an env, or of what it has as an attribute.

    Call it where the class is imported, so that each process in which envs live does so.

    Args:
        cls: the class. Its subclasses have their state in this way, too.
        get: returns the state of an object: numbers, texts, arrays, and lists, tuples and dicts of these.
        set: called with an object of another env of the same function, and a state: gives it this state.

    Raises:
        TypeError: `cls` is no class, or `get` or `set` cannot be called.
    """
    given: Any = (cls, get, set)
    if not isinstance(given[0], type) or not all(map(callable, given)):
        raise TypeError(f"register takes a class and two functions, not {given!r}")
    _ADAPTERS[qualified(cls)] = Adapter(lambda value, _: get(value), set)
    adapter_of.cache_clear()


def qualified(cls: type) -> str:
    """Return the module and the name of a class."""
    module = getattr(cls, "__module__", "?")  # SWIG's own class has none
    return f"{'__main__' if module == '__mp_main__' else module}:{cls.__qualname__}"


@functools.lru_cache(maxsize=1024)
def adapter_of(cls: type) -> Adapter | None:
    """Return the adapter of a class, or of the first of its bases that has one."""
    return next((_ADAPTERS[name] for name in map(qualified, cls.__mro__) if name in _ADAPTERS), None)


# MuJoCo. From its integration state it goes on exactly. Observations and rewards read more than that, which the next
# step computes only after they have been read.
_DERIVED = (
    "xpos", "xquat", "xmat", "xipos", "ximat", "xanchor", "xaxis", "geom_xpos", "geom_xmat", "site_xpos", "site_xmat",
    "cam_xpos", "cam_xmat", "subtree_com", "cdof", "cinert", "cvel", "cdof_dot", "cacc", "cfrc_int", "cfrc_ext",
    "subtree_linvel", "subtree_angmom", "ten_length", "ten_velocity", "actuator_length", "actuator_velocity",
    "actuator_force", "act_dot", "qfrc_bias", "qfrc_passive", "qfrc_actuator", "qfrc_constraint", "qacc", "qacc_smooth",
    "sensordata", "energy",
)  # fmt: skip


def _get_mujoco(data: Any, _: Context) -> Any:
    import mujoco

    model, which = data.model, mujoco.mjtState.mjSTATE_INTEGRATION
    state = np.empty(mujoco.mj_stateSize(model, which))
    mujoco.mj_getState(model, data, state, which)
    return {"integration": state, "derived": np.concatenate([getattr(data, name).ravel() for name in _DERIVED])}


def _set_mujoco(data: Any, state: Any) -> None:
    import mujoco

    mujoco.mj_setState(data.model, data, state["integration"], mujoco.mjtState.mjSTATE_INTEGRATION)
    place = 0
    for name in _DERIVED:
        array = getattr(data, name)
        array[...] = state["derived"][place : place + array.size].reshape(array.shape)
        place += array.size
    if place != state["derived"].size:
        raise ValueError(f"{state['derived'].size} numbers for a model with {place}: it is another model")


# ALE. A clone lacks the last action, which sticky actions may repeat.
_SURE = 32  # steps after which one of them has taken its action, and the next one has that to repeat


def _get_ale(ale: Any, context: Context) -> Any:
    sticky, env, last = ale.getFloat("repeat_action_probability") > 0, context.owner, 0
    if sticky and context.action is not None:
        if env.continuous or any(isinstance(layer, ActionWrapper) for layer in context.layers):
            raise TypeError("its last action, which sticky actions repeat, is not known behind a wrapper of actions")
        last = vars(env)["_action_set"][int(context.action)].value
    elif sticky and any(not type(layer).__module__.startswith(("gymnasium.", "ale_py.")) for layer in context.layers):
        raise TypeError("its last action, which sticky actions repeat, is not known before the episode's first step")
    state = ale.cloneState(include_rng=True)
    return {"state": state.__getstate__(), "last": last if sticky else None}


def _set_ale(ale: Any, state: Any) -> None:
    from ale_py import Action, ALEState

    whole = ALEState(state["state"])
    ale.restoreState(whole)
    if state["last"] is not None:
        for _ in range(_SURE):
            ale.act(Action(state["last"]))
        ale.restoreState(whole)


_ADAPTERS: dict[str, Adapter] = {
    "mujoco._structs:MjData": Adapter(_get_mujoco, _set_mujoco),
    "ale_py._ale_py:ALEInterface": Adapter(_get_ale, _set_ale),
}
