"""A queue of messages between exactly two processes: entries and payload bytes in shared memory, one semaphore.

The handler of a signal may raise at any bytecode of these methods. The serial number of an entry is written last, so
the next call sees how far the last one came. A message that is put twice is read twice; its reader knows it by its
number. Each side writes to cache lines of its own, and reads the other's as rarely as it can.
"""

from __future__ import annotations

import numpy as np

from vecenvs.batch.batch_columns import Allocator
from vecenvs.transport.memory import Semaphore
from vecenvs.transport.spinning import NEVER, Rhythm, Spin

PAYLOAD = 1 << 16  # bytes
PIECE = PAYLOAD // 2  # bytes; longer messages travel in pieces of this size
_PIECE_OF = 0  # tag of a piece that is not the last one; its index is in the upper bits
# Of an entry: tag, number of the message, start of the payload, length of the whole message, serial number. The rest
# fills a cache line.
_FIELDS = 8
_SERIAL = 4
_POSITION, _READ = 0, 1  # what the reader reports: the end of the last payload that it has read, entries read so far
ENTRY_BYTES = 8 * _FIELDS
_MOMENT = 1e-3  # seconds from an entry to the release of its semaphore


class _Ring:
    def __init__(self, allocator: Allocator, capacity: int, name: str, *, create: bool) -> None:
        self._written = Semaphore(name, create=create)
        entries = allocator.take((capacity * _FIELDS,), np.dtype(np.int64))
        self._entries = entries.data.cast("B").cast("q")  # an item costs half of what numpy takes
        self._payload = allocator.take((PAYLOAD,), np.dtype(np.uint8)).data
        self._told = allocator.take((2,), np.dtype(np.int64)).data
        self._capacity = capacity

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
        self._begun = 0, 0  # a message's number, and how many of its pieces are written
        self._room = capacity  # up to which serial number there is surely room

    def put(self, number: int, tag: int, payload: bytes | memoryview, wake: bool = False) -> bool:
        """Append a message. Return False if there is no room for all of it: call again with the same arguments."""
        view, length = memoryview(payload), len(payload)
        begun, pieces = self._begun
        last = _whole_pieces(length) // PIECE
        for k in range(pieces if begun == number else 0, last):
            if not self._append(number, _PIECE_OF | k << 8, view[k * PIECE : (k + 1) * PIECE], length, wake):
                return False
            self._begun = number, k + 1
        return self._append(number, tag, view[last * PIECE :], length, wake)

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

    def _append(self, number: int, tag: int, piece: memoryview, length: int, wake: bool) -> bool:
        """Append an entry with a piece of a message of `length` bytes, at a place where nothing is unread."""
        entries, (serial, end) = self._entries, self._next
        at = serial % self._capacity * _FIELDS
        if entries[at + _SERIAL] == serial:
            self._catch_up(serial, at)
            return self._append(number, tag, piece, length, wake)
        if serial > self._room and not self._has_room(serial):
            return False
        start, read_to = end, self._told[_POSITION]
        if self._told[_READ] == serial - 1:  # all has been read: the first pages again, as unused ones cost no memory
            start = read_to = -(-end // PAYLOAD) * PAYLOAD
        elif end % PAYLOAD + len(piece) > PAYLOAD:
            start = -(-end // PAYLOAD) * PAYLOAD
        if start + len(piece) - read_to > PAYLOAD:
            return False
        offset = start % PAYLOAD
        self._payload[offset : offset + len(piece)] = piece
        entries[at] = tag
        entries[at + 1] = number
        entries[at + 2] = start
        entries[at + 3] = length
        entries[at + _SERIAL] = serial
        self._next = serial + 1, start + len(piece)
        self._written.release()
        if wake and self._wake is not None:
            self._wake.release()
        return True


class RingReader(_Ring):
    """The reading end."""

    def __init__(
        self, allocator: Allocator, capacity: int, name: str, spin: Spin = NEVER, *, create: bool = False
    ) -> None:
        super().__init__(allocator, capacity, name, create=create)
        self._wait = Rhythm(self._written.acquire, spin).wait
        self._serial = 1  # of the next entry
        self._seen = 0  # serial number of an entry that has been returned, whose semaphore is not waited for again
        self._pieces = 0, bytearray()  # a message's number, and what has come of it

    def get(self, timeout: float | None) -> tuple[int, int, bytes | None] | None:
        """Return the oldest message that has not been taken: its number, tag and payload.

        Waits up to `timeout` seconds (0: not at all). None if there is none by then.
        """
        while True:
            entries, serial = self._entries, self._serial
            at = serial % self._capacity * _FIELDS
            if self._seen != serial:
                found = self._written.acquire(False)
                if not found:
                    if entries[at + _SERIAL] == serial:  # its semaphore is about to be released, or was acquired before
                        self._written.acquire(True, _MOMENT)
                    elif timeout != 0:
                        found = self._wait(timeout)
                if entries[at + _SERIAL] != serial:
                    if not found:
                        return None
                    continue  # it was of an entry that has been taken without it
                self._seen = serial
            tag, number, length = entries[at], entries[at + 1], entries[at + 3]
            if not length:
                return number, tag, None
            start = entries[at + 2] % PAYLOAD
            of, pieces = self._pieces
            if tag & 0xFF != _PIECE_OF:
                before = _whole_pieces(length)
                data = bytes(self._payload[start : start + length - before])
                return number, tag, bytes(pieces) + data if before else data
            if of != number:
                self._pieces = number, bytearray(self._payload[start : start + PIECE])
            elif len(pieces) == (tag >> 8) * PIECE:  # not a piece that is there already
                pieces += self._payload[start : start + PIECE]
            self.take()

    def take(self) -> None:
        """Forget the entry that is next: it is read."""
        entries, serial = self._entries, self._serial
        at = serial % self._capacity * _FIELDS
        if entries[at + 3]:
            self._told[_POSITION] = entries[at + 2] + self._piece_at(at)
        self._serial = serial + 1
        self._told[_READ] = serial
