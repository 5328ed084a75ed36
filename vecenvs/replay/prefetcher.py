"""Prefetching of batches: two calls to the server are always unanswered, each for a block of several batches.

Where server and learner share a machine, the server writes blocks into memory that both have opened, and answers with
the number of rows. Elsewhere the answer is the block itself.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from vecenvs.replay.blocks import Block, BlockLayout
from vecenvs.replay.errors import SampleTimeout
from vecenvs.replay.link import CHECK_INTERVAL, server_result
from vecenvs.transport.memory import Address, Segment, open_segment

CALLS = 2  # unanswered calls at a time
TOKEN = 16  # bytes at the beginning of the memory, by which the server recognises it
ALIGN = 64


class SharedBlocks:
    """Shared memory for one block of up to `size` bytes per unanswered call."""

    def __init__(self, buffer: memoryview, size: int) -> None:
        self._blocks = [np.frombuffer(buffer, np.uint8, count=size, offset=ALIGN + i * size) for i in range(CALLS)]

    def __getitem__(self, index: int) -> Block:
        return self._blocks[index]


def open_shared_blocks(address: Address, token: bytes, size: int) -> SharedBlocks:
    """Open the learner's memory; OSError if it cannot be reached from this process."""
    buffer = open_segment(address)
    if bytes(buffer[:TOKEN]) != token:  # another process with the same number, on another machine or in a container
        raise FileNotFoundError(f"{address.path} is not the learner's memory")
    return SharedBlocks(buffer, size)


class Prefetcher:
    """Returns batches of one size. The server may begin the later one of two calls first, as Ray's async actors do.

    A batch is drawn at most 3 * `batches` batches before it is returned: two unanswered calls and the current block.
    `why` is empty if blocks come through shared memory, else the reason why they do not.
    """

    def __init__(self, server: Any, layout: BlockLayout, batch_size: int, batches: int) -> None:
        self._batch_size = batch_size
        self._batches = batches
        self._server = server
        self._layout = layout
        self._calls: dict[int, Any] = {}  # by the index of the shared block
        self._ready: deque[dict[str, Any]] = deque()  # the rest of the current block
        self._generation = 0
        size = layout.bytes_of(batch_size * batches)
        segment, token = Segment(ALIGN + CALLS * size), secrets.token_bytes(TOKEN)
        segment.buffer[:TOKEN] = token
        self._blocks = SharedBlocks(segment.buffer, size)
        try:
            self.why: str = server_result(server.open_memory.remote(segment.address, token, size))
        finally:
            segment.forget()

    def take(self, beta: float, timeout: float | None, check: Callable[[], None]) -> dict[str, Any]:
        """Return the next batch.

        `check` is called before a request and five times a second during the wait, and may raise. SampleTimeout after
        `timeout` seconds loses nothing.
        """
        if not self._ready:
            self._ready.extend(self._next_block(beta, timeout, check))
        return self._ready.popleft()

    def restart(self, generation: int) -> None:
        """Discard what was drawn before the server's restore number `generation`."""
        self._generation = generation
        self._ready.clear()

    def _next_block(self, beta: float, timeout: float | None, check: Callable[[], None]) -> list[dict[str, Any]]:
        import ray

        check()
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            for index in range(CALLS):
                if index not in self._calls:
                    self._calls[index] = self._server.sample.remote(self._batch_size, self._batches, beta, index)
            left = CHECK_INTERVAL if deadline is None else min(max(deadline - time.monotonic(), 0.0), CHECK_INTERVAL)
            answered, _ = ray.wait([*self._calls.values()], timeout=left)
            if not answered:
                check()
                if deadline is not None and time.monotonic() >= deadline:
                    raise SampleTimeout(self._batch_size, timeout or 0.0)
                continue
            index = next(index for index, call in self._calls.items() if call == answered[0])
            generation, answer = server_result(answered[0])
            block = self._blocks[index] if isinstance(answer, int) else answer
            own = np.array(block[: self._layout.bytes_in(block)])
            self._calls.pop(index)
            self._calls[index] = self._server.sample.remote(self._batch_size, self._batches, beta, index)
            if generation == self._generation:
                return self._layout.open(own, self._batch_size)
