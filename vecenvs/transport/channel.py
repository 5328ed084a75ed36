"""Messages between two processes, over a pair of connected sockets: 8 bytes of length, then the message.

A worker blocks (`Channel`); the other end, which has other things to do, never does (`PolledEnd`).
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections import deque

_LENGTH = struct.Struct("=q")
_CHUNK = 1 << 18


class Channel:
    """The worker's end. Has the methods of a multiprocessing Connection that workers use."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        end.setblocking(True)

    def fileno(self) -> int:
        return self._end.fileno()

    def send_bytes(self, data: bytes) -> None:
        if len(data) < _CHUNK:
            self._end.sendall(_LENGTH.pack(len(data)) + data)
        else:
            self._end.sendall(_LENGTH.pack(len(data)))
            self._end.sendall(data)

    def recv_bytes(self) -> bytearray:
        """Wait for a message. EOFError if the other end is gone."""
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        return self._read(length)

    def close(self) -> None:
        self._end.close()

    def _read(self, length: int) -> bytearray:
        data = bytearray(length)
        view = memoryview(data)
        while view:
            got = self._end.recv_into(view)
            if not got:
                raise EOFError
            view = view[got:]
        return data


class PolledEnd:
    """The other end: takes whole messages, and keeps what does not fit now."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        end.setblocking(False)
        self._out: deque[memoryview] = deque()
        self._in = bytearray()
        self.closed = False

    def fileno(self) -> int:
        return self._end.fileno()

    @property
    def has_unsent(self) -> bool:
        return bool(self._out)

    def put(self, data: bytes | bytearray) -> None:
        """Append a message and send what fits now; `flush` sends the rest."""
        self._out.append(memoryview(_LENGTH.pack(len(data))))
        if data:
            self._out.append(memoryview(data))
        self.flush()

    def flush(self) -> None:
        try:
            while self._out:
                sent = self._end.sendmsg(list(self._out)[:16])
                while sent and self._out:
                    part = self._out[0]
                    if sent < len(part):
                        self._out[0] = part[sent:]
                        break
                    sent -= len(part)
                    self._out.popleft()
        except BlockingIOError:
            return
        except OSError:  # the process is gone: whoever watches it says so
            self._out.clear()

    def take(self) -> list[bytearray]:
        """Give the whole messages that have arrived. Sets `closed` once no more can come."""
        try:
            while True:
                piece = self._end.recv(_CHUNK)
                if not piece:
                    self.closed = True
                    break
                self._in += piece
                if len(piece) < _CHUNK:
                    break
        except BlockingIOError:
            pass
        except OSError:
            self.closed = True
        return self._split()

    def _split(self) -> list[bytearray]:
        messages = []
        at = 0
        while len(self._in) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._in, at)
            start = at + _LENGTH.size
            if len(self._in) < start + length:
                break
            messages.append(self._in[start : start + length])
            at = start + length
        del self._in[:at]
        return messages

    def close(self) -> None:
        self.closed = True
        with contextlib.suppress(OSError):
            self._end.close()
