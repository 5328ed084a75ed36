"""Connections between a caller and its workers: who may connect, and messages whole and in order."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any, cast

import pytest

from vecenvs.process import _wait_for_end
from vecenvs.transport import stream
from vecenvs.transport.channel import Channel, PolledEnd
from vecenvs.transport.stream import Reception, Stream


@pytest.fixture
def reception() -> Iterator[Reception]:
    with closing(Reception("127.0.0.1")) as reception:
        yield reception


def test_who_has_the_token_is_welcome(reception: Reception) -> None:
    theirs = reception.invitation.accept()
    with closing(theirs), closing(reception.welcome()) as ours:
        assert ours.getpeername() == theirs.getsockname()
        for end in (ours, theirs):
            assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert theirs.gettimeout() is None, "a worker waits for commands as long as it takes"


@pytest.mark.parametrize("said", [b"", b"x", b"x" * 32, b"x" * 64])
def test_others_are_sent_away(reception: Reception, said: bytes) -> None:
    """And whoever comes after them with the token is welcome."""
    host, port, _ = reception.invitation
    with closing(socket.create_connection((host, port))) as stranger:
        stranger.sendall(said)
        stranger.shutdown(socket.SHUT_WR)
        with closing(reception.invitation.accept()) as theirs, closing(reception.welcome()) as ours:
            assert ours.getpeername() == theirs.getsockname()
        with suppress(ConnectionResetError):
            assert stranger.recv(1) == b""


def test_nobody_comes(reception: Reception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "CONNECT_TIMEOUT", 0.05)
    with pytest.raises(TimeoutError):
        reception.welcome()


def test_a_silent_stranger_keeps_nobody_out(reception: Reception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "TOKEN_TIMEOUT", 0.05)
    host, port, _ = reception.invitation
    with closing(socket.create_connection((host, port))), closing(reception.invitation.accept()) as theirs:
        with closing(reception.welcome()) as ours:
            assert ours.getpeername() == theirs.getsockname()
        monkeypatch.setattr(stream, "CONNECT_TIMEOUT", 0.1)
        with closing(socket.create_connection((host, port))), pytest.raises(TimeoutError):
            reception.welcome()


def test_a_closed_reception_refuses(reception: Reception) -> None:
    reception.close()
    with pytest.raises(ConnectionRefusedError):
        reception.invitation.accept()


def test_messages_come_whole_and_in_order(reception: Reception) -> None:
    """Also those that no buffer holds, while the other end sends as much."""
    messages = [b"", b"a", b"b" * 3_000_000, b"c"]
    channel = Channel(reception.invitation.accept())
    end = PolledEnd(reception.welcome())
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
def test_large_messages_leave_while_answers_are_asked_for(reception: Reception, timeout: float) -> None:
    """Also by who never waits for this worker alone."""
    channel = Channel(reception.invitation.accept())
    ours = Stream(reception.welcome())
    message = bytes(20_000_000)

    def answer() -> None:
        channel.send_bytes(str(len(channel.recv_bytes())).encode())

    with closing(channel):
        worker = threading.Thread(target=answer, daemon=True)
        worker.start()
        ours.send(message)
        end = time.monotonic() + 20.0
        while (found := ours.receive(timeout)) is None and time.monotonic() < end:
            pass
        assert found == str(len(message)).encode()
        worker.join(5)
        ours.close()


def test_a_worker_that_is_gone(reception: Reception) -> None:
    """What it has said before is not lost, then nobody waits for it, and commands are refused."""
    channel = Channel(reception.invitation.accept())
    ours = Stream(reception.welcome())
    channel.send_bytes(b"last")
    channel.close()
    ours.send(b"unheard")
    ours.send(b"unheard")
    assert ours.receive(5.0) == b"last"
    begun = time.monotonic()
    assert ours.receive(60.0) is None
    assert time.monotonic() - begun < 30.0
    with pytest.raises(BrokenPipeError):
        ours.send(b"refused")
    ours.close()


def test_the_end_shows(reception: Reception) -> None:
    channel = Channel(reception.invitation.accept())
    end = PolledEnd(reception.welcome())
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
    assert not _wait_for_end(os.getpid(), cast("Any", channel))
    channel.close()
