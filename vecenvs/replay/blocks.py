"""Blocks: several batches in one array, as the server sends them.

First the number of rows (int64), then column after column, each beginning at a multiple of 64 bytes. So a learner that
copies one array owns k batches, and a batch of them is a slice of every column.
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
    """Where the columns of a block of n rows begin; with `drawn` there are weights and indexes."""

    def __init__(self, schema: Schema, drawn: bool) -> None:
        self._schema = schema
        self._flat = all(layout is None or layout.is_flat for layout in schema.layouts.values())
        self._drawn = tuple(DRAWN) if drawn else ()
        self._names = [*schema.layouts, *self._drawn]
        self._columns = [(column.leaf.dtype, column.leaf.shape) for column in schema.columns]
        self._columns += [(np.dtype(DRAWN[name]), ()) for name in self._drawn]
        self.row_bytes = sum(dtype.itemsize * math.prod(shape) for dtype, shape in self._columns)

    def bytes_of(self, n: int) -> int:
        """The size of a block of n rows."""
        return self._places(n)[-1]

    def bytes_in(self, block: Block) -> int:
        """How many bytes of an array a block that begins there takes."""
        return self.bytes_of(int(block[:8].view(np.int64)[0]))

    def build(self, rows: Rows, drawn: Sequence[Array] = (), out: Block | None = None) -> Block:
        """Write packed rows, and the columns `drawn`, as a block: into `out`, or into an array of its own."""
        n = len(rows)
        block = np.empty(self.bytes_of(n), np.uint8) if out is None else out
        block[:8].view(np.int64)[0] = n
        sources = [*self._schema.fields(rows).values(), *drawn]
        for target, source in zip(self._views(block, n), sources, strict=True):
            target[...] = source
        return block

    def open(self, block: Block, batch_size: int) -> Batches:
        """See a block as batches of `batch_size` rows. They are views into it."""
        n = int(block[:8].view(np.int64)[0])
        views = [view.reshape(n // batch_size, batch_size, *view.shape[1:]) for view in self._views(block, n)]
        return Batches(views, n // batch_size, self)

    def batch(self, parts: list[Array]) -> dict[str, Any]:
        """Name the columns of one batch."""
        if self._flat:
            return dict(zip(self._names, parts, strict=True))
        own = len(parts) - len(self._drawn)
        return {**self._schema.structure(parts[:own]), **dict(zip(self._drawn, parts[own:], strict=True))}

    def _places(self, n: int) -> list[int]:
        """The offset of each column, and the size of all."""
        places, end = [], _ALIGN
        for dtype, shape in self._columns:
            places.append(end)
            end += -(-n * dtype.itemsize * math.prod(shape) // _ALIGN) * _ALIGN
        return [*places, end]

    def _views(self, block: Block, n: int) -> list[Array]:
        found = []
        for place, (dtype, shape) in zip(self._places(n), self._columns, strict=False):
            size = n * dtype.itemsize * math.prod(shape)
            found.append(block[place : place + size].view(dtype).reshape(n, *shape))
        return found


class Batches:
    """The batches of one block that have not been given yet."""

    def __init__(self, views: list[Array], count: int, layout: BlockLayout) -> None:
        self._views, self._layout = views, layout
        self.left = count
        self._next = 0

    def take(self) -> dict[str, Any]:
        """Give the next batch; there must be one `left`."""
        k = self._next
        self._next += 1
        self.left -= 1
        return self._layout.batch([view[k] for view in self._views])
