"""Messages over sockets: whole, in order, wherever the stream is cut and the handler of a signal raises."""

from __future__ import annotations

import random
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from bytecodes import interrupted
from hypothesis import given
from hypothesis import strategies as st

from vecenvs.transport import channel
from vecenvs.transport.channel import _CHUNK, Channel, PolledEnd

SIZES = st.one_of(
    st.integers(0, 20),
    st.sampled_from([size + more for size in (1 << 12, 1 << 16, _CHUNK, 4 * _CHUNK) for more in (-9, -8, -1, 0, 1)]),
    st.integers(0, 5 * _CHUNK),
)


def content(rng: random.Random, size: int) -> bytes:
    block = rng.randbytes(251)
    return (block * (size // len(block) + 1))[:size]


@contextmanager
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with closing(ours), closing(theirs):
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 15)
        yield ours, theirs


@given(sizes=st.lists(SIZES, max_size=6), seed=st.integers(0, 2**32))
def test_a_stream_cut_anywhere(sizes: list[int], seed: int) -> None:
    """In the middle of a length, say; some messages are read late, so that others have arrived behind them."""
    rng = random.Random(seed)
    messages = [content(rng, size) for size in sizes]
    stream = memoryview(b"".join(struct.pack("=q", len(message)) + message for message in messages))
    got: list[bytes] = []
    with pair() as (ours, theirs):
        end = PolledEnd(theirs)
        while stream:
            cut = rng.choice([1, 3, 7, 8, 9, 1000, 1 << 14])
            ours.sendall(stream[:cut] if len(stream) > 4 * cut else stream[: 1 << 14])
            stream = stream[cut:] if len(stream) > 4 * cut else stream[1 << 14 :]
            if rng.random() < 0.5:
                end.receive()
            if rng.random() < 0.3 and (message := end.first()) is not None:
                assert end.first() == message, "until it is dropped"
                got.append(bytes(message))
                end.drop()
            elif len(stream) % 3 == 0:
                end.receive()
        got += end.take()
        assert not end.closed
    assert got == messages


@given(sizes=st.lists(SIZES, max_size=6), seed=st.integers(0, 2**32))
def test_both_kinds_of_ends(sizes: list[int], seed: int) -> None:
    """Messages to a worker that blocks, and back, through buffers that are too small for them."""
    rng = random.Random(seed)
    messages = [content(rng, size) for size in sizes]
    with pair() as (ours, theirs):
        end, worker = PolledEnd(ours), Channel(theirs)
        echo = threading.Thread(target=lambda: [worker.send_bytes(bytes(worker.recv_bytes())) for _ in messages])
        echo.start()
        got: list[bytes] = []
        for message in messages:
            end.put(message)
            got += end.take()
        while len(got) < len(messages):
            end.flush()
            got += end.take()
        echo.join(30)
        assert not end.has_unsent
    assert got == messages


@pytest.mark.parametrize("seed", range(4))
def test_whatever_interrupts_the_end_that_polls(seed: int) -> None:
    """A message under way then may come twice in a row; nothing is lost, or comes in parts."""
    rng = random.Random(seed)
    interrupts = 0
    for _ in range(10):
        messages = [content(rng, rng.choice([9, 10, 5000, 70_000, _CHUNK + 5])) for _ in range(12)]
        got: list[bytes] = []
        with pair() as (ours, theirs):
            one, other = PolledEnd(ours), PolledEnd(theirs)
            put = 0
            found: list[memoryview] = []

            def receive(end: PolledEnd, found: list[memoryview]) -> None:
                end.receive()
                if (message := end.first()) is not None:
                    found.append(message)
                    end.drop()

            while put < len(messages) or one.has_unsent or other.first() is not None:
                if put < len(messages) and rng.random() < 0.5:
                    if interrupted(lambda: one.put(messages[put]), rng.randrange(50), {channel.__file__}):  # noqa: B023
                        interrupts += 1
                    else:
                        put += 1
                elif rng.random() < 0.3:
                    interrupts += interrupted(one.flush, rng.randrange(50), {channel.__file__})
                elif interrupted(lambda: receive(other, found), rng.randrange(50), {channel.__file__}):  # noqa: B023
                    interrupts += 1
                    if found and other.first() is not None and other.first() == found[-1]:
                        found.pop()  # it was returned, and not dropped
                got += map(bytes, found)
                found.clear()
                other.receive()
        position = -1
        for message in got:
            if position + 1 < len(messages) and message == messages[position + 1]:
                position += 1
            else:
                assert message == messages[position]
        assert position + 1 == len(messages)
    assert interrupts > 100
