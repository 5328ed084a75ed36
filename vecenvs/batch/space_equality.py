"""Equality of spaces from different processes: all workers of a VecEnv must have equal ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import spaces

_GENERATOR = "_np_random"  # a space's attribute which does not count, as in Gymnasium's own __eq__


def same_space(one: Any, other: Any) -> bool:
    """Tell whether two spaces (or attributes of spaces) are equal.

    The `__eq__` of their class decides. A space class without one inherits object's, by which a space that comes from
    another process is never equal. Two such spaces are equal if they are of one class and pickle would write the same
    for both, apart from random generators. These states are compared item by item, arrays by dtype, shape and values.
    An object in them that is no space and has no `__eq__` is equal only to itself. So a difference is never overlooked,
    but equal spaces may be taken for different ones; an `__eq__` in their class cures that.
    """
    if one is other:
        return True
    if type(one) is not type(other):
        return _equal(one, other)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same_space, one, other))
    if isinstance(one, dict):  # the order of a Dict space is that of its columns
        return list(one) == list(other) and all(same_space(one[key], other[key]) for key in one)
    if isinstance(one, np.ndarray):
        return _same_arrays(one, other)
    if isinstance(one, spaces.Space) and not _has_own_eq(type(one)):
        # In this order: the __eq__ of Box compares bounds within a tolerance, which takes seconds for large ones.
        return _same_pickled(one, other) or _equal(one, other)
    return _equal(one, other)


def same_layout(one: Any, other: Any) -> bool:
    """Tell whether two spaces differ in their bounds at most: batches of both have the same dtypes and shapes."""
    if type(one) is not type(other):
        return False
    if isinstance(one, spaces.Dict):
        return list(one) == list(other) and all(same_layout(one[key], other[key]) for key in one)
    if isinstance(one, spaces.Tuple):
        return len(one) == len(other) and all(map(same_layout, one, other))
    if isinstance(one, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete)):
        return bool(one.shape == other.shape and one.dtype == other.dtype)
    return same_space(one, other)


def _equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:  # from a foreign __eq__, or from bool() of its result
        return False


def _same_arrays(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if one.dtype.hasobject:
        return same_space(one.tolist(), other.tolist())
    return one.tobytes() == other.tobytes()


def _has_own_eq(cls: type) -> bool:
    """Tell whether the class, or a base of it outside of Gymnasium, defines equality.

    The `__eq__` of Gymnasium's Dict and Tuple would compare inner spaces by theirs.
    """
    owner = next(base for base in cls.__mro__ if "__eq__" in vars(base))
    return owner is not object and not owner.__module__.startswith("gymnasium.spaces")


def _same_pickled(one: spaces.Space[Any], other: spaces.Space[Any]) -> bool:
    try:
        return same_space(_pickled(one), _pickled(other))
    except Exception:  # from a foreign __reduce__; RecursionError if spaces refer to each other
        return False


def _pickled(space: spaces.Space[Any]) -> list[Any]:
    """Return what pickle would write for a space, without its random generator."""
    parts: list[Any] = []
    for part in space.__reduce_ex__(4):
        if isinstance(part, Iterator):
            parts.append(list(part))
        elif isinstance(part, dict):
            parts.append({key: value for key, value in part.items() if key != _GENERATOR})
        else:
            parts.append(part)
    return parts
