"""Attributes and calls of an object inside an actor: attributes by a dotted name such as "policy.epsilon".

An exception of a property or a function is an answer. SystemExit would end the actor, so it becomes a RuntimeError.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import cloudpickle


def read_attribute(owner: Any, name: str) -> Any:
    """Return the attribute `name` of `owner`. AttributeError names the missing part, TypeError what cannot be sent."""
    remedy = f"read parts of it, as by get_attr('{name}.part'), or run a function in its process by call(...)"
    return _check_picklable(_find(owner, name), repr(name), remedy)


def write_attribute(owner: Any, name: str, value: Any) -> None:
    """Set an existing attribute: a misspelt name is an AttributeError."""
    path, _, last = name.rpartition(".")
    target = _find(owner, path) if path else owner
    with _catch_exit(name):
        if not hasattr(target, last):
            raise AttributeError(f"{type(target).__name__!r} object has no attribute {last!r}")
        setattr(target, last, value)


def pickle_call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """Pickle `function` with all its arguments except the first, which is the object in the actor."""
    data: bytes = cloudpickle.dumps(partial(_call, function, args, kwargs), protocol=5)
    return data


def run_pickled_call(owner: Any, function: bytes) -> Any:
    """Return the result of a call by `pickle_call` with `owner`; TypeError if the result cannot be sent."""
    with _catch_exit("the function"):
        result = cloudpickle.loads(function)(owner)
    return _check_picklable(result, "what the function returned", "return numbers, arrays or text of it")


def _call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], owner: Any) -> Any:
    return function(owner, *args, **kwargs)


def _find(owner: Any, name: str) -> Any:
    with _catch_exit(name):
        return operator.attrgetter(name)(owner)


def _check_picklable(value: Any, what: str, remedy: str) -> Any:
    try:
        cloudpickle.dumps(value, protocol=5)
    except Exception as exc:  # a __reduce__ may raise anything
        kind, why = type(value).__name__, f"{type(exc).__name__}: {exc}"
        raise TypeError(f"{what} is a {kind}, which cannot leave its process ({why}): {remedy}") from None
    return value


@contextlib.contextmanager
def _catch_exit(what: str) -> Iterator[None]:
    try:
        yield
    except SystemExit as exc:
        raise RuntimeError(f"{what} raised SystemExit({exc.code!r})") from exc
