"""Frames: the messages of a connection, to or from one worker or several of a node, with their rows.

Rows are one block for each column, whichever workers they are of. The other end of a connection has columns of its own,
in which only the rows of its workers are ever touched (untouched pages cost nothing).
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vecenvs.batch.batch_columns import BatchColumns
from vecenvs.transport.encoding import slots_in
from vecenvs.transport.protocol import OF_SHARD, Answer, Command

_HEADER = struct.Struct("=qq")  # runs, columns of infos
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

    A frame is its runs of entries, their bodies, and the rows that the entries are about: in `arrays`, and in as many
    of the columns of infos, `numbers`, as the workers use.
    """

    def __init__(
        self,
        batch: BatchColumns,
        shards: Mapping[int, range],
        arrays: Sequence[NDArray[Any]],
        numbers: NDArray[np.int64] | None = None,
    ) -> None:
        self._batch = batch
        self._shards = shards
        self._arrays = [array for array in arrays if array.dtype != object and array.nbytes]
        self._numbers = numbers
        self._known: dict[tuple[int, ...], Places] = {}  # by the members of a frame for whole shards, and the columns

    @classmethod
    def of_commands(cls, batch: BatchColumns, shards: Mapping[int, range]) -> Frames:
        """Return the packer of commands: their rows are actions."""
        return cls(batch, shards, batch.actions.arrays)

    @classmethod
    def of_answers(cls, batch: BatchColumns, shards: Mapping[int, range]) -> Frames:
        """Return the packer of answers: their rows are all else."""
        arrays = [*batch.observations.arrays, batch.rewards, batch.flags, batch.latency, *batch.info_marks]
        return cls(batch, shards, arrays, batch.info_numbers)

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
        width = 0 if self._numbers is None else self._batch.info_width
        pieces = [_HEADER.pack(len(bodies), width), struct.pack(f"={len(fields)}q", *fields), *bodies]
        places = self._places(fields, bodies, width)
        if isinstance(places, list):
            pieces += places
        elif places is not None:
            pieces += [array[places].tobytes() for array in self._columns(width)]
        return b"".join(pieces)

    def unpack(self, view: memoryview, *, without: Collection[int] = ()) -> list[Run]:
        """Return a frame's runs of entries; write its rows into the columns, `without` those of some members."""
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
            if without:
                places = np.array(self._slots(fields, bodies, without), np.int64)
                kept = places >= 0
                if kept.any():
                    self._write_at(view[at:], places[kept], kept, len(places), width)
            else:
                self._write(view[at:], self._places(fields, bodies, width), width)
        return runs

    def _write(self, rows: memoryview, places: Places, width: int) -> None:
        """Write the rows of a frame."""
        at = 0
        if isinstance(places, list):
            for place in places:
                end = at + len(place)
                place[:] = rows[at:end]
                at = end
        elif places is not None:
            self._write_at(rows, places, slice(None), len(places), width)

    def _write_at(
        self, rows: memoryview, places: NDArray[np.int64], kept: slice | NDArray[np.bool_], count: int, width: int
    ) -> None:
        """Write those of the frame's `count` rows that are kept."""
        at = 0
        for array in self._columns(width):
            block = np.ndarray((count, *array.shape[1:]), array.dtype, rows, at)
            array[places] = block[kept]
            at += block.nbytes

    def _columns(self, width: int) -> list[NDArray[Any]]:
        """Return the columns of a frame with so many of infos."""
        return self._arrays if self._numbers is None else [*self._arrays, *self._numbers[:width]]

    def _places(self, fields: Sequence[int], bodies: Sequence[bytes | memoryview], width: int) -> Places:
        """Return where the rows of a frame lie: those of its entries, in order."""
        if not all(tag & 0xFF in OF_SHARD for tag in fields[3::_FIELDS]):
            return self._find(fields, bodies, width)
        key = (width, *fields[::_FIELDS], *fields[1::_FIELDS])
        if key not in self._known:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[key] = self._find(fields, bodies, width)
        return self._known[key]

    def _find(self, fields: Sequence[int], bodies: Sequence[bytes | memoryview], width: int) -> Places:
        slots = self._slots(fields, bodies)
        if not slots:
            return None
        if slots == list(range(slots[0], slots[0] + len(slots))):
            rows = slice(slots[0], slots[0] + len(slots))
            return [array[rows].reshape(-1).view(np.uint8).data for array in self._columns(width)]
        return np.array(slots)

    def _slots(
        self, fields: Sequence[int], bodies: Sequence[bytes | memoryview], without: Collection[int] = ()
    ) -> list[int]:
        """Return the slots of a frame's rows, in order; -1 for those of members that are left out."""
        slots: list[int] = []
        for k, data in enumerate(bodies):
            first, many, _, tag, _ = fields[k * _FIELDS : (k + 1) * _FIELDS]
            kind = tag & 0xFF
            for member in range(first, first + many):
                if kind in OF_SHARD:
                    found: Sequence[int] = self._shards[member]
                else:
                    found = slots_in(tag, data) if kind in _OF_SOME else ()
                slots.extend(found if member not in without else [-1] * len(found))
        return slots


# The bytes of each column's rows if they are adjacent, else the slots of these; None if there are none.
Places = list[memoryview] | NDArray[np.int64] | None
