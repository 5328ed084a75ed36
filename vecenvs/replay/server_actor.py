"""What runs inside the server's actor: the buffer, and who waits for it.

An asyncio actor: a call that must wait does so without holding up the others, and all that touches the buffer happens
on one thread, in `_pump`. Whoever waits sits in one of two queues, first come first served. They stay short: an
explorer has at most two fragments under way, a learner two requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from vecenvs.backends.ray.actor import Home
from vecenvs.replay.attributes import apply, read, write
from vecenvs.replay.blocks import Block
from vecenvs.replay.buffer import ReplayBuffer
from vecenvs.replay.checkpoint import Reader
from vecenvs.replay.limiter import RateLimiter
from vecenvs.replay.schema import Rows
from vecenvs.replay.share import Share
from vecenvs.replay.stream import Places, open_places
from vecenvs.transport.memory import Address


class Wanted(NamedTuple):
    """A request for up to `batches` batches. The block goes to `out`, or is the answer itself."""

    batch_size: int
    batches: int
    beta: float
    out: Block | None
    answer: asyncio.Future[Block | int]


class ServerActor:
    """A ReplayBuffer and its RateLimiter in a process of their own. `buffer` and `limiter` are they."""

    def __init__(
        self,
        spaces: tuple[Any, Any],
        capacity: int,
        buffer: dict[str, Any],
        limiter: dict[str, Any],
        paths: Sequence[str],
    ) -> None:
        sys.path.extend(path for path in paths if path not in sys.path)  # for `call`
        self.buffer = ReplayBuffer(*spaces, capacity, **buffer)
        self.limiter = RateLimiter(**limiter)
        self.version = 0
        self.ignored_priorities = 0
        self._weights: list[Any] = []
        self._inserts: deque[tuple[Rows, asyncio.Future[None]]] = deque()
        self._wanted: deque[Wanted] = deque()
        self._places: tuple[int, Places] | None = None  # of the learner's newest stream
        self._given_back: list[asyncio.Future[None]] = []  # the loop itself holds tasks weakly
        self._share = Share()
        self._later = False  # whether `_pump_later` is under way

    async def home(self) -> Home:
        """Tell where this is."""
        import ray

        return Home(ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address(), os.getpid())

    async def insert(self, rows: Rows, known: int) -> tuple[int, list[Any]]:
        """Store a fragment when the limiter lets it in.

        Gives the version of the weights, and a reference to them if that is not the version `known` to the caller.
        """
        self.buffer.schema.check_rows(rows)
        done = asyncio.get_running_loop().create_future()
        self._inserts.append((rows, done))
        self._pump()
        await done
        return self.version, self._weights if self.version != known else []

    async def insert_at_once(self, rows: Rows) -> None:
        """Store rows whatever the limiter says; it counts them."""
        self.limiter.inserted(self.buffer.add_rows(rows))
        self._pump()

    async def share(self, key: int, address: Address, token: bytes, size: int) -> str:
        """Open the memory of stream `key`, in place of any other's. Gives why that does not work, if so."""
        try:
            self._places = key, open_places(address, token, size)
        except (OSError, ValueError) as exc:
            return f"{type(exc).__name__}: {exc}"
        return ""

    async def sample(self, batch_size: int, batches: int, beta: float, key: int, place: int) -> Block | int:
        """Draw as many batches as the limiter lets out, at least one, at most `batches`.

        Gives the number of rows if the block is in a place of the stream's memory, else the block.
        """
        out = self._places[1][place] if self._places is not None and self._places[0] == key else None
        answer: asyncio.Future[Block | int] = asyncio.get_running_loop().create_future()
        self._wanted.append(Wanted(batch_size, batches, beta, out, answer))
        self._pump()
        return await answer

    async def give_back(self, calls: list[Any], rows: int) -> None:
        """Take back samples that nobody used: `rows`, and what the `calls` of `sample` gave or still wait for."""
        for call in calls:
            self._given_back.append(asyncio.ensure_future(self._uncount(call)))
        self._given_back = [task for task in self._given_back if not task.done()]
        self.limiter.sampled(-rows)
        self._pump()

    async def _uncount(self, call: Any) -> None:
        with contextlib.suppress(ValueError):  # it was refused, and not counted
            answer = await call
            self.limiter.sampled(-(answer if isinstance(answer, int) else int(answer[:8].view(np.int64)[0])))
            self._pump()

    async def update_priorities(self, indexes: Any, priorities: Any) -> None:
        """Give sampled transitions new priorities; those that are overwritten by now are counted."""
        self.ignored_priorities += len(indexes) - self.buffer.update_priorities(indexes, priorities)

    async def publish(self, version: int, weights: list[Any]) -> None:
        """Take a reference to new weights, for whoever inserts next."""
        self.version, self._weights = version, weights

    async def stats(self) -> dict[str, Any]:
        """Give the counters."""
        return {
            "stored": len(self.buffer),
            "capacity": self.buffer.capacity,
            "inserted": self.buffer.inserted,
            "sampled": self.limiter.samples,
            "waiting_inserts": len(self._inserts),
            "waiting_samples": len(self._wanted),
            "ignored_priorities": self.ignored_priorities,
            "version": self.version,
        }

    async def save(self, path: str) -> None:
        """Write buffer and limiter to a file. Nothing else happens meanwhile."""
        self.buffer.save(path, {"limiter": self.limiter.state()})

    async def restore(self, path: str) -> None:
        """Take over what `save`, or a ReplayBuffer of one process, wrote."""
        with Reader(path) as reader:
            state = reader.header["extra"].get("limiter")
            try:
                if state is not None:
                    self.limiter.check_state(state)
            except ValueError as exc:
                raise reader.foreign(f"whose extra cannot be read ({exc})") from None
            self.buffer.restore_from(reader)
        if state is None:
            self.limiter.settle(len(self.buffer))
        else:
            self.limiter.load(state)
        self._pump()

    async def get_attr(self, name: str) -> Any:
        """Read an attribute; dotted names are followed."""
        return read(self, name)

    async def set_attr(self, name: str, value: Any) -> None:
        """Write an attribute; dotted names are followed."""
        write(self, name, value)
        self._pump()

    async def call(self, function: bytes) -> Any:
        """Run a pickled function on this object; give what it returns."""
        result = apply(self, function)
        self._pump()
        return result

    def _pump(self) -> None:
        """Let through who may go on by now: samples first, since a learner waits for them."""
        while self._serve() or self._admit():
            pass

    def _serve(self) -> bool:
        if not self._wanted:
            return False
        batch_size, batches, beta, out, answer = self._wanted[0]
        allowed = self.limiter.may_sample(len(self.buffer)) // batch_size
        if allowed < 1:
            return False
        self._wanted.popleft()
        batches, begun = int(min(batches, allowed)), time.monotonic()
        try:
            block = self.buffer.sample_block(batch_size, batches, beta=beta, out=out)
        except ValueError as exc:  # a batch larger than what is stored
            answer.set_exception(exc)
        else:
            answer.set_result(block if out is None else batch_size * batches)
            self.limiter.sampled(batch_size * batches)
            now = time.monotonic()
            self._share.sampled(now, now - begun)
        return True

    def _admit(self) -> bool:
        if not self._inserts or not self.limiter.may_insert():
            return False
        begun = time.monotonic()
        wait = self._share.wait(begun)
        if wait:
            if not self._later:
                self._later = True
                asyncio.get_running_loop().call_later(wait, self._pump_later)
            return False
        rows, done = self._inserts.popleft()
        self.limiter.inserted(self.buffer.add_rows(rows))
        done.set_result(None)
        now = time.monotonic()
        self._share.inserted(now, now - begun)
        return True

    def _pump_later(self) -> None:
        self._later = False
        self._pump()
