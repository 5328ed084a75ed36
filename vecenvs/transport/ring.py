"""A queue of messages between exactly two processes: entries and payload bytes in shared memory.

One semaphore counts entries written, another payloads read. Every hand-over is a release and an acquire, so the order
of memory holds on any processor. An entry without payload costs about 0.3 us on either side.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from vecenvs.board import Arena
from vecenvs.transport.memory import Semaphore
from vecenvs.transport.spin import NEVER, Spin

PAYLOAD = 1 << 16  # bytes; longer messages travel in pieces
_MORE = 0  # tag of a piece that is not the last one
_FORGET = -1  # tag that calls back the pieces before it
_FIELDS = 4  # tag, offset, length, and the entry's number, counted from 1
ENTRY_BYTES = 8 * _FIELDS
_MOMENT = 1e-3  # seconds


class RingNames(NamedTuple):
    """The names of a ring's two semaphores. The caller creates these, whichever end it has."""

    written: str
    read: str


class _Ring:
    def __init__(self, arena: Arena, capacity: int, names: RingNames, *, create: bool) -> None:
        self._written = Semaphore(names.written, create=create)
        self._read = Semaphore(names.read, create=create)
        entries = arena.take((capacity * _FIELDS,), np.dtype(np.int64))
        self._entries = entries.data.cast("B").cast("q")  # an item costs half of what numpy takes
        self._payload = arena.take((PAYLOAD,), np.dtype(np.uint8)).data
        self._taken = arena.take((1,), np.dtype(np.int64)).data  # number of the last entry whose payload has been read
        self._end = capacity * _FIELDS
        self._at = 0
        self._number = 1  # of the next entry


class RingWriter(_Ring):
    """The end that puts. `wake` is released after every entry if the reader waits for several rings at once."""

    def __init__(
        self, arena: Arena, capacity: int, names: RingNames, wake: Semaphore | None = None, *, create: bool = False
    ) -> None:
        super().__init__(arena, capacity, names, create=create)
        self._wake = wake
        self._unread: deque[int] = deque()  # numbers of entries whose payloads the reader still has to take
        self._offset = 0
        self._vain = 0  # entries of messages that were broken off

    @property
    def sent(self) -> int:
        """A number that every whole message changes."""
        return self._number - self._vain

    def put(self, tag: int, payload: bytes, stalled: Callable[[], None] | None = None, wake: bool = False) -> None:
        """Append a message. Waits for room if its payload needs some, calling `stalled` again and again meanwhile.

        If a signal's handler raises, either all of it has been appended or, for the reader, nothing.
        """
        rest = memoryview(payload)
        piece = PAYLOAD // 2
        number = self._number
        try:
            while len(rest) > piece:
                self.enter(_MORE, self._place(rest[:piece], stalled), piece, wake)
                rest = rest[piece:]
            self.enter(tag, self._place(rest, stalled), len(rest), wake)
        except BaseException:
            if self._unread and self._unread[-1] == self._number:  # placed, but not entered
                self._unread.pop()
            if self._number < number + max(1, -(-len(payload) // piece)):
                if self._number > number:
                    self.enter(_FORGET)
                self._vain += self._number - number
            raise

    def enter(self, tag: int, offset: int = 0, length: int = 0, wake: bool = False) -> None:
        """Append a message whose payload has been placed, or that has none."""
        entries, at = self._entries, self._at
        entries[at] = tag
        entries[at + 1] = offset
        entries[at + 2] = length
        entries[at + 3] = self._number
        self._number += 1
        at += _FIELDS
        self._at = 0 if at == self._end else at
        self._written.release()
        if wake and self._wake is not None:
            self._wake.release()

    def _place(self, data: memoryview, stalled: Callable[[], None] | None) -> int:
        """Copy `data` to where it does not touch what is still unread; give its offset."""
        while self._read.acquire(False):
            continue
        unread, taken = self._unread, self._taken
        while unread and unread[0] <= taken[0]:
            unread.popleft()
        if not unread:
            self._offset = 0  # the first pages over and over: unused ones cost no memory
        length = len(data)
        if self._offset + length > PAYLOAD or len(unread) * 4 * _FIELDS > self._end:
            while unread and unread[-1] > taken[0]:
                if not self._read.acquire(True, 0.05) and stalled is not None:
                    stalled()
            unread.clear()
            self._offset = 0
        offset = self._offset
        self._payload[offset : offset + length] = data
        self._offset = offset + length
        if length:
            unread.append(self._number)
        return offset


class RingReader(_Ring):
    """The end that gets."""

    def __init__(
        self, arena: Arena, capacity: int, names: RingNames, spin: Spin = NEVER, *, create: bool = False
    ) -> None:
        super().__init__(arena, capacity, names, create=create)
        self._spin = spin
        self._usual = 0.0  # running mean of the waits, in seconds
        self._data: bytes | None = None  # copied for an entry that has not been handed over, and told to the writer
        self._pieces: list[bytes] = []

    def get(self, timeout: float | None) -> tuple[int, bytes | None] | None:
        """Take the next message, waiting up to `timeout` seconds (0: not at all); None if there is none by then."""
        while True:
            found, entries, at = self._written.acquire(False), self._entries, self._at
            if not found:
                if entries[at + 3] == self._number:
                    # About to be released, or an exception (Ctrl-C) came between an entry and its semaphore.
                    self._written.acquire(True, _MOMENT)
                elif timeout != 0:
                    found = self._wait(timeout)
            if entries[at + 3] != self._number:
                if found:  # for an entry that has been taken without it
                    continue
                return None
            # An exception of a signal's handler comes at the end of a call. After the last one here the entry is
            # taken; before that the next `get` finds things as they are.
            tag, offset, length = entries[at], entries[at + 1], entries[at + 2]
            data = self._take(tag, offset, length) if length else None
            at += _FIELDS
            self._at = 0 if at == self._end else at
            self._number += 1
            if tag > _MORE:
                return tag, data
            if tag == _FORGET:
                self._pieces = []

    def _take(self, tag: int, offset: int, length: int) -> bytes:
        """Read an entry's payload, and tell the writer; give it with the pieces before it."""
        if self._data is None:
            self._data = bytes(self._payload[offset : offset + length])
            self._read.release()
        data = self._data
        if tag == _MORE:
            self._pieces += [data]
        elif self._pieces:
            data = b"".join([*self._pieces, data])
            self._pieces = []
        self._data = None
        self._taken[0] = self._number
        return data

    def _wait(self, timeout: float | None) -> bool:
        acquire, clock, (least, most) = self._written.acquire, time.perf_counter, self._spin
        if not least:
            return bool(acquire(True) if timeout is None else acquire(True, timeout))
        start = now = clock()
        end = start + (most if self._usual < most else least)
        while not (found := acquire(False)) and now < end:
            now = clock()
        if not found:
            found = acquire(True) if timeout is None else acquire(True, timeout)
            now = clock()
        self._usual += (min(now - start, 4 * most) - self._usual) / 8
        return bool(found)
