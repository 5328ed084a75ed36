"""Workers on the caller's machine, whoever launched them: rows in shared memory, messages through two rings.

A process comes with a slow *boot channel* of its engine's (a pipe, MPI messages, actor calls), over which it says what
envs it has made and learns where the memory is. After that the boot channel is silent.
"""

from __future__ import annotations

import abc
import math
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vecenvs.batch.batch_columns import Allocator, BatchColumns
from vecenvs.cpus import cpu_of
from vecenvs.errors import VecEnvError
from vecenvs.transport import Message, Transport
from vecenvs.transport.memory import Address, Segment, Semaphore, new_name, open_segment, unlink_semaphores
from vecenvs.transport.protocol import Answer, ShardSpec, decode, encode, kind_of
from vecenvs.transport.ring import ENTRY_BYTES, PAYLOAD, RingReader, RingWriter
from vecenvs.transport.spinning import NEVER, Spin
from vecenvs.worker.worker import Worker

ATTACH_TIMEOUT = 30.0  # seconds for a worker to open the shared memory
_LOOK = 1.0  # seconds between a waiting worker's looks at its ring: see `RingReader.get`
_ROOM = 1e-3  # seconds between looks whether there is room in a ring


class Names(NamedTuple):
    """The names of all semaphores of one worker: of its two rings, and the batch's, which all workers share.

    The worker unlinks them if the caller dies, so whatever launches it passes the names before the semaphores exist.
    """

    down: str
    up: str
    wake: str

    @classmethod
    def new(cls, wake: str) -> Names:
        """Return names that nothing has yet."""
        return cls(new_name(), new_name(), wake)


class Wiring(NamedTuple):
    """What a worker needs to find its caller's memory."""

    batch: Address
    n: int
    rings: Address
    entries: int
    names: Names
    wakes: bool  # whether the batch's semaphore can still be opened
    info_attrs: tuple[str, ...]
    spin: Spin


class SharedBatchColumns(BatchColumns):
    """A batch in a segment, with the semaphore, named `wake`, of a caller that waits for any of several workers."""

    def __init__(self, observation_space: Any, action_space: Any, n: int, info_attrs: Sequence[str], wake: str) -> None:
        sizing = Allocator()
        BatchColumns(observation_space, action_space, n, sizing, info_attrs)
        self.segment = Segment(sizing.size)
        try:
            self.wake = Semaphore(wake, create=True)
            self.named = True
            super().__init__(observation_space, action_space, n, Allocator(self.segment.buffer), info_attrs)
        except BaseException:
            self.segment.forget()
            unlink_semaphores([wake])
            raise

    def forget(self, *, memory: bool = True) -> None:
        """Remove the name of the semaphore and, if told so, the way into the memory. Repeatable.

        Nothing with a name is left after that, whatever is killed. A worker that is launched later, in the place of one
        that has died, opens the memory alone.
        """
        unlink_semaphores([self.wake.name])
        self.named = False
        if memory:
            self.segment.forget()


