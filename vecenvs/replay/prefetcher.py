"""Prefetching of batches: two calls to the server are always unanswered, each for the rows of several batches.

Where server and learner share a machine, the server writes rows into memory that both have opened, and answers with
their number. Elsewhere the answer is the rows themselves.
"""

from __future__ import annotations

import math
import secrets
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vecenvs.replay.errors import SampleTimeout
from vecenvs.replay.link import CHECK_INTERVAL, server_result
from vecenvs.replay.schema import Schema
from vecenvs.transport.memory import Address, Segment, open_segment

CALLS = 2  # unanswered calls at a time
TOKEN = 16  # bytes at the beginning of the memory, by which the server recognises it
ALIGN = 64


Shape = tuple[int, int, int]  # of the shared memory: calls, rows, words


def open_shared_rows(address: Address, token: bytes, shape: Shape) -> NDArray[np.uint64]:
    """Open the learner's memory; OSError if it cannot be reached from this process."""
    buffer = open_segment(address)
    if bytes(buffer[:TOKEN]) != token:  # another process with the same number, on another machine or in a container
        raise FileNotFoundError(f"{address.path} is not the learner's memory")
    return _rows_in(buffer, shape)


def _rows_in(buffer: memoryview, shape: Shape) -> NDArray[np.uint64]:
    return np.frombuffer(buffer, np.uint64, math.prod(shape), ALIGN).reshape(shape)


class Prefetcher:
    """Returns batches of one size. The server may begin the later one of two calls first, as Ray's async actors do.

    A batch is drawn at most 3 * `batches` batches before it is returned: two unanswered calls and the current one.
    `words` are those of a row. `why` is empty if rows come through shared memory, else the reason why they do not.
    """

    def __init__(self, server: Any, schema: Schema, words: int, batch_size: int, batches: int) -> None:
        self._batch_size = batch_size
        self._batches = batches
        self._server = server
        self._schema = schema
        self._calls: dict[int, Any] = {}  # by the place of their rows in shared memory
        self._ready: deque[dict[str, Any]] = deque()  # the rest of the last answer
        self._generation = 0
        shape = CALLS, batch_size * batches, words
        segment, token = Segment(ALIGN + 8 * math.prod(shape)), secrets.token_bytes(TOKEN)
        segment.buffer[:TOKEN] = token
        self._memory = _rows_in(segment.buffer, shape)
        try:
            self.why: str = server_result(server.open_memory.remote(segment.address, token, shape))
        finally:
            segment.forget()

    def take(self, beta: float, timeout: float | None, check: Callable[[], None]) -> dict[str, Any]:
        """Return the next batch.

        `check` is called before a request and five times a second during the wait, and may raise. SampleTimeout after
        `timeout` seconds loses nothing.
        """
        if not self._ready:
            self._ready.extend(self._next_batches(beta, timeout, check))
        return self._ready.popleft()

    def restart(self, generation: int) -> None:
        """Discard what was drawn before the server's restore number `generation`."""
        self._generation = generation
        self._ready.clear()

    def _next_batches(self, beta: float, timeout: float | None, check: Callable[[], None]) -> list[dict[str, Any]]:
        import ray

        check()
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self._ask(beta)
            left = CHECK_INTERVAL if deadline is None else min(max(deadline - time.monotonic(), 0.0), CHECK_INTERVAL)
            answered, _ = ray.wait([*self._calls.values()], timeout=left)
            if answered:
                index = next(index for index, call in self._calls.items() if call == answered[0])
                generation, answer = server_result(answered[0])
                rows = self._memory[index, :answer] if isinstance(answer, int) else answer
                fresh = generation >= self._generation  # it is greater after a restore that a Ctrl-C has cut off here
                batches = self._schema.batches(rows, self._batch_size) if fresh else []
                self._calls.pop(index)
                self._ask(beta)
                if fresh:
                    self._generation = generation
                    return batches
            check()
            if deadline is not None and time.monotonic() >= deadline:
                raise SampleTimeout(self._batch_size, timeout or 0.0)

    def _ask(self, beta: float) -> None:
        for index in range(CALLS):
            if index not in self._calls:
                self._calls[index] = self._server.sample.remote(self._batch_size, self._batches, beta, index)
