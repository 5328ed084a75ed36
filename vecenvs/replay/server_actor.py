"""The actor that holds the buffer.

It is an asyncio actor: calls that wait do not block others, and one thread accesses the buffer. Inserts and requests
for samples wait in one first-in, first-out queue each, until `_process_queues` handles them. The queues stay short: an
explorer has at most two unanswered fragments, a learner two requests.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vecenvs.backends.ray.actor import ActorLocation, here
from vecenvs.replay.buffer import ReplayBuffer
from vecenvs.replay.limiter import RateLimiter
from vecenvs.replay.link import run_call
from vecenvs.replay.prefetcher import Shape, open_shared_rows
from vecenvs.replay.schema import Rows
from vecenvs.replay.throttle import InsertThrottle
from vecenvs.transport.memory import Address


class SampleRequest(NamedTuple):
    """A request for up to `batches` batches. The rows are written to `out`, or are the answer if that is None."""

    batch_size: int
    batches: int
    beta: float
    out: Rows | None
    answer: asyncio.Future[tuple[int, Rows | int]]


class ServerActor:
    """A ReplayBuffer and its RateLimiter in a process of their own, as attributes `buffer` and `limiter`."""

    def __init__(
        self,
        spaces: tuple[Any, Any],
        capacity: int,
        buffer: dict[str, Any],
        limiter: tuple[float | None, int, float],
        paths: Sequence[str],
    ) -> None:
        sys.path.extend(path for path in paths if path not in sys.path)  # for functions of `call`
        self.buffer = ReplayBuffer(*spaces, capacity, **buffer)
        self.limiter = RateLimiter(*limiter)
        self.version = 0
        self.ignored_priorities = 0
        self._weights: list[Any] = []
        self._inserts: deque[tuple[Rows, asyncio.Future[None]]] = deque()
        self._requests: deque[SampleRequest] = deque()
        self._memory: NDArray[np.uint64] | None = None  # the learner's memory
        self._generation = 0  # counts restores
        self._throttle = InsertThrottle()
        self._scheduled = False  # whether `_run_scheduled` will be called

    async def location(self) -> ActorLocation:
        """Return where the actor runs."""
        return here()

    async def insert(self, rows: Rows, known: int) -> tuple[int, list[Any]]:
        """Store a fragment when the limiter allows it; return the weights' version, and unless `known` a reference."""
        self.buffer.schema.check_rows(rows)
        done = asyncio.get_running_loop().create_future()
        self._inserts.append((rows, done))
        self._process_queues()
        await done
        return self.version, self._weights if self.version != known else []

    async def insert_at_once(self, rows: Rows) -> None:
        """Store rows without asking the limiter; it counts them."""
        self.limiter.inserted(self.buffer.add_rows(rows))
        self._process_queues()

    async def open_memory(self, address: Address, token: bytes, shape: Shape) -> str:
        """Open the learner's memory; return "" or why that failed."""
        try:
            self._memory = open_shared_rows(address, token, shape)
        except (OSError, ValueError) as exc:
            return f"{type(exc).__name__}: {exc}"
        return ""

    async def sample(self, batch_size: int, batches: int, beta: float, index: int) -> tuple[int, Rows | int]:
        """Draw up to `batches` batches, into the learner's memory if it is open, when the limiter allows it.

        Returns:
            The number of restores before, and the number of rows in that memory at `index`, else the rows.
        """
        out = None if self._memory is None else self._memory[index]
        answer: asyncio.Future[tuple[int, Rows | int]] = asyncio.get_running_loop().create_future()
        self._requests.append(SampleRequest(batch_size, batches, beta, out, answer))
        self._process_queues()
        return await answer

    async def update_priorities(self, indexes: Any, priorities: Any) -> None:
        """Set priorities of sampled transitions; count the ones that have been overwritten."""
        self.ignored_priorities += len(indexes) - self.buffer.update_priorities(indexes, priorities)

    async def publish(self, version: int, weights: list[Any]) -> None:
        """Store a reference to new weights, which the next inserts are answered with."""
        self.version, self._weights = version, weights

    async def stats(self) -> dict[str, Any]:
        """Return the counters."""
        return {
            "stored": len(self.buffer),
            "capacity": self.buffer.capacity,
            "inserted": self.buffer.inserted,
            "sampled": self.limiter.samples,
            "waiting_inserts": len(self._inserts),
            "waiting_samples": len(self._requests),
            "ignored_priorities": self.ignored_priorities,
            "version": self.version,
        }

    async def save(self, path: str) -> None:
        """Write the buffer to a file; other calls wait meanwhile."""
        self.buffer.save(path)

    async def restore(self, path: str) -> int:
        """Restore a file from `save`, or from a ReplayBuffer; return the number of restores."""
        self.buffer.restore(path)
        self.limiter.restore(self.buffer.inserted)
        self._generation += 1
        self._process_queues()
        return self._generation

    async def call(self, function: bytes) -> bytes:
        """Run a pickled call with this object, which may change what the queues wait for."""
        result = run_call(self, function)
        self._process_queues()
        return result

    def _process_queues(self) -> None:
        """Handle all queued calls that are possible now: samples first, since a learner waits for them."""
        while self._answer_sample() or self._store_insert():
            pass

    def _answer_sample(self) -> bool:
        if not self._requests:
            return False
        batch_size, batches, beta, out, answer = self._requests[0]
        allowed = self.limiter.may_sample(len(self.buffer)) // batch_size
        if allowed < 1 or batch_size > len(self.buffer):
            return False
        self._requests.popleft()
        batches, begun = int(min(batches, allowed)), time.monotonic()
        rows = self.buffer.sample_rows(batch_size, batches, beta=beta, out=out)
        answer.set_result((self._generation, rows if out is None else len(rows)))
        self.limiter.sampled(len(rows))
        now = time.monotonic()
        self._throttle.add_sample(now, now - begun)
        return True

    def _store_insert(self) -> bool:
        if not self._inserts or not self.limiter.may_insert(len(self.buffer)):
            return False
        begun = time.monotonic()
        wait = self._throttle.delay(begun)
        if wait:
            if not self._scheduled:
                self._scheduled = True
                asyncio.get_running_loop().call_later(wait, self._run_scheduled)
            return False
        rows, done = self._inserts.popleft()
        self.limiter.inserted(self.buffer.add_rows(rows))
        done.set_result(None)
        now = time.monotonic()
        self._throttle.add_insert(now, now - begun)
        return True

    def _run_scheduled(self) -> None:
        self._scheduled = False
        self._process_queues()
