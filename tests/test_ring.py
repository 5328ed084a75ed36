"""Rings: each message arrives once, whole and in order, wherever the handler of a signal raises in either end."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from bytecodes import interrupted
from hypothesis import given
from hypothesis import strategies as st

from vecenvs.batch.batch_columns import Allocator
from vecenvs.transport import ring
from vecenvs.transport.memory import Segment, new_name, unlink_semaphores
from vecenvs.transport.protocol import Answer, address
from vecenvs.transport.ring import ENTRY_BYTES, PAYLOAD, PIECE, RingReader, RingWriter

CAPACITY = 8
EDGES = [size + more for size in (0, PIECE, 2 * PIECE, 3 * PIECE, 5 * PIECE) for more in (-1, 0, 1, 2)]
SIZES = st.one_of(st.sampled_from([max(size, 0) for size in EDGES]), st.integers(0, 2000), st.integers(0, 4 * PAYLOAD))
Message = tuple[int, int, bytes]


@pytest.fixture(params=[False, True], ids=["strong", "weak"])
def _memory_model(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring, "_REORDERS", request.param)


def pair() -> tuple[RingWriter, RingReader]:
    segment, name = Segment(CAPACITY * ENTRY_BYTES + PAYLOAD + 512), new_name()
    writer = RingWriter(Allocator(segment.buffer), CAPACITY, name, create=True)
    reader = RingReader(Allocator(segment.buffer), CAPACITY, name)
    unlink_semaphores([name])
    return writer, reader


def content(rng: random.Random, size: int) -> bytes:
    """Return bytes that no other message has, in each of its pieces."""
    block = rng.randbytes(251)
    return (block * (size // len(block) + 1))[:size]


class Traffic:
    """Both ends of a ring, the messages that go through, and the serial numbers at which the reader has found some."""

    def __init__(self, messages: list[Message]) -> None:
        self.writer, self.reader = pair()
        self.messages = messages
        self.put_so_far = 0
        self.got: list[Message] = []
        self.got_at: object = None

    def put(self) -> None:
        number, tag, data = self.messages[self.put_so_far]
        if data or not self.writer.enter(number, tag):
            self.writer.put(number, tag, data)
        self.put_so_far += 1

    def get(self) -> None:
        found = self.reader.get(0)
        if found is not None:
            if self.got_at != self.reader._serial:  # else `take` was interrupted, and it has been recorded
                self.got_at = self.reader._serial
                self.got.append((found[0], found[1], found[2] or b""))
            self.reader.take()

    def run(self, rng: random.Random, attempt: Callable[[Callable[[], object]], bool]) -> set[int]:
        """Send and receive all, by attempts that an exception may end; return which messages they were about."""
        repeated: set[int] = set()
        while (left := self.put_so_far < len(self.messages)) or self.writer.unsent or self.reader.get(0) is not None:
            about = range(self.put_so_far - len(self.writer.unsent), self.put_so_far + 1)
            if attempt(rng.choice([self.put if left else self.writer.flush, self.writer.flush, self.get, self.get])):
                repeated.update(about)
        return repeated


def check(got: list[Message], messages: list[Message], repeated: set[int]) -> None:
    """Compare what has come with what was sent; of those in `repeated` each may come more than once, in its place."""
    position = -1
    for message in got:
        if position + 1 < len(messages) and message == messages[position + 1]:
            position += 1
        else:
            assert position in repeated, f"after {position + 1} of {len(messages)} messages there is another one"
            assert message == messages[position]
    assert position + 1 == len(messages), "messages are missing"


def uninterrupted(call: Callable[[], object]) -> bool:
    call()
    return False


def drawn(sizes: list[int], rng: random.Random) -> list[Message]:
    """Return messages of these sizes. Many of them have one number, as the answers to one command; no two are equal."""
    number, messages = 1, []
    for slot, size in enumerate(sizes):
        number += rng.random() < 0.3
        messages.append((number, address(Answer.SOME_ROWS, range(slot, slot + 1))[0], content(rng, size)))
    return messages


@pytest.mark.usefixtures("_memory_model")
@given(sizes=st.lists(SIZES, max_size=12), seed=st.integers(0, 2**32))
def test_every_message_arrives_once_and_whole(sizes: list[int], seed: int) -> None:
    rng = random.Random(seed)
    traffic = Traffic(drawn(sizes, rng))
    traffic.run(rng, uninterrupted)
    assert traffic.got == traffic.messages


@pytest.mark.sparse
@pytest.mark.usefixtures("_memory_model")
@pytest.mark.parametrize("seed", range(6))
def test_whatever_interrupts_either_end(seed: int) -> None:
    rng = random.Random(seed)
    interrupts = 0

    def attempt(call: Callable[[], object]) -> bool:
        nonlocal interrupts
        raised = interrupted(call, rng.randrange(80), {ring.__file__})
        interrupts += raised
        return raised

    for _ in range(12):
        sizes = [rng.choice([0, 0, 5, 1000, PIECE, PIECE + 1, 70_000, 200_000]) for _ in range(20)]
        traffic = Traffic(drawn(sizes, rng))
        check(traffic.got, traffic.messages, traffic.run(rng, attempt))
    assert interrupts > 150


def test_an_empty_ring_takes_as_much_as_it_has() -> None:
    writer, reader = pair()
    for number in range(5):  # from whatever place
        assert writer.put(number, 1, bytes(100))
        reader.get(0)
        reader.take()
        assert writer.put(number, 1, bytes(PAYLOAD))
        assert not writer.put(number, 2, bytes(1))
        while writer.unsent or reader.get(0) is not None:
            reader.get(0)
            reader.take()
            writer.flush()


def test_a_full_ring_takes_no_more() -> None:
    writer, reader = pair()
    for number in range(1, CAPACITY + 1):
        assert writer.enter(number, 33)
    assert not writer.enter(CAPACITY + 1, 33)
    assert reader.get(0) == reader.get(0) == (1, 33, None), "until it is taken"
    reader.take()
    assert writer.enter(CAPACITY + 1, 33)


def test_a_message_that_has_been_read_is_not_kept() -> None:
    writer, reader = pair()
    assert writer.put(1, 33, bytes(PIECE + 1))
    assert reader.get(0) == (1, 33, bytes(PIECE + 1))
    reader.take()
    assert reader._pieces == b""
