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
    """Follow `name` from `owner`, for the caller. AttributeError names the part that is missing."""
    remedy = f"read parts of it, as by get_attr('{name}.part'), or have call(...) run a function where it is"
    return portable(_find(owner, name), repr(name), remedy)


def _find(owner: Any, name: str) -> Any:
    with _answering(name):
        return operator.attrgetter(name)(owner)


def write(owner: Any, name: str, value: Any) -> None:
    """Set the last part of `name`, which must be there already: a misspelt name is an AttributeError."""
    path, _, last = name.rpartition(".")
    target = _find(owner, path) if path else owner
    with _answering(name):
        if not hasattr(target, last):
            raise AttributeError(f"{type(target).__name__!r} object has no attribute {last!r}")
        setattr(target, last, value)


def portable(value: Any, what: str, remedy: str) -> Any:
    """Return the value, to be sent to the caller; TypeError with the remedy if no pickle takes it."""
    try:
        cloudpickle.dumps(value, protocol=5)
    except Exception as exc:  # whatever a foreign __reduce__ raises
        kind, why = type(value).__name__, f"{type(exc).__name__}: {exc}"
        raise TypeError(f"{what} is a {kind}, which cannot leave its process ({why}): {remedy}") from None
    return value


def apply(owner: Any, function: bytes) -> Any:
    """Call a pickled function with `owner`, for the caller."""
    with _answering("the function"):
        result = cloudpickle.loads(function)(owner)
    return portable(result, "what the function returned", "return numbers, arrays or text of it")


@contextlib.contextmanager
def _answering(what: str) -> Iterator[None]:
    try:
        yield
    except SystemExit as exc:
        raise RuntimeError(f"{what} raised SystemExit({exc.code!r})") from exc
