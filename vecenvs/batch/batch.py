"""`Batch`: the rows that one `recv` returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vecenvs.batch.lazy_infos import Infos


@dataclass
class Batch:
    """Rows of some envs, in the order in which they were finished. Row j of each attribute is of env `indices[j]`.

    Attributes:
        indices: the envs, int64 (k,).
        obs: their observations, batched by the observation space.
        rewards: float32 (k,).
        terminated: whether the task's own rule ended the episode, bool (k,).
        truncated: whether a limit from outside the task ended it, bool (k,).
        infos: a sequence of k distinct dicts.
        active: whether the row is a transition, bool (k,). False for the first row of an episode after a reset, whose
            reward is 0, and for a row that repeats while its env is being reset.
        latency: with `concurrency`, the seconds from the moment at which the env's worker got the command to the end of
            what the env did for this row, float32 (k,); of the first row after an async autoreset, from the beginning
            of that. It is measured in the worker, so the clocks of other machines do not matter. None without
            `concurrency`.
    """

    indices: NDArray[np.int64]
    obs: Any
    rewards: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    infos: Infos
    active: NDArray[np.bool_]
    latency: NDArray[np.float32] | None = None

    @property
    def dones(self) -> NDArray[np.bool_]:
        """Whether the episode ended, bool (k,): terminated | truncated."""
        return self.terminated | self.truncated

    def __len__(self) -> int:
        return len(self.indices)
