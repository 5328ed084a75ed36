"""Connections between a caller and its workers: who may connect, and messages whole and in order."""

from __future__ import annotations

import gc
import os
import select
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from typing import Any, cast

import pytest
from gymnasium import spaces

from vecenvs.batch.batch_columns import Allocator, BatchColumns
from vecenvs.transport import tcp
from vecenvs.transport.channel import Channel, PolledEnd
from vecenvs.transport.node_link import FIRST_MEMBER, NodeLink
from vecenvs.transport.protocol import Command
from vecenvs.transport.tcp import Invitation, Listener, TcpConnection
from vecenvs.worker.process import wait_for_end


@pytest.fixture
def listener() -> Iterator[Listener]:
    with closing(Listener("127.0.0.1")) as listener:
        yield listener


def join(listener: Listener) -> tuple[socket.socket, socket.socket]:
    """Connect as a worker does; return the caller's end and the worker's."""
    theirs = listener.invitation.connect()
    with ThreadPoolExecutor(1) as pool:
        ours = pool.submit(listener.accept)
        listener.invitation.prove(theirs)
        return ours.result(), theirs


def test_who_has_the_key_is_welcome(listener: Listener) -> None:
    ours, theirs = join(listener)
    with closing(theirs), closing(ours):
        assert ours.getpeername() == theirs.getsockname()
        for end in (ours, theirs):
            assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert theirs.gettimeout() is None, "a worker waits for commands as long as it takes"


@pytest.mark.parametrize("said", [b"", b"x", b"x" * 32, b"x" * 64, b"x" * 128])
def test_others_are_sent_away(listener: Listener, said: bytes) -> None:
    """And a worker that comes after them is welcome. They learn nothing but a challenge."""
    host, port, _ = listener.invitation
    with closing(socket.create_connection((host, port))) as stranger:
        stranger.sendall(said)
        stranger.shutdown(socket.SHUT_WR)
        ours, theirs = join(listener)
        with closing(theirs), closing(ours):
            assert ours.getpeername() == theirs.getsockname()
        heard = b""
        with suppress(ConnectionResetError):
            while piece := stranger.recv(100):
                heard += piece
        assert len(heard) in (0, 32)


def test_the_key_is_not_sent(listener: Listener) -> None:
    """Nor is a proof good for another connection."""
    host, port, key = listener.invitation
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        imposter = Invitation(*server.getsockname(), key)
        with ThreadPoolExecutor(1) as pool, closing(imposter.connect()) as theirs:
            waiting = pool.submit(imposter.prove, theirs)
            with closing(server.accept()[0]) as connection:
                connection.sendall(b"c" * 32)
                said = b""
                while len(said) < 64:
                    said += connection.recv(64)
            with pytest.raises(ConnectionError):
                waiting.result()
    assert key not in said
    with closing(socket.create_connection((host, port))) as thief:
        thief.sendall(said)
        ours, theirs = join(listener)
        with closing(theirs), closing(ours):
            assert ours.getpeername() == theirs.getsockname()


