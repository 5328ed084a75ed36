"""Batches ahead of the learner: two calls to the server are always under way, each for several batches.

Where server and learner share a machine, blocks lie in memory that both have open, one place per call, and a call's
answer is how many rows there are. Elsewhere the answer is the block itself.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from vecenvs.replay.blocks import Batches, Block, BlockLayout
from vecenvs.replay.errors import SampleTimeout, ServerDied
from vecenvs.replay.link import LOOK, get
from vecenvs.transport.memory import Address, Segment, open_segment

UNDER_WAY = 2
TOKEN = 16  # bytes at the beginning of shared memory, by which the server sees that it is the right one
ALIGN = 64


class Places:
    """The shared memory of one stream, as either side sees it: UNDER_WAY places for blocks of up to `size` bytes."""

    def __init__(self, buffer: memoryview, size: int) -> None:
        self._blocks = [
            np.frombuffer(buffer, np.uint8, count=size, offset=ALIGN + place * size) for place in range(UNDER_WAY)
        ]

    def __getitem__(self, place: int) -> Block:
        return self._blocks[place]


def open_places(address: Address, token: bytes, size: int) -> Places:
    """Open the memory that a learner has made. OSError if it cannot be reached from here."""
    buffer = open_segment(address)
    if bytes(buffer[:TOKEN]) != token:  # another process has that number here
        raise FileNotFoundError(f"{address.path} is not the learner's memory")
    return Places(buffer, size)


class Stream:
    """Gives batches of one size, drawn in the order of the calls. `key` tells the server's streams apart.

    A batch was drawn at most 3 * `batches` batches before it is given: two calls under way and a block in hand.
    `why` is empty if blocks come through shared memory, else the reason why they do not.
    """

    def __init__(self, server: Any, layout: BlockLayout, batch_size: int, batches: int, key: int) -> None:
        self.batch_size = batch_size
        self.batches = batches
        self.key = key
        self._server = server
        self._layout = layout
        self._calls: deque[tuple[int, Any]] = deque()
        self._open: Batches | None = None
        size = layout.bytes_of(batch_size * batches)
        segment, token = Segment(ALIGN + UNDER_WAY * size), secrets.token_bytes(TOKEN)
        segment.buffer[:TOKEN] = token
        self._places = Places(segment.buffer, size)
        try:
            self.why: str = get(server.share.remote(key, segment.address, token, size))
        finally:
            segment.forget()

    def take(self, beta: float, timeout: float | None, check: Callable[[], None]) -> dict[str, Any]:
        """Give the next batch. `check` is called before it asks, and five times a second while it waits; it may raise.

        SampleTimeout after `timeout` seconds; nothing is lost by it. What the server refuses is raised as it is.
        """
        if self._open is None or not self._open.left:
            self._open = self._next_block(beta, timeout, check)
        return self._open.take()

    def give_back(self) -> None:
        """Tell the server that what was drawn ahead will not be used. Drawing goes on with the next `take`."""
        left = self._open.left if self._open is not None else 0
        self._open = None
        calls = [call for _, call in self._calls]
        self._calls.clear()
        if left or calls:
            get(self._server.give_back.remote(calls, left * self.batch_size))

    def _next_block(self, beta: float, timeout: float | None, check: Callable[[], None]) -> Batches:
        import ray

        check()
        deadline = None if timeout is None else time.monotonic() + timeout
        for place in range(UNDER_WAY):
            if place not in [taken for taken, _ in self._calls]:
                self._ask(place, beta)
        while True:
            left = LOOK if deadline is None else min(max(deadline - time.monotonic(), 0.0), LOOK)
            place, call = self._calls[0]
            try:
                answer = get(call, left)
                break
            except ray.exceptions.GetTimeoutError:
                check()
                if deadline is not None and time.monotonic() >= deadline:
                    raise SampleTimeout(self.batch_size, timeout or 0.0) from None
            except ServerDied:
                self._calls.clear()
                raise
            except ValueError:  # refused
                self._calls.popleft()
                self.give_back()
                raise
        block = self._places[place] if isinstance(answer, int) else answer
        own = np.array(block[: self._layout.bytes_in(block)])
        self._calls.popleft()
        self._ask(place, beta)
        return self._layout.open(own, self.batch_size)

    def _ask(self, place: int, beta: float) -> None:
        call = self._server.sample.remote(self.batch_size, self.batches, beta, self.key, place)
        self._calls.append((place, call))
