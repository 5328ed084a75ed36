"""Convert a VecEnv's batches to Gymnasium's form."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from gymnasium import spaces
from gymnasium.vector.utils import batch_differing_spaces, batch_space

from vecenvs.batch.layout import Array, SpaceLayout
from vecenvs.vec_env import VecEnv


class BatchConverter:
    """Converts batches of one space from a VecEnv's form to Gymnasium's.

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

    def replace_rows(self, batch: Any, indices: Any, rows: Any) -> Any:
        """Return a copy of a VecEnv's batch in which the rows at `indices` are replaced by `rows`."""
        parts: list[Array] = [part.copy() for part in self.layout.flatten(batch)]
        for part, row in zip(parts, self.layout.flatten(rows), strict=True):
            part[indices] = row
        return self.layout.unflatten(parts)

    def copy_all(self, batch: Any) -> Any:
        """Return a copy of a VecEnv's batch, a deep one of its objects."""
        if self.same and self.layout.is_flat:
            return batch.copy()
        leaves = zip(self.layout.flatten(batch), self.layout.leaves, strict=True)
        return self.layout.unflatten([deepcopy(part) if leaf.is_object else part.copy() for part, leaf in leaves])


def observation_batch_space(vec: VecEnv) -> spaces.Space[Any]:
    """Return the space of a batch of observations; the envs' spaces may differ in their bounds."""
    bare = vec.unwrapped
    mode = getattr(bare, "observation_mode", "same")
    if mode == "same" or vec.observation_space is not bare.observation_space:
        return batch_space(vec.observation_space, vec.num_envs)
    return mode[0] if isinstance(mode, tuple) else batch_differing_spaces(vec.get_attr("observation_space"))
