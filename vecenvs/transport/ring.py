"""A queue of messages between exactly two processes: entries and payload bytes in shared memory, one semaphore.

The handler of a signal may raise at any bytecode of these methods. The serial number of an entry is written last, so
the next call sees how far the last one came. A message that is put twice is read twice; its reader knows it by its
number. Each side writes to cache lines of its own, and reads the other's as rarely as it can.

A long message is a run of entries, each with the serial number of the first: that alone says what belongs together, as
many messages may have the same number.
"""

from __future__ import annotations

import platform
import threading
from typing import Any

import numpy as np

from vecenvs.batch.batch_columns import Allocator
from vecenvs.transport.memory import Semaphore
from vecenvs.transport.spinning import NEVER, Rhythm, Spin

PAYLOAD = 1 << 16  # bytes
PIECE = PAYLOAD // 2  # bytes; longer messages travel in pieces of this size
_PIECE_OF = 0  # tag of a piece that is not the last one; its index is in the upper bits
# Of an entry: tag, number of the message, start of the payload, length of the whole message, serial number, and if it
# has a payload that of the message's first entry. The rest fills a cache line.
_FIELDS = 8
_SERIAL, _FIRST = 4, 5
_POSITION, _READ = 0, 1  # what the reader reports: the end of the last payload that it has read, entries read so far
ENTRY_BYTES = 8 * _FIELDS
_MOMENT = 1e-3  # seconds from an entry to the release of its semaphore
# Whether a CPU may see stores of another one in another order: not on x86.
_REORDERS = platform.machine().lower() not in ("x86_64", "amd64", "x86", "i386", "i686")


class _Published:
    """Cells of which every `each`-th, from `first` on, publishes what was written before it; for a weak memory model.

    There (ARM, POWER) one CPU may see another's later store before an earlier one, so the reader of an entry's serial
    number might see neither the entry's fields and payload nor the rows. A store to such a cell follows a barrier, a
    load of it precedes one: the release of a lock and then its acquisition, which neither loads nor stores pass.
    """

    def __init__(self, cells: memoryview, first: int, each: int) -> None:
        self._cells, self._first, self._each = cells, first, each
        self._lock = threading.Lock()

    def __getitem__(self, at: int) -> int:
        value: int = self._cells[at]
        if at % self._each == self._first:
            self._barrier()
        return value

    def __setitem__(self, at: int, value: int) -> None:
        if at % self._each == self._first:
            self._barrier()
        self._cells[at] = value

    def _barrier(self) -> None:
        self._lock.acquire(False)  # an exception may have come between these
        self._lock.release()
        self._lock.acquire()


class _Ring:
    def __init__(self, allocator: Allocator, capacity: int, name: str, *, create: bool) -> None:
        self._written = Semaphore(name, create=create)
        entries = allocator.take((capacity * _FIELDS,), np.dtype(np.int64))
        self._entries: Any = entries.data.cast("B").cast("q")  # an item costs half of what numpy takes
        self._payload = allocator.take((PAYLOAD,), np.dtype(np.uint8)).data
        self._told: Any = allocator.take((2,), np.dtype(np.int64)).data
        self._capacity = capacity
        if _REORDERS:
            self._entries, self._told = _Published(self._entries, _SERIAL, _FIELDS), _Published(self._told, 0, 1)

    def _piece_at(self, at: int) -> int:
        """Return how many bytes of payload the entry at this place has."""
        length = self._entries[at + 3]
        return PIECE if self._entries[at] & 0xFF == _PIECE_OF else length - _whole_pieces(length)


def _whole_pieces(length: int) -> int:
    """Return how many bytes of a message travel ahead of its last piece."""
    return (length - 1) // PIECE * PIECE if length else 0


