"""Copy values that pass between a caller and an env in the same process, show them in errors, make arrays of them."""

from __future__ import annotations

import copy
import reprlib
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Arrays of these dtypes hold Python's own numbers.
PYTHON_TYPES: dict[np.dtype[Any], type] = {np.dtype(float): float, np.dtype(np.int64): int, np.dtype(bool): bool}


def copy_containers(value: Any) -> Any:
    """Copy the containers and arrays in a value, so that a later change on one side does not show on the other.

    Other objects are returned as they are, and so is a container of a foreign class that cannot be copied. ValueError
    for one that is nested too deep.
    """
    try:
        return _copied(value)
    except RecursionError:  # it may contain itself
        try:
            return _copied_once(value, {})
        except RecursionError:
            raise ValueError(f"{shown(value)} is nested too deep to be copied: make it flatter") from None


def _copied(value: Any) -> Any:
    kind = type(value)
    if kind in IMMUTABLE:
        return value
    if kind is np.ndarray and value.dtype != object:
        return value.copy()
    if kind is dict:
        if IMMUTABLE.issuperset(map(type, value.values())):
            return value.copy()
        return {key: _copied(item) for key, item in value.items()}
    if kind is list:
        return [_copied(item) for item in value]
    if kind is tuple:
        return tuple(_copied(item) for item in value)
    if isinstance(value, _CONTAINERS):
        try:
            return copy.deepcopy(value)
        except Exception:  # from a foreign __deepcopy__ or __reduce__
            return value
    return value


def _copied_once(value: Any, copies: dict[int, Any]) -> Any:
    """Copy each container once: where it contains itself, its copy does, too."""
    kind = type(value)
    if id(value) in copies:
        return copies[id(value)]
    if kind is dict:
        copies[id(value)] = copied = {}
        for key, item in value.items():
            copied[key] = _copied_once(item, copies)
        return copied
    if kind is list or kind is tuple:
        items: list[Any] = []
        if kind is list:
            copies[id(value)] = items
        for item in value:
            items.append(_copied_once(item, copies))  # noqa: PERF401  the list may be in an item
        return items if kind is list else tuple(items)
    return _copied(value)


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


def as_array(value: Any) -> NDArray[Any]:
    """Return the values of a tensor, on any device, as an array, which shares its memory where that is possible."""
    if isinstance(value, (np.ndarray, list)):
        return np.asarray(value)
    if hasattr(value, "detach") and hasattr(
        value, "cpu"
    ):  # torch's: it may require a gradient, or be on another device
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":  # which NumPy does not have; float32 holds all of its values
            value = value.float()
    if hasattr(value, "__dlpack__") and not isinstance(value, np.generic):
        try:
            return np.from_dlpack(value)
        except (BufferError, TypeError, RuntimeError, ValueError):  # bool tensors of some libraries, other devices
            pass
    return np.asarray(value)
