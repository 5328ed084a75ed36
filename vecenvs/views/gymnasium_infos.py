"""Infos between the two forms: one dict per env here, one dict of arrays with masks in Gymnasium."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from vecenvs.layout import Array, SpaceLayout

OWN_KEYS = ("TimeLimit.truncated", "terminal_observation", "episode_start")


def without_ours(info: dict[str, Any]) -> dict[str, Any]:
    """Copy an info without what a VecEnv adds to it."""
    return {key: value for key, value in info.items() if key not in OWN_KEYS}


def to_list(infos: dict[str, Any], n: int) -> list[dict[str, Any]]:
    """Turn Gymnasium's dict of arrays into one dict per env: a key is in those that its mask "_key" names.

    A key without a mask (as EnvPool gives them) is in all of them if its value has n entries, else it is left out: it
    says nothing about a single env. `final_obs` and `final_info` are keys like any other here.
    """
    rows: list[dict[str, Any]] = [{} for _ in range(n)]
    for key, value in infos.items():
        if key.startswith("_") and key[1:] in infos:
            continue
        mask = infos.get(f"_{key}")
        values: Any = to_list(value, n) if isinstance(value, dict) else value
        if mask is None and not _has_rows(values, n):
            continue
        for i in range(n) if mask is None else np.flatnonzero(mask):
            rows[i][key] = values[i]
    return rows


def _has_rows(values: Any, n: int) -> bool:
    return isinstance(values, (np.ndarray, list, tuple)) and np.ndim(values) > 0 and len(values) == n


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
