"""Functions that workers run on one env: they read, write and call its attributes by name."""

from __future__ import annotations

import abc
import inspect
import operator
from collections.abc import Callable, Sequence
from typing import Any

from gymnasium import Env

_NOWHERE = object()
_MAIN = ("__main__", "__mp_main__")  # the caller's script, and the same in a spawned worker


class SlotLayer(abc.ABC):
    """A wrapper that keeps what belongs to a slot of a VecEnv, as a file does, and not to the env that serves it."""

    @abc.abstractmethod
    def exchange(self, other: Any) -> None:
        """Change what belongs to the slot with another wrapper of this class, whose env takes the place of this one."""


class SlotFn(abc.ABC):
    """An env function of one slot. Those of other slots may make the same env apart from what belongs to the slot."""

    @abc.abstractmethod
    def alike(self, other: Any) -> bool:
        """Tell whether another function makes the same env."""

    @abc.abstractmethod
    def of_spare(self) -> Callable[[], Any]:
        """Return a function that makes such an env for no slot."""


def check_name(name: Any) -> None:
    """Raise TypeError if `name` is not a string, or is empty."""
    if not isinstance(name, str) or not name:
        raise TypeError(f"name must be the name of an attribute or method of the envs, not {name!r}")


def name_for(function: Any) -> str:
    """Return the name of a function, or of the class of another callable."""
    return str(getattr(function, "__name__", type(function).__name__))


def layers(env: Any) -> list[Any]:
    """Return the wrappers from the outermost inwards, and last `env.unwrapped`, even if that has an `env` itself."""
    found = [env]
    while getattr(found[-1], "unwrapped", None) is not found[-1] and _is_env(getattr(found[-1], "env", None)):
        found.append(found[-1].env)
    return found


def _is_env(value: Any) -> bool:
    """Tell whether this is an env, perhaps of several agents (PettingZoo's have a base class of their own)."""
    return isinstance(value, Env) or hasattr(value, "possible_agents")


def get_attr(env: Any, name: str) -> Any:
    """Read an attribute of the outermost layer that has it; `name` may be dotted, as in "unwrapped.state"."""
    head, _, rest = name.partition(".")
    found = layers(env)
    for layer in found:
        if hasattr(layer, head):
            value = getattr(layer, head)
            return operator.attrgetter(rest)(value) if rest else value
    raise AttributeError(f"neither {type(found[-1]).__name__} nor its wrappers have an attribute {name!r}")


def set_attr(env: Any, name: str, value: Any, outermost: bool = False) -> None:
    """Write an attribute of the outermost layer that has it; of the bare env, or the `outermost`, if none has.

    A layer does not have an attribute that its `__getattr__` only reads from the env inside. `name` may be dotted: all
    but its last part is read by `get_attr`.
    """
    owner, _, last = name.rpartition(".")
    if owner:
        setattr(get_attr(env, owner), last, value)
        return
    found = layers(env)
    having = found[0 if outermost else -1]
    for layer in found:
        if _has(layer, name):
            having = layer
            if inspect.getattr_static(layer, name, _NOWHERE) is not _NOWHERE:
                break
    setattr(having, name, value)


def _has(layer: Any, name: str) -> bool:
    try:
        return hasattr(layer, name)
    except Exception:  # a property that cannot be read yet, perhaps because it has to be set first
        return True


def has_attr(env: Any, name: str) -> bool:
    """Tell whether `get_attr` finds the attribute."""
    try:
        get_attr(env, name)
    except AttributeError:
        return False
    return True


def env_method(env: Any, name: str, *args: Any, **kwargs: Any) -> Any:
    """Call a method of the outermost layer that has it."""
    if name == "seed" and not has_attr(env, name):  # envs of the old Gym had it
        raise AttributeError(
            f"{type(env.unwrapped).__name__} has no method 'seed', like all envs of Gymnasium: seed the envs by the "
            "VecEnv's own seed(...), which their next resets get, or by reset(seed=...)"
        )
    return get_attr(env, name)(*args, **kwargs)


def call_attr(env: Any, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Call an attribute, or return it if it is not callable, as Gymnasium's vector envs do."""
    attribute = env.get_wrapper_attr(name)
    return attribute(*args, **kwargs) if callable(attribute) else attribute


def set_wrapper_attr(env: Any, name: str, value: Any) -> None:
    """Set an attribute where Gymnasium's vector envs do: where it is found, else on the outermost wrapper."""
    env.set_wrapper_attr(name, value)


def mark_as_reset(env: Any) -> None:
    """Do nothing: calling this on an env that was never reset allows it to be stepped, as SB3 does."""


def counts_as_reset(function: Any, args: Sequence[Any]) -> bool:
    """Tell whether an env can be stepped after a call of this function."""
    return function is mark_as_reset or (function is env_method and args[:1] == ("reset",))


def class_name(cls: type) -> tuple[str, str]:
    """Return the module and qualified name of a class, which are sent to workers in its place.

    The class itself would make every worker import its module, and with SB3's Monitor also torch.
    """
    return ("__main__" if cls.__module__ in _MAIN else cls.__module__, cls.__qualname__)


def env_is_wrapped(env: Any, names: Sequence[tuple[str, str]]) -> bool:
    """Tell whether a layer is an instance of a class with one of these names."""
    return any(class_name(cls) in names for layer in layers(env) for cls in type(layer).__mro__)


def render(env: Any) -> Any:
    """Return what the env's own `render` returns."""
    return env.render()


_WRITER = ("vecenvs.wrappers.results_writer", "ResultsWriter")


def writers_of(layer: Any) -> list[Any]:
    """Return what writes the monitor file of a Monitor or VecMonitor: one, or none."""
    writer = getattr(layer, "__dict__", {}).get("results_writer")
    return [writer] if class_name(type(writer)) == _WRITER else []


def file_lengths(env: Any) -> dict[str, int]:
    """Return the lengths of the env's monitor files, by their paths."""
    return {writer.path: writer.length for layer in layers(env) for writer in writers_of(layer)}


def cut_files(env: Any, lengths: dict[str, int]) -> None:
    """Remove what the env's monitor files have beyond these lengths."""
    for writer in [writer for layer in layers(env) for writer in writers_of(layer)]:
        writer.cut(lengths.get(writer.path))


SETTERS: dict[str, Callable[..., Any]] = {each.__name__: each for each in (set_attr, set_wrapper_attr)}
# What changes nothing on which an env's steps depend.
READS = frozenset({get_attr, has_attr, env_is_wrapped, render, mark_as_reset, file_lengths, cut_files})
