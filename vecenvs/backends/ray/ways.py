"""The ways to an actor: rings and rows in shared memory on one node, packed rows between nodes.

Those travel over a connection, or in actor calls where the nodes' network lets only Ray's through.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

from vecenvs.batch.batch_columns import BatchColumns
from vecenvs.transport import Message
from vecenvs.transport.memory import Semaphore, unlink_semaphores
from vecenvs.transport.packed import PackedTransport
from vecenvs.transport.protocol import Answer, Command, kind_of, slot_of
from vecenvs.transport.shared import Names, SharedBatchColumns, SharedTransport, Wiring
from vecenvs.transport.spinning import Spin
from vecenvs.transport.tcp import HEARSAY, Stream

LATE = (5e-4, 0.02)  # seconds between looks for the answers of async resets: at first, and at most
WHILE = 1.0  # seconds to wait if nobody says how long


def ended(call: Any, seconds: float = 0.0) -> bool:
    """Tell whether a call is over, well or not, within so many seconds."""
    import ray

    return bool(ray.wait([call], timeout=seconds, fetch_local=False)[0])


def last_words_of(call: Any, seconds: float = 0.0) -> str:
    """What Ray says of the death of a call's actor, within so many seconds; nothing if it runs on or has ended well."""
    import ray

    if not ended(call, seconds):
        return ""
    try:
        ray.get(call)
    except ray.exceptions.RayError as exc:
        forget_frames(exc)
        return str(exc)
    return ""


def forget_frames(exc: BaseException) -> None:
    """Break the cycle of an exception of `ray.get`, whose frame refers to it.

    It would keep what the frames that called that refer to, a transport and its memory, until garbage is collected.
    """
    exc.__traceback__ = None


class SharedActor(SharedTransport):
    """An actor on the caller's node: one endless actor call, and all else through its rings."""

    def __init__(self, actor: Any, count: int, names: Names, spin: tuple[Spin, Spin]) -> None:
        super().__init__(count, names, spin)
        self._actor = actor
        self._serving: Any = None
        self._ready: Semaphore | None = None
        self.last_words = ""  # what Ray says of the actor's end

    def boot_send(self, wiring: Wiring) -> None:
        self._ready = Semaphore()
        self._serving = self._actor.serve.remote(wiring, self._ready.name, os.getpid())

    def boot_get(self, timeout: float | None) -> Message | None:
        import ray

        if self._ready is None:
            return None
        end = time.monotonic() + (timeout or 0.0)
        try:
            while not self._ready.acquire(True, 0.05):
                if time.monotonic() >= end or ray.wait([self._serving], timeout=0)[0]:
                    return None
        finally:
            unlink_semaphores([self._ready.name])
        return 0, int(Answer.REPLY), None

    def exit_status(self) -> tuple[bool, int | None]:
        self.last_words = self.last_words or last_words_of(self._serving)
        return bool(self.last_words) or ended(self._serving), None

    def stop(self, grace: float) -> None:
        """Leave the actor to its ActorTransport: here is nothing else to end."""


class StreamActor(PackedTransport):
    """An actor on another node that has connected to the caller: one endless actor call, and messages."""

    def __init__(self, actor: Any, shard: range, connection: socket.socket) -> None:
        super().__init__(shard)
        self._actor = actor
        self._stream = Stream(connection)
        self._serving: Any = None
        self.last_words = ""  # what Ray says of the actor's end

    def boot(self, batch: BatchColumns) -> None:
        self._serving = self._actor.stream.remote(batch.n, batch.info_attrs)

    def deliver(self, data: bytes) -> None:
        self._stream.send(data)

    def collect(self, timeout: float | None) -> memoryview | None:
        return self._stream.receive(timeout)

    def drop(self) -> None:
        self._stream.drop()

    def watch(self) -> tuple[int, int] | None:
        return self._stream.watch()

    def exit_status(self) -> tuple[bool, int | None]:
        # Ray hears of a death later than the connection does.
        self.last_words = self.last_words or last_words_of(self._serving, HEARSAY if self._stream.closed else 0.0)
        return bool(self.last_words) or ended(self._serving), None

    def stop(self, grace: float) -> None:
        """Hang up. The actor is left to its ActorTransport."""
        self._stream.close()


class CallActor(PackedTransport):
    """An actor out of the caller's reach: one call per command, which returns its answers.

    Nothing here waits in Ray: a thread of Ray's brings what a call has returned, and wakes who waits for any worker.
    """

    def __init__(self, actor: Any, shard: range) -> None:
        super().__init__(shard)
        self._actor = actor
        self._calls: set[Any] = set()  # under way: Ray forgets a future that nobody holds
        self._come: SimpleQueue[bytes] = SimpleQueue()
        self._first: bytes | None = None  # the oldest of these, while it has not been dropped
        self._wake: Callable[[], None] | None = None
        self._awaited: set[int] = set()  # slots whose async reset may end when no call is under way to return it
        self._look = 0.0  # when to look for those
        self._pause = LATE[0]
        self.last_words = ""  # what Ray says of the actor's death, once it is dead

    @property
    def wakes(self) -> bool:  # type: ignore[override]
        return not self._awaited

    def boot(self, batch: BatchColumns) -> None:
        import ray

        ray.get(self._actor.begin.remote(batch.n, batch.info_attrs))
        self._wake = batch.wake.release if isinstance(batch, SharedBatchColumns) else None

    def put(self, number: int, tag: int, body: object = None) -> None:
        if kind_of(tag) == Command.AWAIT_RESET:
            self._awaited.add(slot_of(tag))
            self._pause = LATE[0]
        super().put(number, tag, body)

    def get(self, timeout: float | None) -> Message | None:
        message = super().get(timeout)
        if self._awaited and message is not None and kind_of(message[1]) == Answer.ROW:
            self._awaited.discard(slot_of(message[1]))
        return message

    def deliver(self, data: bytes) -> None:
        import ray

        if self.last_words or not ray.is_initialized():  # where there is none, a call would start a Ray
            raise BrokenPipeError(self.last_words or "the connection to Ray has been closed")
        self._watch(self._actor.handle.remote(data))

    def collect(self, timeout: float | None) -> bytes | None:
        import ray

        end = time.monotonic() + (WHILE if timeout is None else timeout)
        while True:
            now = time.monotonic()
            quiet = not self._calls and not self.last_words and ray.is_initialized()
            if self._awaited and quiet and now >= self._look:
                self._look = now + self._pause
                self._pause = min(2 * self._pause, LATE[1])
                self._watch(self._actor.late.remote())
            until = min(end, self._look) if self._awaited else end
            if self._first is not None:
                return self._first
            try:
                self._first = self._come.get(until > now, max(until - now, 0.0))
            except Empty:
                if self.last_words or time.monotonic() >= end:
                    return None

    def drop(self) -> None:
        self._first = None

    def _watch(self, call: Any) -> None:
        future = call.future()
        self._calls.add(future)
        future.add_done_callback(self._take)

    def _take(self, future: Any) -> None:
        """Keep what a call has returned. Runs on a thread of Ray's."""
        try:
            answers = future.result()
            for answer in [answers] if isinstance(answers, bytes) else answers:
                self._come.put(answer)
        except Exception as exc:  # of Ray's: the actor, its node or its answer is lost
            self.last_words = str(exc)
        self._calls.discard(future)
        if self._wake is not None:
            self._wake()

    def exit_status(self) -> tuple[bool, int | None]:
        return bool(self.last_words), None

    def stop(self, grace: float) -> None:
        self._wake = None
