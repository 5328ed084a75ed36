"""TCP connections that workers on other machines open to the caller.

The caller listens for one connection (`Listener`), and sends the worker an `Invitation` over a trusted channel (MPI,
Ray). Messages are pickles, so before either side reads any, each proves to the other that it knows the invitation's
key. The key itself is never sent over the connection:

    caller -> worker    a challenge, 32 random bytes
    worker -> caller    a challenge of its own, and its proof: HMAC-SHA256(key, "worker" + both challenges)
    caller -> worker    its proof: HMAC-SHA256(key, "caller" + both challenges)
"""

from __future__ import annotations

import hmac
import secrets
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from vecenvs.transport.channel import PolledEnd

CONNECT_TIMEOUT = 5.0  # seconds to connect, and for each side to receive the other's proof; usually milliseconds
CAUSE_TIMEOUT = 0.5  # seconds in which MPI or Ray should say why a worker's connection has ended
_CLOSED_PAUSE = 1e-3  # seconds between looks at a closed connection, while nothing says why it has ended
_SIZE = 32  # bytes of a key, of a challenge, of a proof
_MOST_CANDIDATES = 64
# A machine may vanish without a word. An idle connection is probed after KEEP_IDLE seconds, and every KEEP_INTERVAL.
KEEP_IDLE, KEEP_INTERVAL, KEEP_PROBES = 6, 3, 3
SILENCE = float(KEEP_IDLE + KEEP_INTERVAL * KEEP_PROBES)  # seconds of silence after which a connection counts as lost
_TCP_INFO = struct.Struct("=2x2B52xI")  # of Linux: retransmissions, unanswered probes; milliseconds since an ack


class Invitation(NamedTuple):
    """Where a worker connects to, and the key that it shares with the caller."""

    host: str
    port: int
    key: bytes

    def connect(self) -> socket.socket:
        """Connect. OSError if that takes longer than CONNECT_TIMEOUT. Call `prove` before anything is read."""
        return socket.create_connection((self.host, self.port), CONNECT_TIMEOUT)

    def prove(self, connection: socket.socket) -> None:
        """Prove to the caller, which is in `Listener.accept`, that this is the worker, and check the caller's proof.

        Raises:
            OSError: the other end has no valid proof, or none within CONNECT_TIMEOUT. The connection is closed.
        """
        deadline = time.monotonic() + CONNECT_TIMEOUT
        try:
            theirs, ours = _read(connection, deadline), secrets.token_bytes(_SIZE)
            connection.sendall(ours + _proof(self.key, b"worker", theirs, ours))
            if not hmac.compare_digest(_read(connection, deadline), _proof(self.key, b"caller", theirs, ours)):
                raise ConnectionError(f"what listens at {self.host}:{self.port} is not the caller")
            connection.settimeout(None)
            _configure(connection)
        except BaseException:
            connection.close()
            raise


def _proof(key: bytes, role: bytes, callers: bytes, workers: bytes) -> bytes:
    """Return the proof of one side. The role in it keeps either side from sending back the other's."""
    return hmac.digest(key, role + callers + workers, "sha256")


class Listener:
    """Listens on one address of this machine for one connection. The system chooses the port if it is 0."""

    def __init__(self, host: str, port: int = 0) -> None:
        self._socket = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        self._socket.setblocking(False)
        self.invitation = Invitation(host, self._socket.getsockname()[1], secrets.token_bytes(_SIZE))

    def accept(self) -> socket.socket:
        """Return the worker's connection, once both sides have proved themselves. TimeoutError after CONNECT_TIMEOUT.

        Connections are checked side by side, so one that sends nothing, or little at a time, delays no other. When
        there are too many the oldest is closed.
        """
        deadline = time.monotonic() + CONNECT_TIMEOUT
        candidates: deque[_Candidate] = deque()
        try:
            while (left := deadline - time.monotonic()) > 0:
                sockets = [self._socket, *(candidate.connection for candidate in candidates)]
                wait_for_any([(each.fileno(), select.POLLIN) for each in sockets], left)
                with suppress(BlockingIOError, ConnectionAbortedError):
                    candidates.append(_Candidate(self._socket.accept()[0]))
                if len(candidates) > _MOST_CANDIDATES:
                    candidates.popleft().connection.close()
                for candidate in list(candidates):
                    proved = candidate.check(self.invitation.key)
                    if proved is None:
                        continue
                    candidates.remove(candidate)
                    if proved:
                        return _configure(candidate.connection)
                    candidate.connection.close()
        finally:
            for candidate in candidates:
                candidate.connection.close()
        raise TimeoutError(f"no worker has connected to {self.invitation.host}:{self.invitation.port}")

    def close(self) -> None:
        """Stop listening. Repeatable."""
        self._socket.close()


