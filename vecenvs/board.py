"""The batch columns of one VecEnv: actions, observations, rewards and flags, in plain or in shared memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from vecenvs.layout import Columns, SpaceLayout

TERMINATED = 1
TRUNCATED = 2

_ALIGN = 64  # a cache line: columns that different processes write never share one at their ends


class Arena:
    """Hands out arrays from one buffer, in the same order to everybody who asks in the same order.

    Without a buffer the arrays are plain ones; `size` tells afterwards how large a buffer would have to be.
    """

    def __init__(self, buffer: memoryview | None = None) -> None:
        self.size = 0
        self._buffer = buffer

    def take(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Give zeros on first use (a new segment is all zeros)."""
        start = self.size
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        self.size = start + -(-nbytes // _ALIGN) * _ALIGN
        if self._buffer is None or nbytes == 0:
            return np.zeros(shape, dtype)
        return np.frombuffer(self._buffer, dtype, count=nbytes // dtype.itemsize, offset=start).reshape(shape)


class Board:
    """Columns for n envs. Whoever builds it from equal spaces on the same buffer sees the same rows."""

    def __init__(
        self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any], n: int, arena: Arena
    ) -> None:
        self.n = n
        self.observation_space = observation_space
        self.action_space = action_space
        self.actions = Columns(SpaceLayout(action_space), n, arena.take)
        self.observations = Columns(SpaceLayout(observation_space), n, arena.take)
        self.rewards: NDArray[np.float64] = arena.take((n,), np.dtype(np.float64))
        self.flags: NDArray[np.uint8] = arena.take((n,), np.dtype(np.uint8))
