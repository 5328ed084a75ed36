"""Frames: one message for several workers of a node, with the rows of all of them in one block for each column."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vecenvs.batch.batch_columns import BatchColumns
from vecenvs.transport.encoding import slots_in
from vecenvs.transport.protocol import OF_SHARD, Answer, Command

_HEADER = struct.Struct("=qq")  # entries, columns of infos of numbers
_FIELDS = 4  # of an entry: member, number, tag, bytes of its body
_OF_SOME = frozenset({int(Command.STEP_SOME), int(Answer.SOME_ROWS)})
_MOST_KNOWN = 256

Rows = slice | NDArray[np.int64]


class Entry(NamedTuple):
    """A message to or from one worker, its body encoded."""

    member: int
    number: int
    tag: int
    data: bytes | memoryview


class Frames:
    """Packs the frames of one direction. `shards` has the slots of each member, by its number.

    A frame is its entries, their bodies, and the rows that the entries are about: of `arrays`, with `numbers` of the
    columns of infos of numbers, and of `more`, to which arrays may be added later. A reader that has fewer of these
    leaves the last ones out.
    """

    def __init__(
        self,
        batch: BatchColumns,
        arrays: Sequence[NDArray[Any]],
        more: Sequence[Mapping[str, NDArray[Any]]] = (),
        *,
        numbers: bool = False,
    ) -> None:
        self.shards: dict[int, range] = {}
        self._batch = batch
        self._fixed = [array for array in arrays if array.dtype != object and array.nbytes]
        self._numbers = numbers
        self._more = more
        self._known: dict[tuple[int, ...], Rows | None] = {}  # by the members of a frame for whole shards

    @classmethod
    def of_commands(cls, batch: BatchColumns) -> Frames:
        """Return the packer of commands, which have actions."""
        return cls(batch, batch.actions.arrays)

    @classmethod
    def of_answers(cls, batch: BatchColumns) -> Frames:
        """Return the packer of answers, which have all other columns."""
        columns = [*batch.observations.arrays, batch.rewards, batch.flags]
        return cls(batch, columns, (batch.info, batch.first_info), numbers=True)

    def pack(self, entries: Sequence[Entry]) -> bytes:
        """Return a frame as bytes."""
        rows = self._rows(entries)
        fields = [field for member, number, tag, data in entries for field in (member, number, tag, len(data))]
        width = self._batch.info_width if self._numbers and rows is not None else 0
        pieces: list[Any] = [_HEADER.pack(len(entries), width), struct.pack(f"={len(fields)}q", *fields)]
        pieces += [entry[3] for entry in entries]
        if rows is not None:
            pieces += [
                array[..., rows].tobytes() if turned else array[rows].tobytes()
                for array, turned in self._columns(width)
            ]
        return b"".join(pieces)

    def unpack(self, view: memoryview) -> list[Entry]:
        """Write a frame's rows into the columns and return its entries."""
        count, width = _HEADER.unpack_from(view)
        fields = struct.unpack_from(f"={_FIELDS * count}q", view, _HEADER.size)
        at = _HEADER.size + 8 * len(fields)
        entries = []
        for k in range(0, len(fields), _FIELDS):
            member, number, tag, length = fields[k : k + _FIELDS]
            entries.append(Entry(member, number, tag, view[at : at + length]))
            at += length
        if at < len(view) and (rows := self._rows(entries)) is not None:
            many = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
            for array, turned in self._columns(width):
                if at >= len(view):
                    break
                shape = (len(array), many) if turned else (many, *array.shape[1:])
                block = np.ndarray(shape, array.dtype, view, at)
                if turned:
                    array[:, rows] = block
                else:
                    array[rows] = block
                at += block.nbytes
        return entries

    def _columns(self, width: int) -> Iterator[tuple[NDArray[Any], bool]]:
        """Yield the columns, and whether their rows are along the second axis."""
        for array in self._fixed:
            yield array, False
        if width:
            yield self._batch.info_numbers[:width], True
        for array in itertools.chain.from_iterable(columns.values() for columns in self._more):
            if array.nbytes:
                yield array, False

    def _rows(self, entries: Sequence[Entry]) -> Rows | None:
        """Return what indexes the columns at the rows of a frame: those of its entries, in order."""
        if not all(entry[2] & 0xFF in OF_SHARD for entry in entries):
            return self._find(entries)
        members = tuple(entry[0] for entry in entries)
        if members not in self._known:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[members] = self._find(entries)
        return self._known[members]

    def _find(self, entries: Sequence[Entry]) -> Rows | None:
        slots: list[int] = []
        for member, _, tag, data in entries:
            kind = tag & 0xFF
            if kind in OF_SHARD:
                slots.extend(self.shards[member])
            elif kind in _OF_SOME:
                slots.extend(slots_in(tag, data))
        if not slots:
            return None
        adjacent = slots == list(range(slots[0], slots[0] + len(slots)))
        return slice(slots[0], slots[0] + len(slots)) if adjacent else np.array(slots)
