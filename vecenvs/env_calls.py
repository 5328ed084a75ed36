"""What a caller can ask of one env by name: functions that run where the env lives."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Sequence
from typing import Any

from gymnasium import Env

_NOWHERE = object()
_MAIN = ("__main__", "__mp_main__")  # the caller's script, and the same in a spawned worker


def check_name(name: Any) -> None:
    """Refuse what is no name of an attribute or method."""
    if not isinstance(name, str) or not name:
        raise TypeError(f"name must be the name of an attribute or method of the envs, not {name!r}")


def name_for(function: Any) -> str:
    """Give the name of a function, or of the class of what else can be called."""
    return str(getattr(function, "__name__", type(function).__name__))


def layers(env: Any) -> list[Any]:
    """Give the wrappers from the outermost inwards, the bare env last: `env.unwrapped`, whatever `env` it may have."""
    found = [env]
    while getattr(found[-1], "unwrapped", None) is not found[-1] and isinstance(getattr(found[-1], "env", None), Env):
        found.append(found[-1].env)
    return found


def get_attr(env: Any, name: str) -> Any:
    """Read an attribute of the outermost layer that has it; `name` may be dotted, as in "unwrapped.state"."""
    head, _, rest = name.partition(".")
    found = layers(env)
    for layer in found:
        if hasattr(layer, head):
            value = getattr(layer, head)
            return operator.attrgetter(rest)(value) if rest else value
    raise AttributeError(f"neither {type(found[-1]).__name__} nor its wrappers have an attribute {name!r}")


def set_attr(env: Any, name: str, value: Any) -> None:
    """Write an attribute of the outermost layer that has it; the bare env gets it if none does.

    A layer whose `__getattr__` only passes on what those inside have does not have it. `name` may be dotted: all but
    its last part is read as `get_attr` does.
    """
    owner, _, last = name.rpartition(".")
    if owner:
        setattr(get_attr(env, owner), last, value)
        return
    found = layers(env)
    having = found[-1]
    for layer in found:
        if _has(layer, name):
            having = layer
            if inspect.getattr_static(layer, name, _NOWHERE) is not _NOWHERE:
                break
    setattr(having, name, value)


def _has(layer: Any, name: str) -> bool:
    try:
        return hasattr(layer, name)
    except Exception:  # a property that cannot be read now, perhaps because it has to be set first
        return True


def has_attr(env: Any, name: str) -> bool:
    """Tell whether `get_attr` would find it."""
    try:
        get_attr(env, name)
    except AttributeError:
        return False
    return True


def env_method(env: Any, name: str, *args: Any, **kwargs: Any) -> Any:
    """Call a method of the outermost layer that has it."""
    if name == "seed" and not has_attr(env, name):  # Gym's envs had it
        raise AttributeError(
            f"{type(env.unwrapped).__name__} has no method 'seed', like all envs of Gymnasium: seed the envs by the "
            "VecEnv's own seed(...), which their next resets get, or by reset(seed=...)"
        )
    return get_attr(env, name)(*args, **kwargs)


def as_it_is(env: Any) -> None:
    """Take an env that was never reset for one that can be stepped, as libraries do which ask for no reset."""


def counts_as_reset(function: Any, args: Sequence[Any]) -> bool:
    """Tell whether an env can be stepped once this function has been called on it."""
    return function is as_it_is or (function is env_method and args[:1] == ("reset",))


def name_of(cls: type) -> tuple[str, str]:
    """Give the module and qualified name of a class: what is sent to workers in its place.

    The class itself would make every worker import its module, and with SB3's Monitor torch.
    """
    return ("__main__" if cls.__module__ in _MAIN else cls.__module__, cls.__qualname__)


def env_is_wrapped(env: Any, names: Sequence[tuple[str, str]]) -> bool:
    """Tell whether a layer is an instance of a class so named, or of a subclass."""
    return any(name_of(cls) in names for layer in layers(env) for cls in type(layer).__mro__)


def render(env: Any) -> Any:
    """Give what the env's own render gives."""
    return env.render()
