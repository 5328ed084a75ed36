"""Layouts: the leaves of a Gymnasium space, and how its values are taken apart into them.

A *leaf* is a part of the space with one dtype and one fixed shape: Box, Discrete, MultiDiscrete, MultiBinary. Dict
and Tuple are taken apart, at any depth. A space without a fixed shape (Text, Sequence, Graph, OneOf, a custom space)
is an object leaf: its column is a numpy object array, which transports pickle.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

FIXED = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
OBJECT = np.dtype(object)

Array = NDArray[Any]


class Leaf(NamedTuple):
    """One leaf: its place in a value, and the dtype and shape of one row of its column."""

    path: tuple[str | int, ...]
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def is_object(self) -> bool:
        return self.dtype == OBJECT

    def __str__(self) -> str:
        return "".join(f"[{key!r}]" for key in self.path)


class SpaceLayout:
    """The leaves of one space. It turns values into lists of their leaves' values and back."""

    def __init__(self, space: spaces.Space[Any]) -> None:
        self.space = space
        self.leaves = tuple(_leaves_of(space, ()))
        self.is_flat = len(self.leaves) == 1 and not self.leaves[0].path
        self.row_bytes = sum(leaf.dtype.itemsize * math.prod(leaf.shape) for leaf in self.leaves)
        self.has_objects = any(leaf.is_object for leaf in self.leaves)
        self._take_apart = _taker_of(space)
        self._put_together = _maker_of(space)

    def flatten(self, value: Any) -> list[Any]:
        """Take a value (or a batch) apart into its leaves. Raise ValueError for a missing or extra key."""
        return self._flattened("value", value, exact=True)

    def observed(self, value: Any) -> list[Any]:
        """Take an env's observation apart. Keys that the space does not have are ignored, as by Gymnasium and SB3."""
        return self._flattened("observation", value, exact=False)

    def _flattened(self, what: str, value: Any, *, exact: bool) -> list[Any]:
        if self._take_apart is None:
            return [value]
        parts: list[Any] = []
        if not self._take_apart(value, parts):
            parts.clear()
            _flatten(self.space, value, what, parts, exact)  # slower: names what is wrong, takes subclasses of dict
        return parts

    def unflatten(self, parts: Sequence[Any]) -> Any:
        """Put leaves together again, in plain dicts and tuples."""
        return parts[0] if self.is_flat else self._put_together(iter(parts))

    def set_row(self, batch: Any, row: int, parts: Sequence[Any]) -> None:
        """Write one row of a batch, from a list of its leaves; objects are copied."""
        for array, part, leaf in zip(self.flatten(batch), parts, self.leaves, strict=True):
            array[row] = copy.deepcopy(part) if leaf.is_object else part

    def copied(self, value: Any) -> Any:
        """Copy an observation that an env may go on changing, as arrays of the space's dtypes."""
        parts = zip(self.observed(value), self.leaves, strict=True)
        return self.unflatten([coerce(part, leaf) for part, leaf in parts])


def casting(dtype: np.dtype[Any]) -> Literal["same_kind", "safe"]:
    """Return numpy's casting rule for this dtype: floats may be rounded, integers must keep their values."""
    return "same_kind" if dtype.kind in "fc" else "safe"


def cast_rows(what: str, given: Array, leaf: Leaf) -> Array:
    """Return rows in a dtype that the leaf's column takes. TypeError, which calls them `what`, if it loses values."""
    if not given.size or np.can_cast(given.dtype, leaf.dtype, casting(leaf.dtype)):
        return given
    cast = given.astype(leaf.dtype) if given.dtype.kind in "biu" else None
    if cast is None or not np.array_equal(cast, given):
        raise TypeError(
            f"{what} have dtype {given.dtype}, but {leaf.dtype} is needed, which does not hold all of them: "
            "convert them first"
        )
    return cast


