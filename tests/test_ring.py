"""Rings: nothing is lost, torn or out of order, wherever the handler of a signal raises in either end."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from vecenvs.batch.batch_columns import Allocator
from vecenvs.transport import ring
from vecenvs.transport.memory import Segment, new_name, unlink_semaphores
from vecenvs.transport.protocol import Answer
from vecenvs.transport.ring import ENTRY_BYTES, PAYLOAD, RingReader, RingWriter

CAPACITY = 8
SIZES = (0, 0, 5, 1000, 40_000, 70_000, 200_000)
Message = tuple[int, int, bytes]


class HandlerError(Exception):
    """What the handler of a signal raises."""


def pair() -> tuple[RingWriter, RingReader]:
    segment, name = Segment(CAPACITY * ENTRY_BYTES + PAYLOAD + 512), new_name()
    writer = RingWriter(Allocator(segment.buffer), CAPACITY, name, create=True)
    reader = RingReader(Allocator(segment.buffer), CAPACITY, name)
    unlink_semaphores([name])
    return writer, reader


def interrupted(call: Callable[[], Any], bytecodes: int) -> Any:
    """Call, and raise after so many bytecodes of the ring's own."""
    left = bytecodes

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename != ring.__file__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left < 0:
                sys.settrace(None)
                raise HandlerError
        return trace

    sys.settrace(trace)
    try:
        return call()
    finally:
        sys.settrace(None)


class Ends:
    """Both ends, and what has gone through: as a caller and a worker use them, numbers ascending."""

    def __init__(self, rng: random.Random) -> None:
        self.writer, self.reader = pair()
        self.rng = rng
        self.given: list[Message] = []
        self.got: list[Message] = []
        self.waiting: Message | None = None

    def put(self, call: Callable[[Callable[[], Any]], Any]) -> None:
        if self.waiting is None:
            tag = self.rng.choice([int(Answer.SOME_ROWS), int(Answer.PLAIN_ROWS)])
            self.waiting = len(self.given) + 1, tag, os.urandom(self.rng.choice(SIZES))
        number, tag, data = message = self.waiting
        if call(lambda: self.writer.put(number, tag, data) if data else self.writer.enter(number, tag)):
            self.given.append(message)
            self.waiting = None

    def get(self, call: Callable[[Callable[[], Any]], Any]) -> None:
        message = call(lambda: self.reader.get(0))
        if message is not None:
            number, tag, data = message
            if not self.got or number > self.got[-1][0]:  # as workers do with what has been put twice
                self.got.append((number, tag, data or b""))
            call(self.reader.take)


@pytest.mark.parametrize("seed", range(4))
def test_whatever_interrupts_either_end(seed: int) -> None:
    rng = random.Random(seed)
    interrupts = 0
    for _ in range(10):
        ends = Ends(rng)
        for _ in range(300):
            try:
                rng.choice([ends.put, ends.get])(lambda call: interrupted(call, rng.randrange(400)))
            except HandlerError:
                interrupts += 1
        for _ in range(100):
            if ends.waiting is not None:
                ends.put(lambda call: call())
            ends.get(lambda call: call())
        assert ends.waiting is None
        assert ends.got == ends.given
    assert interrupts > 500


def test_a_full_ring_takes_no_more() -> None:
    writer, reader = pair()
    for number in range(1, CAPACITY + 1):
        assert writer.enter(number, 33)
    assert not writer.enter(CAPACITY + 1, 33)
    assert reader.get(0) == reader.get(0) == (1, 33, None), "until it is taken"
    reader.take()
    assert writer.enter(CAPACITY + 1, 33)
