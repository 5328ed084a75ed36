"""Workers on other machines that have a TCP connection of their own to the caller: packed messages.

The caller listens for one connection (`Reception`), and gives the worker an `Invitation` by a channel that is trusted
(MPI, Ray). Messages hold pickles, so each side has the other prove that it knows the invitation's key before it
reads any. The key itself is never sent over the connection:

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
from collections.abc import Callable, Hashable, Iterable
from contextlib import closing, suppress
from typing import NamedTuple

from vecenvs.transport.channel import PolledEnd

CONNECT_TIMEOUT = 5.0  # seconds for each side, from its first look to the other's proof; usually it takes milliseconds
RETRY = 60.0  # seconds until a host whose workers could not connect is tried again
HEARSAY = 0.5  # seconds in which whoever has placed a worker should say why its connection has ended
GONE_PAUSE = 1e-3  # seconds between looks at a closed connection, until somebody says why it is
_SIZE = 32  # bytes of a key, of a challenge, of a proof
_MOST_GUESTS = 64
# A machine may vanish without a word. An idle connection is tried after KEEP_IDLE seconds, and every KEEP_INTERVAL.
KEEP_IDLE, KEEP_INTERVAL, KEEP_TRIALS = 6, 3, 3
SILENCE = float(KEEP_IDLE + KEEP_INTERVAL * KEEP_TRIALS)  # seconds after which it counts as lost
_TCP_INFO = struct.Struct("=2x2B52xI")  # of Linux: repeats of what was sent, of probes; milliseconds since an ack


class Invitation(NamedTuple):
    """Where to connect to, and the key that the worker and the caller share."""

    host: str
    port: int
    key: bytes

    def connect(self) -> socket.socket:
        """Connect. OSError if that cannot be done within CONNECT_TIMEOUT. Nothing is safe to read before `prove`."""
        return socket.create_connection((self.host, self.port), CONNECT_TIMEOUT)

    def prove(self, connection: socket.socket) -> None:
        """Prove to the caller, which is in `Reception.welcome`, that this is the worker, and have it prove itself.

        OSError, and the connection is closed, if it cannot, or does not within CONNECT_TIMEOUT.
        """
        deadline = time.monotonic() + CONNECT_TIMEOUT
        try:
            theirs, ours = _read(connection, deadline), secrets.token_bytes(_SIZE)
            connection.sendall(ours + _proof(self.key, b"worker", theirs, ours))
            if not hmac.compare_digest(_read(connection, deadline), _proof(self.key, b"caller", theirs, ours)):
                raise ConnectionError(f"what listens at {self.host}:{self.port} is not the caller")
            connection.settimeout(None)
            _quick(connection)
        except BaseException:
            connection.close()
            raise


def _proof(key: bytes, role: bytes, callers: bytes, workers: bytes) -> bytes:
    """Return what only a side that knows the key can say. With the role in it neither can send back the other's."""
    return hmac.digest(key, role + callers + workers, "sha256")


class Reception:
    """Listens on an address of this machine's, at a port of the system's choice, for one connection."""

    def __init__(self, host: str) -> None:
        self._socket = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        self._socket.setblocking(False)
        self.invitation = Invitation(host, self._socket.getsockname()[1], secrets.token_bytes(_SIZE))

    def welcome(self) -> socket.socket:
        """Return the worker's connection, once both sides have proved themselves. TimeoutError after CONNECT_TIMEOUT.

        All that connect are heard side by side, so none can hold up the worker by saying nothing, or little at a time.
        When there are too many, the one that connected first has to go.
        """
        deadline = time.monotonic() + CONNECT_TIMEOUT
        guests: deque[_Guest] = deque()
        try:
            while (left := deadline - time.monotonic()) > 0:
                sockets = [self._socket, *(guest.connection for guest in guests)]
                wait_for_any([(each.fileno(), select.POLLIN) for each in sockets], left)
                with suppress(BlockingIOError, ConnectionAbortedError):
                    guests.append(_Guest(self._socket.accept()[0]))
                if len(guests) > _MOST_GUESTS:
                    guests.popleft().connection.close()
                for guest in list(guests):
                    proved = guest.hear(self.invitation.key)
                    if proved is None:
                        continue
                    guests.remove(guest)
                    if proved:
                        return _quick(guest.connection)
                    guest.connection.close()
        finally:
            for guest in guests:
                guest.connection.close()
        raise TimeoutError(f"no worker has connected to {self.invitation.host}:{self.invitation.port}")

    def close(self) -> None:
        self._socket.close()


