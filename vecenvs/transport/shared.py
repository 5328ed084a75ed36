"""Workers on the caller's machine: rows in shared memory, messages through two rings.

A worker has a slow *boot channel* of its engine's (a pipe, MPI messages, Ray's actor calls). Over it the worker reports
the envs that it has made, and learns where the memory is. After that the boot channel is silent.
"""

from __future__ import annotations

import abc
import math
import os
import time
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from vecenvs.batch.batch_columns import Allocator, BatchColumns
from vecenvs.errors import VecEnvError
from vecenvs.transport import Message, Transport
from vecenvs.transport.encoding import decode, decode_made, encode
from vecenvs.transport.memory import Address, Segment, Semaphore, new_name, unlink_semaphores
from vecenvs.transport.pickling import dumps
from vecenvs.transport.ring import ENTRY_BYTES, PAYLOAD, RingReader, RingWriter
from vecenvs.transport.spinning import NEVER

BOOT_TIMEOUT = 30.0  # seconds for a worker to answer a message of the boot channel
FULL_PAUSE = 1e-3  # seconds between attempts to write to a full ring


class Names(NamedTuple):
    """The names of all semaphores of one worker: of its two rings, and the batch's, which all workers share.

    The worker unlinks them if the caller dies, so whatever launches it passes the names before the semaphores exist.
    """

    down: str
    up: str
    wake: str

    @classmethod
    def new(cls, wake: str) -> Names:
        """Return unused names for the rings, beside the batch's `wake`."""
        return cls(new_name(), new_name(), wake)


class RingsSpec(NamedTuple):
    """What a worker needs to find its caller's memory."""

    batch: Address
    n: int
    rings: Address
    entries: int
    names: Names
    wakes: bool  # whether the batch's semaphore can still be opened
    info_attrs: tuple[str, ...]
    spin: float
    finals: bool  # whether terminal observations have columns, if they are small enough
    always: bool  # whether each answer releases the batch's semaphore, not only rows of some slots
    maker: int  # the process that has made the memory: the caller, or the leader of the worker's node


class MemoryUnreachable(VecEnvError):
    """A worker cannot open the caller's shared memory; the message has the reason."""


class SharedBatchColumns(BatchColumns):
    """Columns in a segment, and the semaphore `wake`, on which a caller waits for any of several workers."""

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        n: int,
        info_attrs: Sequence[str],
        wake: str,
        finals: bool = True,
    ) -> None:
        sizing = Allocator()
        BatchColumns(observation_space, action_space, n, sizing, info_attrs, finals)
        self.segment = Segment(sizing.size)
        try:
            self.wake = Semaphore(wake, create=True)
            self.named = True
            super().__init__(observation_space, action_space, n, Allocator(self.segment.buffer), info_attrs, finals)
        except BaseException:
            self.segment.forget()
            unlink_semaphores([wake])
            raise

    def forget(self, *, memory: bool = True) -> None:
        """Remove the name of the semaphore and, with `memory`, the path to the segment. Repeatable.

        After that a kill of any process leaves nothing behind. A replacement for a dead worker, which is launched
        later, opens the memory alone.
        """
        unlink_semaphores([self.wake.name])
        self.named = False
        if memory:
            self.segment.forget()


class Rings:
    """The memory of a worker's two rings, the caller's ends of them, and what the worker needs to open them.

    `spin` has how long the caller and the worker try a semaphore before they sleep. Call `forget` once the worker has
    opened the rings.
    """

    def __init__(
        self, batch: SharedBatchColumns, shard: range, names: Names, spin: tuple[float, float], *, always: bool = False
    ) -> None:
        entries = 3 * len(shard) + 64
        self._names = names
        self._segment = segment = Segment(256 + 2 * (entries * ENTRY_BYTES + PAYLOAD + 256))
        self.wakes = batch.named
        self.spec = RingsSpec(
            batch.segment.address, batch.n, segment.address, entries, names, batch.named, batch.info_attrs, spin[1],
            batch.finals is not None, always, os.getpid(),
        )  # fmt: skip
        try:
            allocator = Allocator(segment.buffer)
            self.down = RingWriter(allocator, entries, names.down, create=True)
            self.up = RingReader(allocator, entries, names.up, spin[0], create=True)
        except BaseException:
            self.forget()
            raise

    def forget(self) -> None:
        """Remove the names by which the worker finds the rings. Repeatable."""
        self._segment.forget()
        unlink_semaphores([self._names.down, self._names.up])


class SharedTransport(Transport):
    """The caller's end of a worker's rings.

    A subclass adds the process and its boot channel: `boot_send`, `boot_get`, `exit_status`, `stop`.

    `names` are those that the worker has been given: `stop` unlinks them. `spin` has how long the caller and the worker
    try a semaphore before they sleep.
    """

    def __init__(self, shard: range, names: Names, spin: tuple[float, float] = (NEVER, NEVER)) -> None:
        self._shard = shard
        self._names = names
        self._spin = spin
        self._down: RingWriter | None = None
        self._up: RingReader | None = None
        self._made: Message | None = None
        self._unsent: Collection[Any] = ()  # commands for which the ring has had no room yet

    def attach(self, batch: BatchColumns) -> None:
        if not isinstance(batch, SharedBatchColumns):
            raise TypeError("a worker in another process needs a SharedBatchColumns")
        rings = Rings(batch, self._shard, self._names, self._spin)  # `stop` forgets the names, too: after a Ctrl-C here
        try:
            self.boot_send(dumps(rings.spec))
            problem = self.boot_get(BOOT_TIMEOUT)
        finally:
            rings.forget()
        if problem is None:
            raise BrokenPipeError("the worker is gone, or has not opened the shared memory in time")
        if problem:
            raise MemoryUnreachable(f"the worker cannot open the caller's shared memory ({bytes(problem).decode()})")
        self.wakes = rings.wakes
        self._down, self._up, self._unsent = rings.down, rings.up, rings.down.unsent
        self.take = rings.up.take  # type: ignore[method-assign]  # called for every worker and step

    @abc.abstractmethod
    def boot_send(self, data: bytes) -> None:
        """Send a message over the boot channel. ConnectionError if the worker is gone."""

    @abc.abstractmethod
    def boot_get(self, timeout: float | None) -> bytes | bytearray | None:
        """Return the next message of the boot channel; None if there is none in time, or the worker is gone."""

    def put(self, number: int, tag: int, body: object = None) -> None:
        if self._down is None:
            raise VecEnvError("a command for a worker that is not attached")
        if body is not None or not self._down.enter(number, tag):
            self._down.put(number, tag, encode(body))

    def send_rest(self) -> bool:
        return self._down is not None and not self._down.flush()

    def get(self, timeout: float | None) -> Message | None:
        if self._up is None:
            if self._made is None:
                data = self.boot_get(timeout)
                self._made = None if data is None else decode_made(data, self._shard.start)
            return self._made
        message = self._up.get(timeout) if not self._unsent else self._get_beside_unsent(timeout)
        if message is None or message[2] is None:
            return message
        number, tag, data = message
        return number, tag, decode(tag, data)

    def _get_beside_unsent(self, timeout: float | None) -> tuple[int, int, bytes | None] | None:
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            self.send_rest()  # the worker may be waiting for room itself, to answer
            left = max(deadline - time.monotonic(), 0.0)
            message = self._up.get(min(left, FULL_PAUSE)) if self._up is not None else None
            if message is not None or left == 0.0 or self.exit_status()[0]:
                return message

    def take(self) -> None:
        self._made = None
