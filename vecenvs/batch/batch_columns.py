"""The batch columns of one VecEnv: actions, observations, rewards and flags, in plain or in shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from vecenvs._native import twin
from vecenvs.batch.columns import SpaceColumns
from vecenvs.batch.layout import SpaceLayout

# Bits of a row's `BatchColumns.flags`; `_native.twin` says what they mean.
TERMINATED, TRUNCATED, FIRST, FINAL, LAST = twin.TERMINATED, twin.TRUNCATED, twin.FIRST, twin.FINAL, twin.LAST
DONE = TERMINATED | TRUNCATED

FINAL_BYTES = 4096  # terminal observations have columns if a row is not larger; others travel pickled
INFO_NUMBERS = 256  # so many numbers of an env's infos have columns; others travel pickled

_ALIGN = 64  # a cache line: no two columns share one


class Allocator:
    """Allocates arrays in one buffer. Processes that ask for the same arrays in the same order get the same memory.

    Without a buffer the arrays have memory of their own. `size` is the size of the buffer that all of them need.
    """

    def __init__(self, buffer: memoryview | None = None) -> None:
        self.size = 0
        self._buffer = buffer

    def take(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return an array: of zeros, unless another process has written to it."""
        start = self.size
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        self.size = start + -(-nbytes // _ALIGN) * _ALIGN
        if self._buffer is None or nbytes == 0:
            return np.zeros(shape, dtype)
        return np.frombuffer(self._buffer, dtype, count=nbytes // dtype.itemsize, offset=start).reshape(shape)


class BatchColumns:
    """Columns for n envs. Two processes which make it of equal arguments on the same buffer see the same rows.

    `finals` says whether terminal observations get columns, if they are small enough.
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        n: int,
        allocator: Allocator,
        info_attrs: Sequence[str] = (),
        finals: bool = True,
    ) -> None:
        self.n = n
        self.info_attrs = tuple(info_attrs)
        self.observation_space = observation_space
        self.action_space = action_space
        self.actions = SpaceColumns(SpaceLayout(action_space), n, allocator.take)
        self.observations = SpaceColumns(SpaceLayout(observation_space), n, allocator.take)
        self.rewards: NDArray[np.float64] = allocator.take((n,), np.dtype(np.float64))
        self.flags: NDArray[np.uint8] = allocator.take((n,), np.dtype(np.uint8))
        self.latency: NDArray[np.float32] = allocator.take((n,), np.dtype(np.float32))  # of envs that wait
        layout = self.observations.layout
        self.finals: SpaceColumns | None = None
        if finals and not layout.has_objects and layout.row_bytes <= FINAL_BYTES:
            self.finals = SpaceColumns(layout, n, allocator.take)
        # Columns of infos, and which of them a row's info has: see `infos`.
        self.info_numbers = allocator.take((INFO_NUMBERS, n), np.dtype(np.int64))
        self.info_marks: NDArray[np.uint8] = allocator.take((2, n), np.dtype(np.uint8))
        self._info_widths: NDArray[np.uint16] = allocator.take((n,), np.dtype(np.uint16))

    @property
    def info_width(self) -> int:
        """The most of `info_numbers` that a worker uses."""
        return int(self._info_widths.max())

    def use_info_numbers(self, first: int, width: int) -> None:
        """Note that the worker whose first slot this is uses so many of `info_numbers`."""
        self._info_widths[first] = width

    def forget(self, *, memory: bool = True) -> None:
        """Remove the names by which other processes find the memory. It may be called again."""
