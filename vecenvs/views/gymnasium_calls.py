"""What the Gymnasium view runs where an env lives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

RESERVED = ("reset", "step", "close")


def check_callable(name: str) -> None:
    """Refuse what has a method of its own: called past it, rows and envs would no longer agree."""
    if name in RESERVED:
        raise ValueError(f"call({name!r}): use the method {name}() of the vector env instead")


def call_attribute(env: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call the attribute of the outermost layer that has it; read it if it is not callable."""
    attribute = env.get_wrapper_attr(name)
    return attribute(*args, **kwargs) if callable(attribute) else attribute


def set_attribute(env: Any, name: str, value: Any) -> None:
    """Write the attribute where it is found; the outermost wrapper gets it if nothing has it."""
    env.set_wrapper_attr(name, value)