class _Guest:
    """A connection to a `Reception` that has not proved to be the worker's yet."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        connection.setblocking(False)
        self._challenge = secrets.token_bytes(_SIZE)
        self._said = b""
        with suppress(OSError):  # it has hung up: `hear` tells
            connection.send(self._challenge)

    def hear(self, key: bytes) -> bool | None:
        """Return whether this is the worker, and prove to it that this is the caller; None while too little is said."""
        try:
            piece = self.connection.recv(2 * _SIZE - len(self._said))
            self._said += piece
            if piece and len(self._said) < 2 * _SIZE:
                return None
            theirs, proof = self._said[:_SIZE], self._said[_SIZE:]
            if not hmac.compare_digest(proof, _proof(key, b"worker", self._challenge, theirs)):
                return False
            self.connection.send(_proof(key, b"caller", self._challenge, theirs))
        except BlockingIOError:
            return None
        except OSError:
            return False
        return True


class OutOfReach(Exception):
    """A worker cannot connect to this process; the text says why. `known`: this has been raised before."""

    known = False


class Reach:
    """Has workers elsewhere connect to this process, and remembers for a while which hosts' workers could not.

    An attempt that fails may take CONNECT_TIMEOUT, and a host may have many workers.
    """

    def __init__(self) -> None:
        self._failed: dict[Hashable, tuple[float, str]] = {}  # peer -> when to try again, and why not before

    def connect(
        self, peer: Hashable, address: Callable[[], str], ask: Callable[[Invitation], str | None]
    ) -> socket.socket:
        """Have a worker on the host `peer` connect to `address()`, an address of this machine's, or raise OutOfReach.

        `ask` brings it the invitation, and returns what keeps the worker from connecting; if that is None, the worker
        has connected, and calls `Invitation.prove` now.
        """
        again, problem = self._failed.get(peer, (0.0, ""))
        if time.monotonic() < again:
            raised = OutOfReach(problem)
            raised.known = True
            raise raised
        try:
            return _have_connect(address(), ask)
        except OutOfReach as exc:
            self._failed[peer] = time.monotonic() + RETRY, str(exc)
            raise


def _have_connect(host: str, ask: Callable[[Invitation], str | None]) -> socket.socket:
    try:
        reception = Reception(host)
    except OSError as exc:
        raise OutOfReach(f"it cannot connect to {host} ({type(exc).__name__}: {exc})") from exc
    with closing(reception):
        problem = ask(reception.invitation)
        if problem is None:
            try:
                return reception.welcome()
            except OSError as exc:
                problem = str(exc)
    raise OutOfReach(f"it cannot connect to {host} ({problem})")


def _read(connection: socket.socket, deadline: float) -> bytes:
    """Read `_SIZE` bytes. The deadline is one for all of them, however they are dealt out."""
    said = b""
    while len(said) < _SIZE:
        connection.settimeout(max(deadline - time.monotonic(), 1e-3))
        piece = connection.recv(_SIZE - len(said))
        if not piece:
            raise ConnectionError("the other end has hung up")
        said += piece
        if time.monotonic() >= deadline:
            raise TimeoutError("the other end takes too long to prove itself")
    return said


def _quick(connection: socket.socket) -> socket.socket:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("IDLE", KEEP_IDLE), ("INTVL", KEEP_INTERVAL), ("CNT", KEEP_TRIALS)):
        if hasattr(socket, f"TCP_KEEP{name}"):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, f"TCP_KEEP{name}"), value)
    return connection


def _is_cut(connection: socket.socket) -> bool:
    """Tell whether what was sent has been repeated in vain for SILENCE seconds. Only Linux knows.

    Keepalive does not cover data under way. TCP_USER_TIMEOUT would, but it also ends a connection whose other end lives
    and does not read: that of a learner which is busy with something else.
    """
    if not hasattr(socket, "TCP_INFO") or connection.fileno() < 0:
        return False
    repeats, probes, silent = _TCP_INFO.unpack(
        connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
    )
    return bool(repeats + probes > 1 and silent > 1e3 * SILENCE)


class Stream:
    """The caller's end of a connection: commands for one worker, and its answers."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._end = PolledEnd(connection)

    @property
    def closed(self) -> bool:
        """Whether either end has hung up, or the other one's machine cannot be reached any more."""
        return self._end.closed or _is_cut(self._connection)

    def fileno(self) -> int:
        """Give the connection's descriptor."""
        return self._connection.fileno()

    def send(self, data: bytes) -> None:
        """Send, in order, without waiting; BrokenPipeError if the worker has hung up."""
        if self._end.closed:
            raise BrokenPipeError("the worker has closed the connection")
        self._end.put(data)

    def receive(self, timeout: float | None) -> memoryview | None:
        """Return the oldest message that has not been dropped, waiting up to `timeout` seconds.

        None if there is none, early if none can come.
        """
        end = self._end
        deadline = None if timeout is None else time.monotonic() + timeout
        while (message := end.first()) is None and not end.closed:
            end.flush()
            end.receive()
            left = None if deadline is None else deadline - time.monotonic()
            if (message := end.first()) is not None or (left is not None and left <= 0):
                break
            if not end.closed:
                wait_for_any([self.watch()], left)
        if message is None and end.closed and timeout:
            time.sleep(min(timeout, GONE_PAUSE))
        return message

    def drop(self) -> None:
        """Forget the message that `receive` returns."""
        self._end.drop()

    def watch(self) -> tuple[int, int] | None:
        """As `Transport.watch`."""
        if self._end.closed:
            return None
        return self._end.fileno(), select.POLLIN | (select.POLLOUT if self._end.has_unsent else 0)

    def close(self) -> None:
        """Hang up. Repeatable."""
        self._end.close()


def wait_for_any(watched: Iterable[tuple[int, int] | None], seconds: float | None) -> None:
    """Wait, at most so many seconds, for one of the events that `watch` has named."""
    poll = select.poll()  # select() knows no descriptor beyond 1023
    for descriptor, events in filter(None, watched):
        poll.register(descriptor, events)
    poll.poll(None if seconds is None else 1e3 * seconds)
