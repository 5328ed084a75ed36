"""Copy values that pass between a caller and an env in the same process, and show them in error messages."""

from __future__ import annotations

import copy
import reprlib
from collections import deque
from typing import Any

import numpy as np


def copy_containers(value: Any) -> Any:
    """Copy the containers and arrays in a value, so that a later change on one side does not show on the other.

    Other objects are returned as they are, and so is a container of a foreign class that cannot be copied.
    """
    kind = type(value)
    if kind in IMMUTABLE:
        return value
    if kind is np.ndarray and value.dtype != object:
        return value.copy()
    if kind is dict:
        if IMMUTABLE.issuperset(map(type, value.values())):
            return value.copy()
        return {key: copy_containers(item) for key, item in value.items()}
    if kind is list:
        return [copy_containers(item) for item in value]
    if kind is tuple:
        return tuple(copy_containers(item) for item in value)
    if isinstance(value, _CONTAINERS):
        try:
            return copy.deepcopy(value)
        except Exception:  # from a foreign __deepcopy__ or __reduce__
            return value
    return value


def shown(value: Any) -> str:
    """Return a short repr of a value of any class, for an error message."""
    try:
        return reprlib.repr(value)
    except Exception as problem:  # whatever a foreign __repr__ raises
        return f"a {type(value).__name__} whose __repr__ raises {type(problem).__name__}"


IMMUTABLE: frozenset[type] = frozenset(
    {bool, int, float, complex, str, bytes, type(None)} | {np.dtype(code).type for code in "?bhilqBHILQefdgFDG"}
)
_CONTAINERS = (dict, list, tuple, set, frozenset, deque, bytearray, np.ndarray)
