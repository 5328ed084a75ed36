"""Bit-for-bit comparison of observations, batches and infos."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

LONG = 200
"""Items of the largest array, text or bytes that a message shows whole."""

_ARRAY_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


def stack(space: spaces.Space[Any], values: Sequence[Any]) -> Any:
    """Batch one value per env as a VecEnv does.

    Args:
        space: the space of the values.
        values: one value for each of n envs.

    Returns:
        For Box, Discrete, MultiDiscrete and MultiBinary an array (n, ...) of the space's dtype; for Dict and Tuple a
        dict or tuple of batches; for other spaces an object array (n,).
    """
    if isinstance(space, spaces.Dict):
        return {key: stack(sub, [value[key] for value in values]) for key, sub in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(stack(sub, [value[k] for value in values]) for k, sub in enumerate(space.spaces))
    if isinstance(space, _ARRAY_SPACES):
        assert space.shape is not None
        return np.array(values, dtype=space.dtype).reshape(len(values), *space.shape)
    batch = np.empty(len(values), dtype=object)
    for row, value in enumerate(values):
        batch[row] = value
    return batch


def rows_at(batch: Any, rows: Any) -> Any:
    """Index every array of a nested batch: return the same dicts and tuples, of these rows."""
    if isinstance(batch, dict):
        return {key: rows_at(part, rows) for key, part in batch.items()}
    return tuple(rows_at(part, rows) for part in batch) if isinstance(batch, tuple) else batch[rows]


def difference(actual: Any, expected: Any, where: str = "value") -> str | None:
    """Compare two nested values by type, keys, dtype, shape and every bit.

    Args:
        actual: the value to check.
        expected: the value that it should equal.
        where: the name of the value in the result.

    Returns:
        The first difference in words, or None if the values are the same.
    """
    if isinstance(expected, np.ndarray) and expected.dtype != object:
        if expected.shape == () and isinstance(actual, np.generic):
            actual = np.asarray(actual)  # one number, as an array or not: the same bits
        return _array_difference(actual, expected, where)
    if type(actual) is not type(expected):
        return f"{where}: {type(actual).__name__} {actual!r} instead of {type(expected).__name__} {expected!r}"
    if isinstance(expected, dict):
        if set(actual) != set(expected):
            return f"{where}: keys {sorted(map(str, actual))} instead of {sorted(map(str, expected))}"
        parts = [(f"{where}[{key!r}]", actual[key], expected[key]) for key in expected]
    elif isinstance(expected, (tuple, list, np.ndarray)):
        if len(actual) != len(expected):
            return f"{where}: length {len(actual)} instead of {len(expected)}"
        parts = [(f"{where}[{k}]", *pair) for k, pair in enumerate(zip(actual, expected, strict=True))]
    elif isinstance(expected, (float, np.generic)):
        return _array_difference(np.asarray(actual), np.asarray(expected), where)
    elif isinstance(expected, (str, bytes)) and len(expected) > LONG and actual != expected:
        if len(actual) != len(expected):
            return f"{where}: length {len(actual)} instead of {len(expected)}"
        return _long_difference([mine != theirs for mine, theirs in zip(actual, expected, strict=True)], where)
    else:
        return None if actual == expected else f"{where}: {actual!r} instead of {expected!r}"
    found = (difference(ours, theirs, path) for path, ours, theirs in parts)
    return next((text for text in found if text is not None), None)


def assert_same(actual: Any, expected: Any, where: str = "value") -> None:
    """Check that two nested values are the same bit for bit.

    Args:
        actual: the value to check.
        expected: the value that it should equal.
        where: the name of the value in the error.

    Raises:
        AssertionError: they differ. The message names the first difference.
    """
    text = difference(actual, expected, where)
    if text is not None:
        raise AssertionError(text)


def _array_difference(actual: Any, expected: Any, where: str) -> str | None:
    if not isinstance(actual, np.ndarray):
        return f"{where}: {type(actual).__name__} {actual!r} instead of an array"
    if (actual.dtype, actual.shape) != (expected.dtype, expected.shape):
        return f"{where}: {actual.dtype} {actual.shape} instead of {expected.dtype} {expected.shape}"
    if actual.tobytes() == expected.tobytes():
        return None
    if actual.size > LONG:
        size = actual.dtype.itemsize
        words = [np.frombuffer(array.tobytes(), np.uint8).reshape(-1, size) for array in (actual, expected)]
        return _long_difference((words[0] != words[1]).any(axis=1), where)
    return f"{where}: {actual.tolist()} instead of {expected.tolist()}"


def _long_difference(differs: Sequence[bool] | np.ndarray[Any, Any], where: str) -> str:
    places = np.flatnonzero(np.asarray(differs))
    return f"{where}: {len(places)} of {len(differs)} items differ, from {places[0]} to {places[-1]}"
