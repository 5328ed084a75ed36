"""A queue of messages between exactly two processes: entries and payload bytes in shared memory, one semaphore.

The handler of a signal may raise at any bytecode of these methods. What has been written and read is told by the
entries themselves, each of which is there once its serial number is: the next call of a method goes on from there. So a
message that was begun is always finished before the next one, and its pieces need no name: each has its place in it. A
message may be written twice after an exception; its reader knows it by its number. Each side writes to cache lines of
its own, and reads the other's as rarely as it can.
"""

from __future__ import annotations

import platform
import threading
from collections import deque
from typing import Any

import numpy as np

from vecenvs.batch.batch_columns import Allocator
from vecenvs.transport.memory import Semaphore
from vecenvs.transport.spinning import NEVER, Rhythm

PAYLOAD = 1 << 16  # bytes
PIECE = PAYLOAD // 2  # bytes; longer messages travel in pieces of this size
_MORE = 0  # tag of a piece that is not the last one of its message
# Of an entry, which fills a cache line: tag, number of the message, where its payload begins, how many bytes that has,
# how many bytes of the message are before it (if it has any), serial number. Unused memory is an entry 0 of this kind.
_FIELDS = 8
_NUMBER, _START, _LENGTH, _BEFORE, _SERIAL = 1, 2, 3, 4, 5
_POSITION, _READ = 0, 1  # what the reader reports: the end of the last payload that it has read, entries read so far
ENTRY_BYTES = 8 * _FIELDS
_MOMENT = 1e-3  # seconds from an entry to the release of its semaphore
# Whether a CPU may see stores of another one in another order: not on x86.
_REORDERS = platform.machine().lower() not in ("x86_64", "amd64", "x86", "i386", "i686")


class _Published:
    """Cells each of which publishes what was written before it, or read; for a weak memory model.

    There (ARM, POWER) one CPU may see another's later store before an earlier one, so the reader of an entry's serial
    number might see neither the entry's fields and payload nor the rows. Its semaphore alone does not help: an
    exception may come between an entry and its release, and each later release then counts for the entry before. So a
    store to such a cell follows a barrier, a load of it precedes one: the release of a lock and then its acquisition,
    which neither loads nor stores pass.
    """

    def __init__(self, cells: memoryview) -> None:
        self._cells = cells
        self._lock = threading.Lock()

    def __getitem__(self, at: int) -> int:
        value: int = self._cells[at]
        self._barrier()
        return value

    def __setitem__(self, at: int, value: int) -> None:
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
        self._entries = entries.data.cast("B").cast("q")  # an item costs half of what numpy takes
        self._payload = allocator.take((PAYLOAD,), np.dtype(np.uint8)).data
        told = allocator.take((2,), np.dtype(np.int64)).data
        self._capacity = capacity
        # By which one end learns what the other has done.
        self._serials: Any = _Published(self._entries) if _REORDERS else self._entries
        self._told: Any = _Published(told) if _REORDERS else told


