"""Frames: one message for several workers of a node, with the rows of all of them in one block for each column."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vecenvs.batch.batch_columns import BatchColumns
from vecenvs.transport.encoding import slots_in
from vecenvs.transport.packed import RowColumns
from vecenvs.transport.protocol import OF_SHARD, Answer, Command

_HEADER = struct.Struct("=qq")  # runs, columns of infos of numbers
_FIELDS = 5  # of a run: its first member, how many these are, number, tag, bytes of the body
_OF_SOME = frozenset({int(Command.STEP_SOME), int(Answer.SOME_ROWS)})
_MOST_KNOWN = 256

Entry = tuple[int, int, int, "bytes | memoryview"]  # a message to or from one worker: member, number, tag, encoded body


class Run(NamedTuple):
    """The same message to or from workers of adjacent numbers."""

    members: range
    number: int
    tag: int
    data: bytes | memoryview


class Frames:
    """Packs the frames of one direction. `shards` has the slots of each member, by its number.

    A frame is its runs of entries, their bodies, and the rows that the entries are about. With `numbers` it has as many
    columns of infos of numbers as the workers use.
    """

    def __init__(self, batch: BatchColumns, columns: RowColumns, *, numbers: bool) -> None:
        self.shards: dict[int, range] = {}
        self._batch = batch
        self._columns = columns
        self._numbers = numbers
        self._known: dict[tuple[int, ...], Places] = {}  # by the members of a frame for whole shards, and the columns

    @classmethod
    def of_commands(cls, batch: BatchColumns) -> Frames:
        """Return the packer of commands."""
        return cls(batch, RowColumns.of_commands(batch), numbers=False)

    @classmethod
    def of_answers(cls, batch: BatchColumns) -> Frames:
        """Return the packer of answers."""
        return cls(batch, RowColumns.of_answers(batch), numbers=True)

    def pack(self, entries: Sequence[Entry]) -> bytes:
        """Return a frame as bytes."""
        fields: list[int] = []
        bodies: list[bytes | memoryview] = []
        following: tuple[int, ...] = ()
        for member, number, tag, data in entries:
            if data:
                following = ()
            elif following == (member, number, tag):
                fields[1 - _FIELDS] += 1
                following = member + 1, number, tag
                continue
            else:
                following = member + 1, number, tag
            fields += (member, 1, number, tag, len(data))
            bodies.append(data)
        width = self._batch.info_width if self._numbers else 0
        pieces = [_HEADER.pack(len(bodies), width), struct.pack(f"={len(fields)}q", *fields), *bodies]
        places = self._places(fields, bodies, width)
        if isinstance(places, list):
            pieces += places
        elif places is not None:
            pieces += [array[places].tobytes() for array in self._columns.all(width)]
        return b"".join(pieces)

    def unpack(self, view: memoryview) -> list[Run]:
        """Write a frame's rows into the columns and return its runs of entries."""
        count, width = _HEADER.unpack_from(view)
        fields = struct.unpack_from(f"={_FIELDS * count}q", view, _HEADER.size)
        at = _HEADER.size + 8 * len(fields)
        runs, bodies = [], []
        for k in range(0, len(fields), _FIELDS):
            first, many, number, tag, length = fields[k : k + _FIELDS]
            bodies.append(view[at : at + length])
            runs.append(Run(range(first, first + many), number, tag, bodies[-1]))
            at += length
        if at < len(view):
            self._write(view[at:], self._places(fields, bodies, width), width)
        return runs

    def _write(self, rows: memoryview, places: Places, width: int) -> None:
        at = 0
        if isinstance(places, list):
            for place in places:
                if at >= len(rows):
                    break
                end = at + len(place)
                place[:] = rows[at:end]
                at = end
        elif places is not None:
            self._columns.write(rows, places, len(places), width)

    def _places(self, fields: Sequence[int], bodies: Sequence[bytes | memoryview], width: int) -> Places:
        """Return where the rows of a frame lie: those of its entries, in order."""
        if not all(tag & 0xFF in OF_SHARD for tag in fields[3::_FIELDS]):
            return self._find(fields, bodies, width)
        key = (width, self._columns.added, *fields[::_FIELDS], *fields[1::_FIELDS])
        if key not in self._known:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[key] = self._find(fields, bodies, width)
        return self._known[key]

    def _find(self, fields: Sequence[int], bodies: Sequence[bytes | memoryview], width: int) -> Places:
        slots: list[int] = []
        for k, data in enumerate(bodies):
            first, many, _, tag, _ = fields[k * _FIELDS : (k + 1) * _FIELDS]
            kind = tag & 0xFF
            if kind in OF_SHARD:
                for member in range(first, first + many):
                    slots.extend(self.shards[member])
            elif kind in _OF_SOME:
                slots.extend(slots_in(tag, data))
        if not slots:
            return None
        if slots == list(range(slots[0], slots[0] + len(slots))):
            rows = slice(slots[0], slots[0] + len(slots))
            return [array[rows].reshape(-1).view(np.uint8).data for array in self._columns.all(width)]
        return np.array(slots)


# The bytes of each column's rows if they are adjacent, else the slots of these; None if there are none.
Places = list[memoryview] | NDArray[np.int64] | None