@pytest.mark.parametrize("answer", [b"p" * 32, b"", None])
def test_a_worker_wants_proof_of_the_caller(answer: bytes | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one to whom its own proof is sent back (None), and it hangs up."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        invitation = Invitation(*server.getsockname(), b"k" * 32)
        theirs = invitation.connect()
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(invitation.prove, theirs)
            with closing(server.accept()[0]) as connection:
                connection.sendall(b"c" * 32)
                said = b""
                while len(said) < 64:
                    said += connection.recv(64)
                connection.sendall(said[32:] if answer is None else answer)
                connection.shutdown(socket.SHUT_WR)
                with pytest.raises(ConnectionError):
                    waiting.result()
        assert theirs.fileno() == -1


class Dribble(threading.Thread):
    """Sends a byte now and then, so that no single `recv` takes long."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(daemon=True)
        self._connection = connection
        self._enough = threading.Event()
        self.start()

    def run(self) -> None:
        with suppress(OSError):
            while not self._enough.wait(0.02):
                self._connection.send(b"x")

    def end(self) -> None:
        self._enough.set()
        self.join(5)
        self._connection.close()


def test_one_deadline_for_all_that_a_stranger_says(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    """64 bytes at this rate take longer than the listener may."""
    monkeypatch.setattr(tcp, "CONNECT_TIMEOUT", 0.2)
    host, port, _ = listener.invitation
    stranger = Dribble(socket.create_connection((host, port)))
    with pytest.raises(TimeoutError, match="no worker has connected to"):
        listener.accept()
    assert stranger.is_alive(), "it was still talking"
    stranger.end()


def test_one_deadline_for_all_that_a_false_caller_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp, "CONNECT_TIMEOUT", 0.2)
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        invitation = Invitation(*server.getsockname(), b"k" * 32)
        theirs = invitation.connect()
        caller = Dribble(server.accept()[0])
        with pytest.raises(TimeoutError):
            invitation.prove(theirs)
        assert caller.is_alive(), "it was still talking"
        caller.end()


def test_nobody_comes(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp, "CONNECT_TIMEOUT", 0.05)
    with pytest.raises(TimeoutError):
        listener.accept()


def test_silent_strangers_keep_nobody_out(listener: Listener) -> None:
    """However many: when there are too many, the first of them is sent away."""
    host, port, _ = listener.invitation
    gc.collect()  # which closes what the tests before have left in cycles
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    strangers = [socket.create_connection((host, port)) for _ in range(100)]
    ours, theirs = join(listener)
    for each in strangers:
        each.close()
    with closing(theirs), closing(ours):
        assert ours.getpeername() == theirs.getsockname()
    if before:
        assert len(os.listdir("/proc/self/fd")) == before


def test_a_closed_listener_refuses(listener: Listener) -> None:
    listener.close()
    with pytest.raises(ConnectionRefusedError):
        listener.invitation.connect()


def test_messages_come_whole_and_in_order(listener: Listener) -> None:
    """Also those that no buffer holds, while the other end sends as much."""
    messages = [b"", b"a", b"b" * 3_000_000, b"c"]
    ours, theirs = join(listener)
    channel, end = Channel(theirs), PolledEnd(ours)
    with closing(channel), closing(end):
        returned = []

        def answer() -> None:
            for _ in messages:
                channel.send_bytes(bytes(channel.recv_bytes()))

        worker = threading.Thread(target=answer, daemon=True)
        worker.start()
        for message in messages:
            end.put(message)
        while len(returned) < len(messages):
            end.flush()
            returned += [bytes(message) for message in end.take()]
        worker.join(5)
        assert returned == messages


@pytest.mark.parametrize("timeout", [0.0, 5.0])
def test_large_messages_leave_while_answers_are_asked_for(listener: Listener, timeout: float) -> None:
    """Also by who never waits for this worker alone."""
    connection, theirs = join(listener)
    channel, ours = Channel(theirs), TcpConnection(connection)
    message = bytes(20_000_000)

    def answer() -> None:
        channel.send_bytes(str(len(channel.recv_bytes())).encode())

    with closing(channel):
        worker = threading.Thread(target=answer, daemon=True)
        worker.start()
        ours.put(message)
        end = time.monotonic() + 20.0
        while (found := ours.wait(timeout)) is None and time.monotonic() < end:
            pass
        assert found == str(len(message)).encode()
        worker.join(5)
        ours.close()


def test_a_worker_that_is_gone(listener: Listener) -> None:
    """What it has said before is not lost, then nobody waits for it, and commands are refused."""
    connection, theirs = join(listener)
    channel, ours = Channel(theirs), TcpConnection(connection)
    channel.send_bytes(b"last")
    channel.close()
    ours.put(b"unheard")
    ours.put(b"unheard")
    for _ in range(2):
        assert ours.wait(5.0) == b"last", "until it has been dropped"
    ours.drop()
    begun = time.monotonic()
    assert ours.wait(60.0) is None
    assert time.monotonic() - begun < 30.0
    batch = BatchColumns(spaces.Box(0, 1, (1,)), spaces.Discrete(2), 2, Allocator())
    with pytest.raises(BrokenPipeError):
        NodeLink(ours, batch).put((FIRST_MEMBER, 1, int(Command.STEP), b""))
    ours.close()


def test_the_end_shows(listener: Listener) -> None:
    ours, theirs = join(listener)
    channel, end = Channel(theirs), PolledEnd(ours)
    channel.send_bytes(b"last")
    channel.close()
    with closing(end):
        taken: list[bytearray] = []
        while not end.closed:
            taken += end.take()
        assert taken == [b"last"]


def test_a_worker_watches_its_end() -> None:
    """As it does the end of a pipe: whoever was there may have gone on as another program."""
    theirs, ours = socket.socketpair()
    channel = Channel(ours)
    theirs.close()
    assert not wait_for_end(os.getpid(), cast("Any", channel))
    channel.close()


def connected(listener: Listener) -> tuple[socket.socket, TcpConnection]:
    """Return a worker's end as it is, and the caller's."""
    theirs = listener.invitation.connect()
    with ThreadPoolExecutor(1) as pool:
        proved = pool.submit(listener.invitation.prove, theirs)
        ours = TcpConnection(listener.accept())
        proved.result()
    return theirs, ours


def test_a_machine_that_is_silent_is_asked(listener: Listener) -> None:
    theirs, ours = connected(listener)
    with theirs, closing(ours), socket.socket(fileno=os.dup(ours.fileno())) as same:
        for connection in (theirs, same):
            assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            idle, interval, trials = (
                connection.getsockopt(socket.IPPROTO_TCP, option)
                for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
            )
            assert idle + interval * trials == tcp.SILENCE


def test_one_that_lives_and_does_not_read_is_not_given_up(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not with more under way than the connection takes up, and not with a limit that is long over."""
    monkeypatch.setattr(tcp, "SILENCE", 0.1)
    theirs, ours = connected(listener)
    with theirs, closing(ours), socket.socket(fileno=os.dup(ours.fileno())) as same:
        assert same.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 0
        ours.put(bytes(1 << 24))
        assert ours.watch() == (ours.fileno(), select.POLLIN | select.POLLOUT)  # some of it is left
        for _ in range(30):
            assert not ours.lost
            time.sleep(0.1)


@pytest.mark.parametrize(
    ("repeats", "probes", "seconds", "expected"),
    [(2, 0, 1.5, True), (0, 2, 1.5, True), (1, 1, 1.5, True), (2, 0, 0.5, False), (1, 0, 1.5, False), (0, 0, 9, False)],
)
def test_how_often_and_how_long_data_were_sent_in_vain(
    repeats: int, probes: int, seconds: float, expected: bool
) -> None:
    """`seconds` are in units of the limit; the kernel counts in milliseconds."""

    class Connection:
        def fileno(self) -> int:
            return 9

        def getsockopt(self, level: int, option: int, size: int) -> bytes:
            assert (level, option) == (socket.IPPROTO_TCP, socket.TCP_INFO)
            return tcp._TCP_INFO.pack(repeats, probes, int(seconds * 1000 * tcp.SILENCE))

    assert tcp._is_cut(cast("Any", Connection())) is expected
