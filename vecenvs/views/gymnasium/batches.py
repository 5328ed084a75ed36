"""Batches between the two forms that values of no fixed shape have here and in Gymnasium."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
from gymnasium import spaces

from vecenvs.batch.layout import Array, SpaceLayout


class BatchForm:
    """Turns batches of one space between this project's form and Gymnasium's.

    They differ where the values have no fixed shape (Text, Sequence, Graph, OneOf, custom spaces): an object array (n,)
    here, a tuple of n values in Gymnasium. Everything else is passed on as it is, not copied.
    """

    def __init__(self, space: spaces.Space[Any]) -> None:
        self.layout = SpaceLayout(space)
        self.same = not self.layout.has_objects

    def to_gymnasium(self, batch: Any) -> Any:
        """Give a batch in Gymnasium's form."""
        if self.same:
            return batch
        parts = self.layout.flatten(batch)
        leaves = self.layout.leaves
        return self.layout.unflatten([tuple(p) if leaf.is_object else p for p, leaf in zip(parts, leaves, strict=True)])

    def from_gymnasium(self, batch: Any, *, copy: bool) -> Any:
        """Give a batch in this project's form; with `copy` its arrays are new ones, else only where it must be."""
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
        """Copy a batch and write some rows into it; both are in this project's form."""
        parts: list[Array] = [part.copy() for part in self.layout.flatten(batch)]
        for part, row in zip(parts, self.layout.flatten(rows), strict=True):
            part[indices] = row
        return self.layout.unflatten(parts)

    def copied(self, batch: Any) -> Any:
        """Copy a batch in this project's form, and its objects."""
        leaves = zip(self.layout.flatten(batch), self.layout.leaves, strict=True)
        return self.layout.unflatten([deepcopy(part) if leaf.is_object else part.copy() for part, leaf in leaves])

    def rows(self, batch: Any, indices: Any) -> Any:
        """Take some rows of a batch in this project's form."""
        return self.layout.unflatten([part[indices] for part in self.layout.flatten(batch)])

    def values(self, batch: Any, indices: Any) -> list[Any]:
        """Copy some rows of a batch in this project's form, as values of the space."""
        parts = [list(part[indices]) for part in self.layout.flatten(batch)]  # indexing by a list has copied
        rows = parts[0] if self.layout.is_flat else [self.layout.unflatten(row) for row in zip(*parts, strict=True)]
        return rows if self.same else [self.layout.copied(row) for row in rows]

    def empty(self) -> Any:
        """Make a batch of no rows."""
        return self.layout.unflatten([np.empty((0, *leaf.shape), leaf.dtype) for leaf in self.layout.leaves])