class _Candidate:
    """A connection to a `Listener` that has not yet proved to be the worker's."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        connection.setblocking(False)
        self._challenge = secrets.token_bytes(_SIZE)
        self._received = b""
        with suppress(OSError):  # it has hung up, which `check` finds
            connection.send(self._challenge)

    def check(self, key: bytes) -> bool | None:
        """Return whether this is the worker, and if so send it the caller's proof; None while bytes are missing."""
        try:
            piece = self.connection.recv(2 * _SIZE - len(self._received))
            self._received += piece
            if piece and len(self._received) < 2 * _SIZE:
                return None
            theirs, proof = self._received[:_SIZE], self._received[_SIZE:]
            if not hmac.compare_digest(proof, _proof(key, b"worker", self._challenge, theirs)):
                return False
            self.connection.send(_proof(key, b"caller", self._challenge, theirs))
        except BlockingIOError:
            return None
        except OSError:
            return False
        return True


def _read(connection: socket.socket, deadline: float) -> bytes:
    """Read `_SIZE` bytes. The deadline is one for all of them, in however many pieces they come."""
    received = b""
    while len(received) < _SIZE:
        connection.settimeout(max(deadline - time.monotonic(), 1e-3))
        piece = connection.recv(_SIZE - len(received))
        if not piece:
            raise ConnectionError("the other end has hung up")
        received += piece
        if time.monotonic() >= deadline:
            raise TimeoutError("the other end takes too long to prove itself")
    return received


def _configure(connection: socket.socket) -> socket.socket:
    """Send small messages at once, and probe an idle connection."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("IDLE", KEEP_IDLE), ("INTVL", KEEP_INTERVAL), ("CNT", KEEP_PROBES)):
        if hasattr(socket, f"TCP_KEEP{name}"):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, f"TCP_KEEP{name}"), value)
    return connection


def _is_cut(connection: socket.socket) -> bool:
    """Tell whether data have been retransmitted in vain for SILENCE seconds. Only Linux knows.

    Keepalive does not cover data under way. TCP_USER_TIMEOUT would, but it also ends a connection whose other end lives
    and does not read: that of a learner which is busy with something else.
    """
    if not hasattr(socket, "TCP_INFO") or connection.fileno() < 0:
        return False
    repeats, probes, silent = _TCP_INFO.unpack(
        connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
    )
    return bool(repeats + probes > 1 and silent > 1e3 * SILENCE)


class TcpConnection(PolledEnd):
    """The caller's end of a connection: messages to one worker, and its answers."""

    @property
    def lost(self) -> bool:
        """Whether either end has hung up, or the worker's machine has been silent for too long."""
        return self.closed or _is_cut(self._end)

    def wait(self, timeout: float | None) -> memoryview | None:
        """Return the oldest message that has not been dropped, waiting up to `timeout` seconds.

        Returns:
            The message, or None if there is none. None comes early if no more can come.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while (message := self.first()) is None and not self.closed:
            self.flush()
            self.receive()
            left = None if deadline is None else deadline - time.monotonic()
            if (message := self.first()) is not None or (left is not None and left <= 0):
                break
            if not self.closed:
                wait_for_any([self.watch()], left)
        if message is None and self.closed and timeout:
            time.sleep(min(timeout, _CLOSED_PAUSE))
        return message

    def watch(self) -> tuple[int, int] | None:
        """Return a descriptor and events, as `Transport.watch`."""
        return None if self.closed else (self.fileno(), select.POLLIN | (select.POLLOUT if self.has_unsent else 0))


def wait_for_any(watched: Iterable[tuple[int, int] | None], seconds: float | None) -> None:
    """Wait, at most so many seconds, for one of the events that `watch` has named."""
    poll = select.poll()  # select() knows no descriptor beyond 1023
    for descriptor, events in filter(None, watched):
        poll.register(descriptor, events)
    poll.poll(None if seconds is None else 1e3 * seconds)
