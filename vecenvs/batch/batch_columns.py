"""The batch columns of one VecEnv: actions, observations, rewards and flags, in plain or in shared memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from vecenvs._native import twin
from vecenvs.batch.columns import Columns
from vecenvs.batch.layout import SpaceLayout

# Bits of a row's `BatchColumns.flags`; `_native.twin` says what they mean.
TERMINATED, TRUNCATED, FIRST, FINAL, LAST = twin.TERMINATED, twin.TRUNCATED, twin.FIRST, twin.FINAL, twin.LAST
DONE = TERMINATED | TRUNCATED

FINAL_BYTES = 4096  # terminal observations have columns if a row is not larger; others travel pickled
INFO_NUMBERS = 64  # infos of at most so many numbers have columns; others travel pickled
INFO_BYTES = 256  # room per env for one attribute of the info channel; larger ones travel pickled

# Attribute name -> dtype and shape of one env's value.
Specs = dict[str, tuple[np.dtype[Any], tuple[int, ...]]]

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
        self.info: dict[str, NDArray[Any]] = {}  # attributes on the row
        self.first_info: dict[str, NDArray[Any]] = {}  # attributes right after the last reset
        self.observation_space = observation_space
        self.action_space = action_space
        self.actions = Columns(SpaceLayout(action_space), n, allocator.take)
        self.observations = Columns(SpaceLayout(observation_space), n, allocator.take)
        self.rewards: NDArray[np.float64] = allocator.take((n,), np.dtype(np.float64))
        self.flags: NDArray[np.uint8] = allocator.take((n,), np.dtype(np.uint8))
        layout = self.observations.layout
        self.finals: Columns | None = None
        if finals and not layout.has_objects and layout.row_bytes <= FINAL_BYTES:
            self.finals = Columns(layout, n, allocator.take)
        # Columns of infos of numbers: see `infos.InfoForm`.
        self.info_numbers = allocator.take((INFO_NUMBERS, n), np.dtype(np.int64))
        self._info_width = allocator.take((1,), np.dtype(np.int64)).data
        self._info_room = [allocator.take((2, n * INFO_BYTES), np.dtype(np.uint8)) for _ in self.info_attrs]

    @property
    def info_width(self) -> int:
        """The most of `info_numbers` that a worker has used: each that uses some sets it."""
        return self._info_width[0]

    @info_width.setter
    def info_width(self, width: int) -> None:
        self._info_width[0] = max(width, self._info_width[0])

    def forget(self, *, memory: bool = True) -> None:
        """Remove the names by which other processes find the memory. It may be called again."""

    def open_info(self, specs: Specs) -> None:
        """Make columns for attributes, now that their types are known. Caller and workers all do so."""
        for name, room in zip(self.info_attrs, self._info_room, strict=True):
            if name in specs:
                dtype, shape = specs[name]
                nbytes = self.n * math.prod(shape) * dtype.itemsize
                for columns, part in zip((self.info, self.first_info), room, strict=True):
                    columns[name] = part[:nbytes].view(dtype).reshape(self.n, *shape)
