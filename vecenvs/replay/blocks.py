"""Blocks: several batches in one array, as the server sends them.

A block begins with its number of rows (int64). The columns follow, each beginning at a multiple of 64 bytes. A learner
that copies this one array owns all its batches, and each batch consists of slices of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vecenvs.replay.schema import DRAWN, Array, Rows, Schema

Block = NDArray[np.uint8]

_ALIGN = 64


class BlockLayout:
    """The layout of blocks of a schema's rows; `drawn` adds columns for weights and indexes."""

    def __init__(self, schema: Schema, drawn: bool) -> None:
        self._schema = schema
        self._flat = all(layout is None or layout.is_flat for layout in schema.layouts.values())
        self._drawn = tuple(DRAWN) if drawn else ()
        self._names = [*schema.layouts, *self._drawn]
        self._columns = [(column.leaf.dtype, column.leaf.shape) for column in schema.columns]
        self._columns += [(np.dtype(DRAWN[name]), ()) for name in self._drawn]
        self.row_bytes = sum(dtype.itemsize * math.prod(shape) for dtype, shape in self._columns)

    def bytes_of(self, n: int) -> int:
        """Return the size in bytes of a block of n rows."""
        return self._offsets(n)[-1]

    def bytes_in(self, block: Block) -> int:
        """Return the size in bytes of the block at the beginning of an array."""
        return self.bytes_of(rows_in(block))

    def build(self, rows: Rows, drawn: Sequence[Array] = (), out: Block | None = None) -> Block:
        """Write packed rows and the `drawn` columns as a block, into `out` or a new array."""
        n = len(rows)
        block = np.empty(self.bytes_of(n), np.uint8) if out is None else out
        block[:8].view(np.int64)[0] = n
        sources = [*self._schema.fields(rows).values(), *drawn]
        for target, source in zip(self._views(block, n), sources, strict=True):
            target[...] = source
        return block

    def open(self, block: Block, batch_size: int) -> list[dict[str, Any]]:
        """Return the batches of `batch_size` rows in a block, as views into it."""
        n = rows_in(block)
        views = [view.reshape(n // batch_size, batch_size, *view.shape[1:]) for view in self._views(block, n)]
        return [self._batch(parts) for parts in zip(*views, strict=True)]

    def _batch(self, parts: Sequence[Array]) -> dict[str, Any]:
        if self._flat:
            return dict(zip(self._names, parts, strict=True))
        own = len(parts) - len(self._drawn)
        return {**self._schema.structure(parts[:own]), **dict(zip(self._drawn, parts[own:], strict=True))}

    def _offsets(self, n: int) -> list[int]:
        """Return the offset of each column in bytes, and the size of the block."""
        offsets, end = [], _ALIGN
        for dtype, shape in self._columns:
            offsets.append(end)
            end += -(-n * dtype.itemsize * math.prod(shape) // _ALIGN) * _ALIGN
        return [*offsets, end]

    def _views(self, block: Block, n: int) -> list[Array]:
        found = []
        for offset, (dtype, shape) in zip(self._offsets(n), self._columns, strict=False):
            size = n * dtype.itemsize * math.prod(shape)
            found.append(block[offset : offset + size].view(dtype).reshape(n, *shape))
        return found


def rows_in(block: Block) -> int:
    """Return the number of rows in a block."""
    return int(block[:8].view(np.int64)[0])
