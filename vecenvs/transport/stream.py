"""Workers on other machines that have a TCP connection of their own to the caller: packed messages.

The caller listens for one connection (`Reception`), and gives the worker an `Invitation` by a channel that is trusted.
Who connects must know its token before anything it sends is read: messages hold pickles.
"""

from __future__ import annotations

import hmac
import secrets
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import NamedTuple

from vecenvs.transport.channel import PolledEnd

CONNECT_TIMEOUT = 5.0  # seconds; where nothing is in the way it takes milliseconds
TOKEN_TIMEOUT = 0.5  # seconds for who has connected to say so: the worker has when it is welcomed
HEARSAY = 0.5  # seconds in which whoever has placed a worker should say why its connection has ended
GONE_PAUSE = 1e-3  # seconds between looks at a closed connection, until somebody says why it is
_TOKEN_BYTES = 32


class Invitation(NamedTuple):
    """Where to connect to, and what to say there."""

    host: str
    port: int
    token: bytes

    def accept(self) -> socket.socket:
        """Connect. OSError if that cannot be done within CONNECT_TIMEOUT."""
        connection = socket.create_connection((self.host, self.port), CONNECT_TIMEOUT)
        try:
            connection.sendall(self.token)
            connection.settimeout(None)
            return _quick(connection)
        except BaseException:
            connection.close()
            raise


class Reception:
    """Listens on an address of this machine's, at a port of the system's choice, for one connection."""

    def __init__(self, host: str) -> None:
        self._socket = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        self.invitation = Invitation(host, self._socket.getsockname()[1], secrets.token_bytes(_TOKEN_BYTES))

    def welcome(self) -> socket.socket:
        """Give the connection of whoever has accepted the invitation. TimeoutError if nobody does for a while."""
        deadline = time.monotonic() + CONNECT_TIMEOUT
        while (left := deadline - time.monotonic()) > 0:
            self._socket.settimeout(left)
            connection = self._socket.accept()[0]
            connection.settimeout(min(left, TOKEN_TIMEOUT))
            try:
                if hmac.compare_digest(_read_token(connection), self.invitation.token):
                    return _quick(connection)
            except OSError:
                pass  # somebody else, who says nothing: not ours to complain about
            connection.close()
        raise TimeoutError(f"nobody has connected to {self.invitation.host}:{self.invitation.port}")

    def close(self) -> None:
        self._socket.close()


class OutOfReach(Exception):
    """A worker cannot connect to this process; the text says why."""


def have_connect(host: str, ask: Callable[[Invitation], str | None]) -> socket.socket:
    """Have a worker elsewhere connect to this process at `host`, an address of this machine's, or raise OutOfReach.

    `ask` brings it the invitation and gives what keeps it from accepting; None if it has.
    """
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


def _read_token(connection: socket.socket) -> bytes:
    said = b""
    while len(said) < _TOKEN_BYTES and (piece := connection.recv(_TOKEN_BYTES - len(said))):
        said += piece
    return said


def _quick(connection: socket.socket) -> socket.socket:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # a machine may vanish without a word
    return connection


class Stream:
    """The caller's end of a connection: commands for one worker, and its answers."""

    def __init__(self, connection: socket.socket) -> None:
        self._end = PolledEnd(connection)
        self._inbox: deque[bytearray] = deque()

    @property
    def closed(self) -> bool:
        """Whether either end has hung up."""
        return self._end.closed

    def send(self, data: bytes) -> None:
        """Send, in order, without waiting; BrokenPipeError if the worker has hung up."""
        if self._end.closed:
            raise BrokenPipeError("the worker has closed the connection")
        self._end.put(data)

    def receive(self, timeout: float | None) -> bytearray | None:
        """Take the next message, waiting up to `timeout` seconds. None if there is none, early if none can come."""
        if not self._inbox:
            self._wait(timeout)
        if not self._inbox:
            return None
        message = self._inbox[0]
        del self._inbox[0]  # after `popleft`, a call, the exception of a signal's handler might come
        return message

    def watch(self) -> tuple[int, int] | None:
        """As `Transport.watch`."""
        if self._end.closed:
            return None
        return self._end.fileno(), select.POLLIN | (select.POLLOUT if self._end.has_unsent else 0)

    def close(self) -> None:
        """Hang up. Repeatable."""
        self._end.close()

    def _wait(self, timeout: float | None) -> None:
        """Take what comes, waiting for it up to `timeout` seconds."""
        end, inbox = self._end, self._inbox
        deadline = None if timeout is None else time.monotonic() + timeout
        while not end.closed:
            if end.has_unsent:
                end.flush()
            inbox.extend(end.take())
            left = None if deadline is None else deadline - time.monotonic()
            if inbox or (left is not None and left <= 0):
                return
            if not end.closed:
                wait_for_any([self.watch()], left)
        if timeout:
            time.sleep(min(timeout, GONE_PAUSE))


def wait_for_any(watched: Iterable[tuple[int, int] | None], seconds: float | None) -> None:
    """Wait, at most so many seconds, for one of the events that `watch` has named."""
    poll = select.poll()  # select() knows no descriptor beyond 1023
    for descriptor, events in filter(None, watched):
        poll.register(descriptor, events)
    poll.poll(None if seconds is None else 1e3 * seconds)
