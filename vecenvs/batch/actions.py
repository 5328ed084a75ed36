"""Batches of actions as callers pass them."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from vecenvs.batch.layout import FIXED, Array, Leaf, SpaceLayout, cast_rows
from vecenvs.batch.values import as_array


def parse_actions(layout: SpaceLayout, actions: Any, n: int) -> list[Array]:
    """Check a batch of n actions and return it leaf by leaf, as arrays (n, *leaf.shape) which the leaf's dtype holds.

    A list has one action per env; an array, dict or tuple is the batched structure, as in Gymnasium. Raise TypeError
    for values that the space's dtype does not hold, ValueError for a wrong number or shape.
    """
    if isinstance(actions, list) and len(actions) != n:
        raise ValueError(f"{len(actions)} actions for {n} envs: give one action per env")
    if n == 0 and isinstance(actions, list):  # of no env: it has no shape
        return [np.zeros((0, *leaf.shape), leaf.dtype) for leaf in layout.leaves]
    if layout.is_flat and not layout.has_objects:
        return [_parse_leaf(layout.leaves[0], actions, n)]
    if layout.is_flat:
        return [_object_row(actions, n)]
    if isinstance(actions, list):
        flat = [_flatten_action(layout, action, f"action {i}") for i, action in enumerate(actions)]
        columns: list[Any] = [list(column) for column in zip(*flat, strict=True)]
    else:
        columns = _flatten_action(layout, actions, "the batch of actions")
    return [
        _object_row(column, n) if leaf.is_object else _parse_leaf(leaf, column, n)
        for leaf, column in zip(layout.leaves, columns, strict=True)
    ]


def whole_numbers(space: spaces.Space[Any], actions: Any) -> Any:
    """Return floats that are whole numbers as the integers of the space, and anything else as it is.

    Stable-Baselines3 samples MultiBinary actions as floats, and policies for a Box of integers return floats.
    """
    if type(actions) is np.ndarray and actions.dtype.kind != "f":  # nearly always
        return actions
    if isinstance(space, FIXED) and np.dtype(space.dtype).kind in "biu":
        try:
            given = as_array(actions)
        except ValueError:  # rows of different shapes
            return actions
        if given.dtype.kind == "f":
            with np.errstate(invalid="ignore"):
                integers = given.astype(space.dtype)
            if np.array_equal(integers, given):
                return integers
    return actions


def _parse_leaf(leaf: Leaf, column: Any, n: int) -> Array:
    try:
        given = as_array(column)
    except ValueError:
        raise ValueError(f"actions{leaf} have rows of different shapes: every env takes {leaf.shape}") from None
    if given.ndim == 0:
        raise TypeError(f"actions{leaf} must be a batch, one row for each of {n} envs, not {column!r}")
    if given.shape[:1] != (n,) or given.shape[1:] != leaf.shape:
        raise ValueError(
            f"actions{leaf} have shape {given.shape}, but {n} envs take {(n, *leaf.shape)}: "
            "one row per env, each of the action space's shape"
        )
    if given.dtype == leaf.dtype:
        return given
    rows = cast_rows(f"actions{leaf}", given, leaf)
    try:
        with np.errstate(over="raise"):
            return rows.astype(leaf.dtype)
    except FloatingPointError:
        raise ValueError(f"actions{leaf} have numbers too large for the space's dtype {leaf.dtype}") from None


def _flatten_action(layout: SpaceLayout, action: Any, what: str) -> list[Any]:
    try:
        return layout.flatten(action)
    except (TypeError, ValueError) as exc:
        raise type(exc)(f"{what} does not fit the action space: {exc}") from None


def _object_row(values: Any, n: int) -> Array:
    if isinstance(values, str) or not hasattr(values, "__len__"):
        raise TypeError(f"actions must be a sequence of {n} values, one per env, not {type(values).__name__}")
    if len(values) != n:
        raise ValueError(f"{len(values)} actions for {n} envs: give one action per env")
    row = np.empty(n, dtype=object)
    for i, value in enumerate(values):
        row[i] = value
    return row