class SharedTransport(Transport):
    """The rings. A backend's subclass adds the process: `boot_send`, `boot_get`, `exit_status`, `stop`.

    `names` are those that the worker has been given, `spin` says how long this side and the worker try before sleeping.
    """

    def __init__(self, count: int, names: Names, spin: tuple[Spin, Spin] = (NEVER, NEVER)) -> None:
        self._entries = 3 * count + 64
        self._names = names
        self._spin = spin
        self._down: RingWriter | None = None
        self._up: RingReader | None = None
        self._made: Message | None = None  # what came by the boot channel
        self._outbox: deque[tuple[int, int, bytes]] = deque()  # what the ring has had no room for yet
        self._pid: NDArray[np.int64] | None = None  # a cell in which the worker writes it

    def attach(self, batch: BatchColumns) -> None:
        if not isinstance(batch, SharedBatchColumns):
            raise TypeError("a worker in another process needs a SharedBatchColumns")
        segment = Segment(256 + 2 * (self._entries * ENTRY_BYTES + PAYLOAD + 256))
        names = self._names
        wiring = Wiring(
            batch.segment.address, batch.n, segment.address, self._entries, names, batch.named, batch.info_attrs,
            self._spin[1],
        )  # fmt: skip
        try:
            allocator = Allocator(segment.buffer)
            self._pid = _pid_cell(allocator)
            down = RingWriter(allocator, self._entries, names.down, create=True)
            up = RingReader(allocator, self._entries, names.up, self._spin[0], create=True)
            self.boot_send(wiring)
            answer = self.boot_get(ATTACH_TIMEOUT)
        finally:
            segment.forget()
            unlink_semaphores([names.down, names.up])
        if answer is None:
            raise BrokenPipeError("the worker is gone, or has not opened the shared memory in time")
        if kind_of(answer[1]) != Answer.REPLY:
            raise VecEnvError(f"the worker did not open the shared memory: {answer[2]}")
        self.wakes = batch.named
        self._down, self._up = down, up
        self.take = up.take  # type: ignore[method-assign]  # called for every worker and step

    @abc.abstractmethod
    def boot_send(self, wiring: Wiring) -> None:
        """Bring the wiring to the worker."""

    @abc.abstractmethod
    def boot_get(self, timeout: float | None) -> Message | None:
        """Wait for a message by the boot channel; None if there is none or the worker is gone."""

    def put(self, number: int, tag: int, body: object = None) -> None:
        if self._down is None:
            raise VecEnvError("a command for a worker that is not attached")
        if body is not None or self._outbox or not self._down.enter(number, tag):
            self._outbox.append((number, tag, encode(tag, body)))
            self.send_rest()
        self.sent = number

    def send_rest(self) -> bool:
        while self._outbox and self._down is not None and self._down.put(*self._outbox[0]):
            self._outbox.popleft()
        return bool(self._outbox)

    def get(self, timeout: float | None) -> Message | None:
        if self._up is None:
            if self._made is None:
                self._made = self.boot_get(timeout)
            return self._made
        message = self._up.get(timeout) if not self._outbox else self._get_beside_outbox(timeout)
        if message is None or message[2] is None:
            return message
        number, tag, data = message
        return number, tag, decode(tag, data)

    def _get_beside_outbox(self, timeout: float | None) -> tuple[int, int, bytes | None] | None:
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            self.send_rest()  # the worker may be waiting for room itself, to answer
            left = max(deadline - time.monotonic(), 0.0)
            message = self._up.get(min(left, _ROOM)) if self._up is not None else None
            if message is not None or left == 0.0 or self.exit_status()[0]:
                return message

    def take(self) -> None:
        self._made = None

    def cpu(self) -> int | None:
        if self._pid is None or self._spin[0] is not NEVER:  # there is a core for the caller alone
            return None
        return cpu_of(int(self._pid[0]))


def _pid_cell(allocator: Allocator) -> NDArray[np.int64]:
    return allocator.take((1,), np.dtype(np.int64))


def serve(
    envs: Sequence[Any], made: ShardSpec, first: int, autoreset: str, wiring: Wiring, ready: Callable[[], None]
) -> None:
    """Run a worker on shared memory until it is told to close. `ready` is called once everything is open."""
    allocator = Allocator(open_segment(wiring.batch))
    batch = BatchColumns(made.observation_space, made.action_space, wiring.n, allocator, wiring.info_attrs)
    rings = Allocator(open_segment(wiring.rings))
    _pid_cell(rings)[0] = os.getpid()
    down = RingReader(rings, wiring.entries, wiring.names.down, spin=wiring.spin)
    wake = Semaphore(wiring.names.wake) if wiring.wakes else None
    up = RingWriter(rings, wiring.entries, wiring.names.up, wake=wake)

    row = int(Answer.ROW)

    def answer(number: int, tag: int, body: object) -> None:
        wakes = tag & 0xFF == row
        if body is None and up.enter(number, tag, wakes):
            return
        data = encode(tag, body)
        while not up.put(number, tag, data, wakes):
            time.sleep(_ROOM / 10)  # until the caller has read some

    worker = Worker(envs, first, batch, autoreset, answer, remote=True)
    ready()
    going = True
    while going:
        message = down.get(_LOOK)
        if message is not None:
            number, tag, data = message
            down.take()
            going = worker.handle(number, tag, None if data is None else decode(tag, data))
