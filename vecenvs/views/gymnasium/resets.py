"""Resets as Gymnasium's vector envs take them: of all envs, or of those in options["reset_mask"]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np


class Reset(NamedTuple):
    """What a reset is asked for: the envs, ascending, their seeds and their options."""

    indices: list[int]
    seed: Any
    options: dict[str, Any] | None


def parse_reset(num_envs: int, seed: int | Sequence[int | None] | None, options: dict[str, Any] | None) -> Reset:
    """Check a reset's arguments; the mask is removed from a copy of `options`."""
    given: Any = seed
    several = isinstance(given, (list, tuple)) or (isinstance(given, np.ndarray) and given.ndim > 0)
    each = list(given) if several else None
    if each is not None and len(each) != num_envs:
        raise ValueError(f"{len(each)} seeds for {num_envs} envs: give one each, or one int")
    if options is not None and not isinstance(options, Mapping):
        raise TypeError(f"options must be a mapping or None, not {options!r}")
    if options is None or "reset_mask" not in options:
        return Reset(list(range(num_envs)), seed, options)
    indices = np.flatnonzero(_check_mask(options["reset_mask"], num_envs)).tolist()
    if each is not None:
        seed = [each[i] for i in indices]
    return Reset(indices, seed, {key: value for key, value in options.items() if key != "reset_mask"})


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