class RingWriter(_Ring):
    """The writing end. `wake` is released after every entry if the reader waits for several rings at once."""

    def __init__(
        self, allocator: Allocator, capacity: int, name: str, wake: Semaphore | None = None, *, create: bool = False
    ) -> None:
        super().__init__(allocator, capacity, name, create=create)
        self._wake = wake
        self._next = 1, 0  # serial number of the next entry; end of the last payload (ascending, wraps at PAYLOAD)
        # A message of which there was no room for all: its payload, how many of its pieces are written, and the serial
        # number of the first of these.
        self._begun: tuple[bytes | memoryview | None, int, int] = None, 0, 0
        self._room = capacity  # up to which serial number there is surely room

    def put(self, number: int, tag: int, payload: bytes | memoryview, wake: bool = False) -> bool:
        """Append a message. Return False if there is no room for all: call again with the same objects, before others.

        A message that is put again is another one, in whose favour its reader drops what has come of the first.
        """
        view, length = memoryview(payload), len(payload)
        last = _whole_pieces(length) // PIECE
        begun, pieces, first = self._begun
        if begun is not payload:
            pieces = first = 0
        for k in range(pieces, last):
            serial = self._append(number, _PIECE_OF | k << 8, view[k * PIECE : (k + 1) * PIECE], length, first, wake)
            if not serial:
                return False
            first = first or serial
            self._begun = payload, k + 1, first
        if not self._append(number, tag, view[last * PIECE :], length, first, wake):
            return False
        if last:
            self._begun = None, 0, 0
        return True

    def enter(self, number: int, tag: int, wake: bool = False) -> bool:
        """Append a message without a payload. Return False if there is no room."""
        entries, (serial, end) = self._entries, self._next
        at = serial % self._capacity * _FIELDS
        if entries[at + _SERIAL] == serial:
            self._catch_up(serial, at)
            return self.enter(number, tag, wake)
        if serial > self._room and not self._has_room(serial):
            return False
        entries[at] = tag
        entries[at + 1] = number
        entries[at + 2] = end
        entries[at + 3] = 0
        entries[at + _SERIAL] = serial
        self._next = serial + 1, end
        self._written.release()
        if wake and self._wake is not None:
            self._wake.release()
        return True

    def _catch_up(self, serial: int, at: int) -> None:
        """Go on behind the entry of a call that an exception has ended."""
        self._next = serial + 1, self._entries[at + 2] + self._piece_at(at)

    def _has_room(self, serial: int) -> bool:
        self._room = self._told[_READ] + self._capacity
        return serial <= self._room

    def _append(self, number: int, tag: int, piece: memoryview, length: int, first: int, wake: bool) -> int:
        """Append an entry with a piece of a message of `length` bytes, at a place where nothing is unread.

        `first` is the serial number of the message's first entry, 0 if it is this one. Return that of this entry, 0 if
        there is no room.
        """
        entries, (serial, end) = self._entries, self._next
        at = serial % self._capacity * _FIELDS
        if entries[at + _SERIAL] == serial:
            self._catch_up(serial, at)
            return self._append(number, tag, piece, length, first, wake)
        if serial > self._room and not self._has_room(serial):
            return 0
        start, read_to = end, self._told[_POSITION]
        if self._told[_READ] == serial - 1:  # all has been read: the first pages again, as unused ones cost no memory
            start = read_to = -(-end // PAYLOAD) * PAYLOAD
        elif end % PAYLOAD + len(piece) > PAYLOAD:
            start = -(-end // PAYLOAD) * PAYLOAD
        if start + len(piece) - read_to > PAYLOAD:
            return 0
        offset = start % PAYLOAD
        self._payload[offset : offset + len(piece)] = piece
        entries[at] = tag
        entries[at + 1] = number
        entries[at + 2] = start
        entries[at + 3] = length
        entries[at + _FIRST] = first or serial
        entries[at + _SERIAL] = serial
        self._next = serial + 1, start + len(piece)
        self._written.release()
        if wake and self._wake is not None:
            self._wake.release()
        return serial


class RingReader(_Ring):
    """The reading end."""

    def __init__(
        self, allocator: Allocator, capacity: int, name: str, spin: Spin = NEVER, *, create: bool = False
    ) -> None:
        super().__init__(allocator, capacity, name, create=create)
        self._wait = Rhythm(self._written.acquire, spin).wait
        self._next = 1, 0  # serial number of the next entry; end of the last payload that has been read
        self._seen = 0  # serial number of an entry that has been returned, whose semaphore is not waited for again
        self._pieces = 0, bytearray()  # the serial number of a message's first entry, and what has come of it

    def get(self, timeout: float | None) -> tuple[int, int, bytes | None] | None:
        """Return the oldest message that has not been taken: its number, tag and payload.

        Waits up to `timeout` seconds (0: not at all). None if there is none by then.
        """
        while True:
            entries, (serial, _) = self._entries, self._next
            at = serial % self._capacity * _FIELDS
            if self._seen != serial:
                if self._written.acquire(False) and entries[at + _SERIAL] == serial:
                    self._seen = serial
                elif not self._find(serial, at + _SERIAL, timeout):
                    return None
            tag, number, length = entries[at], entries[at + 1], entries[at + 3]
            if not length:
                return number, tag, None
            start, first, before = entries[at + 2] % PAYLOAD, entries[at + _FIRST], _whole_pieces(length)
            of, pieces = self._pieces
            if tag & 0xFF != _PIECE_OF:
                data = bytes(self._payload[start : start + length - before])
                if not before:
                    return number, tag, data
                if of == first and len(pieces) == before:
                    return number, tag, bytes(pieces) + data
            elif first == serial:
                self._pieces = first, bytearray(self._payload[start : start + PIECE])
            elif of == first and len(pieces) == (tag >> 8) * PIECE:  # not a piece that is there already
                pieces += self._payload[start : start + PIECE]
            self.take()

    def _find(self, serial: int, cell: int, timeout: float | None) -> bool:
        """Wait until the entry of this number is in its place; return False if it is not in time."""
        while self._seen != serial:
            found = self._written.acquire(False)
            if not found:
                if self._told[_READ] != serial - 1:  # an exception has ended `take`
                    self._told[_POSITION], self._told[_READ] = self._next[1], serial - 1
                if self._entries[cell] == serial:  # its semaphore is about to be released, or was acquired before
                    self._written.acquire(True, _MOMENT)
                elif timeout != 0:
                    found = self._wait(timeout)
            if self._entries[cell] == serial:
                self._seen = serial
            elif not found:
                return False
            # else the semaphore was of an entry that has been taken without it
        return True

    def take(self) -> None:
        """Forget the entry that is next: it is read."""
        entries, (serial, end) = self._entries, self._next
        at = serial % self._capacity * _FIELDS
        length = entries[at + 3]
        if length:
            end = entries[at + 2] + self._piece_at(at)
        self._next = serial + 1, end  # before the writer learns of it: what may be read again must still be there
        if length:
            if length > PIECE and entries[at] & 0xFF != _PIECE_OF:
                self._pieces = 0, bytearray()  # the message has been returned
            self._told[_POSITION] = end
        self._told[_READ] = serial
