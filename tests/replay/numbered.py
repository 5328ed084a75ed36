"""Transitions with a number in every field, so that a batch shows which rows it has."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

OBS = spaces.Box(-1.0, 1e9, (2,), np.float32)
ACTION = spaces.Discrete(5)
HIGH = 1e6  # so high a priority that one of 0, which cpprb raises to 1e-4, is practically never drawn


def transitions(begin: int, end: int) -> dict[str, Any]:
    """Return the rows begin, ..., end - 1."""
    k = np.arange(begin, end)
    return {
        "obs": np.stack([k, k + 0.5], 1).astype(np.float32),
        "action": k % 5,
        "next_obs": np.stack([k + 1, k + 1.5], 1).astype(np.float32),
        "reward": k.astype(np.float32),
        "terminated": k % 3 == 0,
        "truncated": k % 4 == 0,
        "explorer": k % 7,
        "episode": k * 2**33,
    }


def numbers(batch: dict[str, Any]) -> list[int]:
    """Return the numbers of a batch's rows; all fields of a row must have its number."""
    k = batch["reward"].astype(int)
    whole = transitions(0, int(k.max(initial=0)) + 1)
    for name, column in whole.items():
        np.testing.assert_array_equal(batch[name], column[k], err_msg=name)
    return [int(number) for number in k]
