"""Whether spaces are equal that were made in different processes: what all workers of a VecEnv must agree on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import spaces

_GENERATOR = "_np_random"  # of a space; where it stands does not make a space another one, as in Gymnasium's own __eq__


def alike(one: Any, other: Any) -> bool:
    """Tell whether two spaces (or attributes of spaces) are equal.

    Their class's own `__eq__` decides. A space class without one inherits object's, to which nothing that has been in
    another process is equal: such spaces are equal if they are of one class and pickle would write the same of both,
    random generators apart. That is compared item by item, and arrays by dtype, shape and values; what is in there
    that has no `__eq__` and is no space is equal to itself alone. So a difference is never overlooked; two equal spaces
    may be taken for different ones, which an `__eq__` of their own mends.
    """
    if one is other:
        return True
    if type(one) is not type(other):
        return _equal(one, other)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, dict):  # the order of a Dict space is that of its columns
        return list(one) == list(other) and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, np.ndarray):
        return _same_arrays(one, other)
    if isinstance(one, spaces.Space) and not _has_own_eq(type(one)):
        # In this order: Box's own compares large bounds within a tolerance, which takes seconds.
        return _alike_pickled(one, other) or _equal(one, other)
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
    return alike(one, other)


def _equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:  # of a foreign __eq__, or no truth to be had of what it gives
        return False


def _same_arrays(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if one.dtype.hasobject:
        return alike(one.tolist(), other.tolist())
    return one.tobytes() == other.tobytes()


def _has_own_eq(cls: type) -> bool:
    """Tell whether somebody has said what makes spaces of this class equal: Gymnasium's only know their parts'."""
    owner = next(base for base in cls.__mro__ if "__eq__" in vars(base))
    return owner is not object and not owner.__module__.startswith("gymnasium.spaces")


def _alike_pickled(one: spaces.Space[Any], other: spaces.Space[Any]) -> bool:
    try:
        return alike(_pickled(one), _pickled(other))
    except Exception:  # of a foreign __reduce__; RecursionError where spaces refer to each other
        return False


def _pickled(space: spaces.Space[Any]) -> list[Any]:
    """Give what pickle would write of a space: how it is made again, and its state but for the generator."""
    parts: list[Any] = []
    for part in space.__reduce_ex__(4):
        if isinstance(part, Iterator):
            parts.append(list(part))
        elif isinstance(part, dict):
            parts.append({key: value for key, value in part.items() if key != _GENERATOR})
        else:
            parts.append(part)
    return parts
