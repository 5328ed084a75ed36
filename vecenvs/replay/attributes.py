"""Reading and writing attributes of an object by a dotted name, as in "policy.epsilon"."""

from __future__ import annotations

import operator
from typing import Any


def read(owner: Any, name: str) -> Any:
    """Follow `name` from `owner`. AttributeError names the part that is missing."""
    return operator.attrgetter(name)(owner)


def write(owner: Any, name: str, value: Any) -> None:
    """Set the last part of `name`, which must be there already: a misspelt name is an AttributeError."""
    path, _, last = name.rpartition(".")
    target = read(owner, path) if path else owner
    if not hasattr(target, last):
        raise AttributeError(f"{type(target).__name__!r} object has no attribute {last!r}")
    setattr(target, last, value)
