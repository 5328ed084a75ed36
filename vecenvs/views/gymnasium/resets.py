"""Resets as Gymnasium's vector envs take them: of all envs, or of those in options["reset_mask"]."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vecenvs.batch.layout import SpaceLayout
from vecenvs.errors import EnvError
from vecenvs.vec_env import Batch, VecEnv


@dataclass
class PendingReset:
    """A reset of the envs `indices`, and the rows and errors received so far."""

    indices: list[int]
    seed: Any
    options: dict[str, Any] | None
    batches: list[Batch] = field(default_factory=list)
    errors: list[EnvError] = field(default_factory=list)

    def receive(self, vec: VecEnv, deadline: float | None) -> Any:
        """Wait until `deadline` (by `time.monotonic`) for the missing rows; return those of `indices`, in order."""
        while (missing := self._missing()) > 0:
            timeout = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            try:
                self.batches.append(vec.recv(missing, timeout=timeout))
            except EnvError as error:  # raised after all envs have answered
                self.errors.append(error)
        if self.errors:
            self.errors.sort(key=lambda error: error.index)
            self.errors[0].errors = tuple(self.errors)
            raise self.errors[0]
        return self._rows(vec)

    def _missing(self) -> int:
        return len(self.indices) - len(self.errors) - sum(len(batch) for batch in self.batches)

    def _rows(self, vec: VecEnv) -> Any:
        if len(self.batches) == 1 and self.batches[0].indices.tolist() == self.indices:
            return self.batches[0].obs
        layout = SpaceLayout(vec.observation_space)
        order = np.argsort(np.concatenate([batch.indices for batch in self.batches]))  # `indices` ascend
        parts = [layout.flatten(batch.obs) for batch in self.batches]
        return layout.unflatten([np.concatenate(column)[order] for column in zip(*parts, strict=True)])


def parse_reset(num_envs: int, seed: int | Sequence[int | None] | None, options: dict[str, Any] | None) -> PendingReset:
    """Check a reset's arguments; the mask is removed from a copy of `options`."""
    given: Any = seed
    several = isinstance(given, (list, tuple)) or (isinstance(given, np.ndarray) and given.ndim > 0)
    each = list(given) if several else None
    if each is not None and len(each) != num_envs:
        raise ValueError(f"{len(each)} seeds for {num_envs} envs: give one each, or one int")
    if options is not None and not isinstance(options, Mapping):
        raise TypeError(f"options must be a mapping or None, not {options!r}")
    if options is None or "reset_mask" not in options:
        return PendingReset(list(range(num_envs)), seed, options)
    indices = np.flatnonzero(_check_mask(options["reset_mask"], num_envs)).tolist()
    if each is not None:
        seed = [each[i] for i in indices]
    return PendingReset(indices, seed, {key: value for key, value in options.items() if key != "reset_mask"})


def _check_mask(mask: Any, num_envs: int) -> Any:
    if not isinstance(mask, np.ndarray):
        raise TypeError(f"options['reset_mask'] must be a numpy array, not {type(mask).__name__}")
    if mask.shape != (num_envs,):
        raise ValueError(f"options['reset_mask'] has shape {mask.shape}: give one bool for each of the {num_envs} envs")
    if mask.dtype != np.bool_:
        raise TypeError(f"options['reset_mask'] has dtype {mask.dtype}: give bool")
    if not mask.any():
        raise ValueError("options['reset_mask'] names no env: set at least one of its entries")
    return mask
