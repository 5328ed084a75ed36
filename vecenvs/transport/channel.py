"""Messages between two processes, over a pair of connected sockets: 8 bytes of length, then the message.

A worker blocks in its end (`Channel`). The other end (`PolledEnd`) never blocks.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections import deque
from typing import NamedTuple

_LENGTH = struct.Struct("=q")
_CHUNK = 1 << 18


class Channel:
    """The worker's end. It has those methods of a multiprocessing Connection that workers use."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        end.setblocking(True)

    def send_bytes(self, data: bytes) -> None:
        """Send a message, waiting until it has gone. BrokenPipeError if the other end is gone."""
        try:
            if len(data) < _CHUNK:
                self._end.sendall(_LENGTH.pack(len(data)) + data)
            else:
                self._end.sendall(_LENGTH.pack(len(data)))
                self._end.sendall(data)
        except OSError as exc:  # TimeoutError, no ConnectionError, where its machine cannot be reached
            raise BrokenPipeError(str(exc)) from exc

    def recv_bytes(self) -> bytearray:
        """Wait for a message. EOFError if the other end is gone."""
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        return self._read(length)

    def fileno(self) -> int:
        return self._end.fileno()

    def close(self) -> None:
        self._end.close()

    def _read(self, length: int) -> bytearray:
        data = bytearray(length)
        view = memoryview(data)
        while view:
            try:
                got = self._end.recv_into(view)
            except OSError as exc:
                raise EOFError(str(exc)) from exc
            if not got:
                raise EOFError
            view = view[got:]
        return data


class PolledEnd:
    """The other end: it keeps messages that cannot be sent yet, and returns whole ones.

    The handler of a signal may raise at any bytecode. So the outcome of a system call is recorded within one call into
    C (`list.extend` of a `map`), everything else in one assignment. A message may be sent twice, never a part of one.
    """

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        end.setblocking(False)
        self._unsent: deque[bytes | bytearray] = deque()
        self._sending: _Sending | None = None
        self._arrived = _Arrived([], 0)
        self.closed = False

    def fileno(self) -> int:
        return self._end.fileno()

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent or self._sending)

    def put(self, data: bytes | bytearray) -> None:
        """Append a message and send what fits now; `flush` sends the rest."""
        self._unsent.append(data)
        self.flush()

    def flush(self) -> None:
        while True:
            if self._sending is None:
                if not self._unsent:
                    return
                message = self._unsent[0]
                self._sending = _Sending(memoryview(_LENGTH.pack(len(message)) + message), [])
                self._unsent.popleft()
            data, sent = self._sending
            done = sum(sent)
            if done == len(data):
                self._sending = None
                continue
            try:
                sent.extend(map(self._end.send, (data[done:],)))
            except BlockingIOError:
                return
            except OSError:  # the process is gone, which its watcher reports
                self._unsent.clear()
                self._sending = None

    def receive(self) -> None:
        """Take in what has arrived. Sets `closed` once no more can come."""
        pieces = self._arrived.pieces
        try:
            while not self.closed:
                pieces.extend(map(self._end.recv, (_CHUNK,)))
                if len(pieces[-1]) < _CHUNK:
                    self.closed = not pieces[-1]
                    break
        except BlockingIOError:
            pass
        except OSError:
            self.closed = True

    def first(self) -> memoryview | None:
        """Return the oldest message that has not been dropped; None if none has arrived whole."""
        pieces, at = self._arrived
        have = sum(map(len, pieces)) - at
        if have < _LENGTH.size:
            return None
        if len(pieces) > 1 and len(pieces[0]) < at + _LENGTH.size:
            pieces[:] = [b"".join(pieces)]
        (length,) = _LENGTH.unpack_from(pieces[0], at)
        if have < _LENGTH.size + length:
            return None
        start = at + _LENGTH.size
        if len(pieces[0]) < start + length:
            pieces[:] = [b"".join(pieces)]
        return memoryview(pieces[0])[start : start + length]

    def drop(self) -> None:
        """Forget the message that `first` returns."""
        message = self.first()
        if message is not None:
            pieces, at = self._arrived
            at += _LENGTH.size + len(message)
            if at == len(pieces[0]):
                self._arrived = _Arrived(pieces[1:], 0)
            elif at > 4 * _CHUNK:  # not to be kept any longer
                self._arrived = _Arrived([pieces[0][at:], *pieces[1:]], 0)
            else:
                self._arrived = _Arrived(pieces, at)

    def take(self) -> list[bytes]:
        """Return the whole messages that have arrived, and forget them."""
        self.receive()
        messages = []
        while (message := self.first()) is not None:
            messages.append(bytes(message))
            self.drop()
        return messages

    def close(self) -> None:
        self.closed = True
        with contextlib.suppress(OSError):
            self._end.close()


class _Sending(NamedTuple):
    """A message under way, and how many bytes of it each call has sent."""

    data: memoryview
    sent: list[int]


class _Arrived(NamedTuple):
    """What has arrived, in pieces, and where the next message begins in the first of them."""

    pieces: list[bytes]
    at: int
