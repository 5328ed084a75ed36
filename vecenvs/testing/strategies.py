"""Hypothesis strategies for spaces of any kind and nesting."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from hypothesis import strategies as st

SHAPES = st.lists(st.integers(1, 3), max_size=3).map(tuple)
FULL_SHAPES = SHAPES.filter(len)
FLOATS = st.sampled_from([np.float16, np.float32, np.float64])
INTEGERS = st.sampled_from([np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64])


def boxes() -> st.SearchStrategy[spaces.Space[Any]]:
    """Return a strategy for boxes of float, integer and bool dtypes, of any shape, () among them."""
    truth: Any = np.bool_  # Gymnasium takes it, its annotation does not
    return st.one_of(
        st.builds(lambda shape, dtype: spaces.Box(-1.0, 1.0, shape, dtype), SHAPES, FLOATS),
        st.builds(lambda shape, dtype: spaces.Box(-np.inf, np.inf, shape, dtype), SHAPES, FLOATS),
        st.builds(lambda shape, dtype: spaces.Box(0, 100, shape, dtype), SHAPES, INTEGERS),
        st.builds(lambda shape: spaces.Box(0, 1, shape, truth), SHAPES),
    )


def arrays() -> st.SearchStrategy[spaces.Space[Any]]:
    """Return a strategy for all spaces whose values are arrays or scalars of one shape."""
    sizes = st.integers(1, 9)
    return st.one_of(
        boxes(),
        st.builds(lambda n, start: spaces.Discrete(n, start=start), sizes, st.integers(-3, 3)),
        st.builds(lambda n, dtype: spaces.Discrete(n, dtype=dtype), sizes, st.sampled_from([np.int32, np.uint8])),
        st.builds(lambda nvec: spaces.MultiDiscrete(nvec), st.lists(sizes, min_size=1, max_size=3)),
        st.builds(lambda shape: spaces.MultiDiscrete(np.full(shape, 4), dtype=np.int32), FULL_SHAPES),
        st.builds(lambda shape: spaces.MultiBinary(shape), FULL_SHAPES),
    )


def objects() -> st.SearchStrategy[spaces.Space[Any]]:
    """Return a strategy for spaces whose values have no fixed shape."""
    item = st.sampled_from([spaces.Discrete(3), spaces.Box(0.0, 1.0, (2,), np.float32)])
    edges = st.sampled_from([None, spaces.Discrete(2)])
    return st.one_of(
        st.builds(lambda length: spaces.Text(length), st.integers(1, 5)),
        st.builds(lambda space, stack: spaces.Sequence(space, stack=stack), item, st.booleans()),
        st.builds(lambda edge: spaces.Graph(spaces.Box(0.0, 1.0, (2,)), edge), edges),
        st.builds(lambda first, second: spaces.OneOf((first, second)), item, item),
    )


def nested(max_leaves: int = 6) -> st.SearchStrategy[spaces.Space[Any]]:
    """Return a strategy for any of these spaces, also within Dict and Tuple spaces, to any depth.

    Args:
        max_leaves: the largest number of spaces that are neither Dict nor Tuple.

    Returns:
        The strategy.
    """
    keys = st.text("abcxyz_", min_size=1, max_size=3)
    return st.recursive(
        st.one_of(arrays(), objects()),
        lambda inner: st.one_of(
            st.builds(lambda d: spaces.Dict(d), st.dictionaries(keys, inner, min_size=1, max_size=3)),
            st.builds(lambda t: spaces.Tuple(t), st.lists(inner, min_size=1, max_size=3)),
        ),
        max_leaves=max_leaves,
    )
