"""Convert batches between a VecEnv's form and Gymnasium's, and pick rows of them."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_differing_spaces, batch_space

from vecenvs.batch.layout import Array, SpaceLayout
from vecenvs.vec_env import VecEnv


class BatchConverter:
    """Converts batches of one space between a VecEnv's form and Gymnasium's.

    The forms differ where values have no fixed shape (Text, Sequence, Graph, OneOf, custom spaces): a VecEnv has an
    object array (n,), Gymnasium a tuple of n values. All other arrays are passed on without a copy.
    """

    def __init__(self, space: spaces.Space[Any]) -> None:
        self.layout = SpaceLayout(space)
        self.same = not self.layout.has_objects

    def to_gymnasium(self, batch: Any) -> Any:
        """Return a VecEnv's batch in Gymnasium's form."""
        if self.same:
            return batch
        parts = self.layout.flatten(batch)
        leaves = self.layout.leaves
        return self.layout.unflatten([tuple(p) if leaf.is_object else p for p, leaf in zip(parts, leaves, strict=True)])

    def from_gymnasium(self, batch: Any, *, copy: bool) -> Any:
        """Return Gymnasium's batch in a VecEnv's form; `copy=False` copies only where the form or the dtype differs."""
        parts = []
        for part, leaf in zip(self.layout.flatten(batch), self.layout.leaves, strict=True):
            if leaf.is_object:
                row = np.empty(len(part), dtype=object)
                for i, value in enumerate(part):
                    row[i] = value
                parts.append(row)
            else:
                parts.append(np.array(part, leaf.dtype, copy=True if copy else None))
        return self.layout.unflatten(parts)

    def patched(self, batch: Any, indices: Any, rows: Any) -> Any:
        """Return a copy of a VecEnv's batch in which the rows at `indices` are replaced by `rows`."""
        parts: list[Array] = [part.copy() for part in self.layout.flatten(batch)]
        for part, row in zip(parts, self.layout.flatten(rows), strict=True):
            part[indices] = row
        return self.layout.unflatten(parts)

    def copied(self, batch: Any) -> Any:
        """Return a copy of a VecEnv's batch, a deep one of its objects."""
        leaves = zip(self.layout.flatten(batch), self.layout.leaves, strict=True)
        return self.layout.unflatten([deepcopy(part) if leaf.is_object else part.copy() for part, leaf in leaves])

    def rows(self, batch: Any, indices: Any) -> Any:
        """Return some rows of a VecEnv's batch, as a batch."""
        return self.layout.unflatten([part[indices] for part in self.layout.flatten(batch)])

    def values(self, batch: Any, indices: Any) -> list[Any]:
        """Return copies of some rows of a VecEnv's batch, as a list of values of the space."""
        parts = [list(part[indices]) for part in self.layout.flatten(batch)]  # indexing by a list has copied
        rows = parts[0] if self.layout.is_flat else [self.layout.unflatten(row) for row in zip(*parts, strict=True)]
        return rows if self.same else [self.layout.copied(row) for row in rows]

    def empty(self) -> Any:
        """Return a VecEnv's batch without rows."""
        return self.layout.unflatten([np.empty((0, *leaf.shape), leaf.dtype) for leaf in self.layout.leaves])


def observation_batch_space(vec: VecEnv) -> spaces.Space[Any]:
    """Return the space of a batch of observations; the envs' spaces may differ in their bounds."""
    bare = vec.unwrapped
    if getattr(bare, "observation_mode", "same") == "same" or vec.observation_space is not bare.observation_space:
        return batch_space(vec.observation_space, vec.num_envs)
    return batch_differing_spaces(vec.get_attr("observation_space"))
