"""What actors are asked by name: attributes of an object by a dotted name, as in "policy.epsilon"; calls.

What a property or a function raises is an answer. SystemExit among it would end the actor, so it travels as an error.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterator
from typing import Any

import cloudpickle


def read(owner: Any, name: str) -> Any:
    """Follow `name` from `owner`. AttributeError names the part that is missing."""
    with _answering(name):
        return operator.attrgetter(name)(owner)


def write(owner: Any, name: str, value: Any) -> None:
    """Set the last part of `name`, which must be there already: a misspelt name is an AttributeError."""
    path, _, last = name.rpartition(".")
    target = read(owner, path) if path else owner
    with _answering(name):
        if not hasattr(target, last):
            raise AttributeError(f"{type(target).__name__!r} object has no attribute {last!r}")
        setattr(target, last, value)


def apply(owner: Any, function: bytes) -> Any:
    """Call a pickled function with `owner`."""
    with _answering("the function"):
        return cloudpickle.loads(function)(owner)


@contextlib.contextmanager
def _answering(what: str) -> Iterator[None]:
    try:
        yield
    except SystemExit as exc:
        raise RuntimeError(f"{what} raised SystemExit({exc.code!r})") from exc