def coerce(value: Any, leaf: Leaf) -> Any:
    """Copy one leaf of an observation as the leaf's dtype.

    Raise ValueError for another shape or numbers too large for the dtype, TypeError if the cast would change values.
    """
    if leaf.is_object:
        return copy.deepcopy(value)
    given = np.asarray(value)
    if given.shape != leaf.shape:
        is_object = given.dtype == object and not given.ndim  # a dict, or None
        found = f"is a {type(given.item()).__name__}" if is_object else f"has shape {given.shape}"
        raise ValueError(f"observation{leaf} {found}, its space says {leaf.shape}")
    if given.dtype == leaf.dtype:
        return given.copy() if leaf.shape else given[()]
    try:
        with np.errstate(over="raise"):
            cast = given.astype(leaf.dtype) if given.dtype.kind in "biuf" else None
    except FloatingPointError:
        raise ValueError(f"observation{leaf} has numbers too large for its space's dtype {leaf.dtype}") from None
    if cast is None or not (_can_cast(given.dtype, leaf.dtype) or np.array_equal(cast, given)):
        raise TypeError(f"observation{leaf} has dtype {given.dtype}, its space says {leaf.dtype}")
    return cast if leaf.shape else cast[()]


@functools.cache
def _can_cast(given: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    return np.can_cast(given, wanted, casting(wanted))


def _leaves_of(space: spaces.Space[Any], path: tuple[str | int, ...]) -> list[Leaf]:
    if isinstance(space, spaces.Dict):
        return [leaf for key, sub in space.spaces.items() for leaf in _leaves_of(sub, (*path, key))]
    if isinstance(space, spaces.Tuple):
        return [leaf for key, sub in enumerate(space.spaces) for leaf in _leaves_of(sub, (*path, key))]
    if isinstance(space, FIXED) and space.shape is not None and space.dtype is not None:
        return [Leaf(path, np.dtype(space.dtype), tuple(space.shape))]
    return [Leaf(path, OBJECT, ())]


def _taker_of(space: spaces.Space[Any]) -> Callable[[Any, list[Any]], bool] | None:
    """Make a fast function that takes apart values which are plain dicts, tuples and lists; None for a leaf.

    It appends the leaves' values to a list and returns True, or returns False for any other value.
    """
    if isinstance(space, spaces.Dict):
        kinds: frozenset[type] = frozenset({dict})
        items: list[Any] = [(key, _taker_of(sub)) for key, sub in space.spaces.items()]
    elif isinstance(space, spaces.Tuple):
        kinds = frozenset({tuple, list})
        items = [(position, _taker_of(sub)) for position, sub in enumerate(space.spaces)]
    else:
        return None
    count = len(items)

    def take(value: Any, parts: list[Any]) -> bool:
        if type(value) not in kinds or len(value) != count:
            return False
        for key, inner in items:
            try:
                part = value[key]
            except KeyError:
                return False
            if inner is None:
                parts.append(part)
            elif not inner(part, parts):
                return False
        return True

    return take


def _flatten(space: spaces.Space[Any], value: Any, where: str, parts: list[Any], exact: bool) -> None:
    if isinstance(space, spaces.Dict):
        keys = set(value.keys()) if hasattr(value, "keys") else None
        if keys is None or not keys >= set(space.spaces) or (exact and len(keys) > len(space.spaces)):
            has = f"is {type(value).__name__}" if keys is None else f"has keys {sorted(map(str, keys))}"
            raise ValueError(f"{where} {has}, its Dict space has keys {sorted(map(str, space.spaces))}")
        for key, sub in space.spaces.items():
            _flatten(sub, value[key], f"{where}[{key!r}]", parts, exact)
    elif isinstance(space, spaces.Tuple):
        if not isinstance(value, (tuple, list)) or len(value) != len(space.spaces):
            raise ValueError(f"{where} must be a tuple of {len(space.spaces)}, as its space says")
        for position, sub in enumerate(space.spaces):
            _flatten(sub, value[position], f"{where}[{position!r}]", parts, exact)
    else:
        parts.append(value)


def _maker_of(space: spaces.Space[Any]) -> Callable[[Iterator[Any]], Any]:
    """Make a function that puts values together from an iterator over their leaves."""
    if isinstance(space, spaces.Dict):
        items = [(key, _maker_of(sub)) for key, sub in space.spaces.items()]
        return lambda parts: {key: make(parts) for key, make in items}
    if isinstance(space, spaces.Tuple):
        makers = [*map(_maker_of, space.spaces)]
        return lambda parts: tuple([make(parts) for make in makers])
    return next