class RingWriter(_Ring):
    """The writing end. `wake` is released after every entry if the reader waits for several rings at once.

    `unsent` has the messages for which there was no room; the first one may be written in part.
    """

    def __init__(
        self, allocator: Allocator, capacity: int, name: str, wake: Semaphore | None = None, *, create: bool = False
    ) -> None:
        super().__init__(allocator, capacity, name, create=create)
        self._wake = wake
        self._next = 1, 0  # serial number of the next entry; end of the last payload (ascending, wraps at PAYLOAD)
        self._room = capacity  # up to which serial number there is surely room
        self._read = 0  # up to which end of a payload all is surely read
        self.unsent: deque[tuple[int, int, memoryview, bool]] = deque()

    def put(self, number: int, tag: int, payload: bytes | memoryview, wake: bool = False) -> bool:
        """Append a message. Return whether all is written; otherwise `flush` writes the rest."""
        self.unsent.append((number, tag, memoryview(payload), wake))
        return self.flush()

    def flush(self) -> bool:
        """Write as much of the unsent messages as there is room for; return whether nothing is left."""
        entries = self._entries
        while self.unsent:
            number, tag, payload, wake = self.unsent[0]
            serial, end = self._next
            at, last = serial % self._capacity * _FIELDS, (serial - 1) % self._capacity * _FIELDS
            if entries[at + _SERIAL] == serial:  # by a call that an exception has ended
                self._next = serial + 1, entries[at + _START] + entries[at + _LENGTH]
                continue
            done = entries[last + _BEFORE] + entries[last + _LENGTH] if entries[last] == _MORE else 0
            piece = payload[done : done + PIECE]
            whole = done + len(piece) == len(payload)
            start = self._place(serial, end, len(piece))
            if start is None:
                return False
            offset = start % PAYLOAD
            self._payload[offset : offset + len(piece)] = piece
            entries[at] = tag if whole else _MORE
            entries[at + _NUMBER] = number
            entries[at + _START] = start
            entries[at + _LENGTH] = len(piece)
            entries[at + _BEFORE] = done
            self._serials[at + _SERIAL] = serial
            self._next = serial + 1, start + len(piece)
            self._written.release()
            if wake and self._wake is not None:
                self._wake.release()
            if whole:
                self.unsent.popleft()
        return True

    def _place(self, serial: int, end: int, length: int) -> int | None:
        """Return where the next payload is to begin; None if there is no room."""
        if serial > self._room and not self._has_room(serial):
            return None
        pages = -(-end // PAYLOAD) * PAYLOAD
        if self._told[_READ] == serial - 1:  # all has been read: the first pages again, as unused ones cost no memory
            self._read = pages
            return pages
        start = end if end % PAYLOAD + length <= PAYLOAD else pages
        return start if start + length - max(self._read, self._told[_POSITION]) <= PAYLOAD else None

    def _has_room(self, serial: int) -> bool:
        self._room = self._told[_READ] + self._capacity
        return serial <= self._room

    def enter(self, number: int, tag: int, wake: bool = False) -> bool:
        """Append a message without a payload. Return False if there is no room: `put` it."""
        entries, (serial, end) = self._entries, self._next
        at = serial % self._capacity * _FIELDS
        if self.unsent or entries[at + _SERIAL] == serial or (serial > self._room and not self._has_room(serial)):
            return False
        entries[at] = tag
        entries[at + _NUMBER] = number
        entries[at + _START] = end
        entries[at + _LENGTH] = 0
        self._serials[at + _SERIAL] = serial
        self._next = serial + 1, end
        self._written.release()
        if wake and self._wake is not None:
            self._wake.release()
        return True


class RingReader(_Ring):
    """The reading end."""

    def __init__(
        self, allocator: Allocator, capacity: int, name: str, spin: float = NEVER, *, create: bool = False
    ) -> None:
        super().__init__(allocator, capacity, name, create=create)
        self._wait = Rhythm(self._written.acquire, self._written.wait, spin).wait
        self._serial = 1  # of the next entry
        self._seen = 0  # serial number of an entry that has been returned, whose semaphore is not waited for again
        self._pieces = bytearray()  # of a message of several pieces: those that have come

    def get(self, timeout: float | None) -> tuple[int, int, bytes | None] | None:
        """Return the oldest message that has not been taken: its number, tag and payload.

        Waits up to `timeout` seconds (0: not at all). None if there is none by then.
        """
        entries, serials = self._entries, self._serials
        while True:
            serial = self._serial
            at = serial % self._capacity * _FIELDS
            if self._seen != serial:
                found = self._written.acquire(False)
                if not found:
                    if serials[at + _SERIAL] == serial:  # its semaphore is about to be released, or was acquired before
                        self._written.wait(_MOMENT)
                    elif timeout != 0:
                        found = self._wait(timeout)
                if serials[at + _SERIAL] != serial:
                    if not found:
                        if self._told[_READ] != serial - 1:  # an exception has ended `take`
                            self._told[_READ] = serial - 1
                        return None
                    continue  # it was of an entry that has been taken without it
                self._seen = serial
            tag, number, length = entries[at], entries[at + _NUMBER], entries[at + _LENGTH]
            if not length:
                return number, tag, None
            start, before = entries[at + _START] % PAYLOAD, entries[at + _BEFORE]
            piece = self._payload[start : start + length]
            if tag != _MORE and not before:
                return number, tag, bytes(piece)
            self._pieces[before:] = piece  # also where it comes again
            if tag != _MORE:
                return number, tag, bytes(self._pieces)
            self.take()

    def take(self) -> None:
        """Forget the entry that is next: it is read."""
        entries, serial = self._entries, self._serial
        at = serial % self._capacity * _FIELDS
        self._serial = serial + 1  # first, as the writer overwrites what it is told has been read
        if entries[at + _LENGTH]:
            self._told[_POSITION] = entries[at + _START] + entries[at + _LENGTH]
            if entries[at + _BEFORE] and entries[at] != _MORE:
                self._pieces = bytearray()
        self._told[_READ] = serial
