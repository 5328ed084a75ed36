"""Workers on the caller's machine, whoever launched them: rows in shared memory, messages through two rings.

A process comes with a slow *boot channel* of its engine's (a pipe, MPI messages, actor calls), over which it says what
envs it has made and learns where the memory is. After that the boot channel is silent.
"""

from __future__ import annotations

import abc
import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vecenvs.board import Arena, Board
from vecenvs.cpus import cpu_of
from vecenvs.errors import VecEnvError
from vecenvs.protocol import Answer, MadeEnvs, decode, encode, kind_of
from vecenvs.transport import Message, Transport
from vecenvs.transport.memory import Address, Segment, Semaphore, new_name, open_segment, unlink_semaphores
from vecenvs.transport.ring import ENTRY_BYTES, PAYLOAD, RingNames, RingReader, RingWriter
from vecenvs.transport.spin import NEVER, Spin
from vecenvs.worker import Worker

_LOOK = 1.0  # seconds between a waiting worker's looks at its ring: see `RingReader.get`


class Names(NamedTuple):
    """The names of all semaphores of one worker. It removes them if it outlives the caller.

    So it has to know them before there is any: whoever launches a worker process tells it.
    """

    down: RingNames
    up: RingNames
    wake: str  # the board's, which all workers have

    @classmethod
    def new(cls, wake: str) -> Names:
        """Give names that nothing has yet."""
        return cls(RingNames(new_name(), new_name()), RingNames(new_name(), new_name()), wake)

    def own(self) -> list[str]:
        """Give those that no other worker has."""
        return [*self.down, *self.up]


class Wiring(NamedTuple):
    """What a worker needs to find its caller's memory."""

    board: Address
    n: int
    rings: Address
    entries: int
    names: Names
    info_attrs: tuple[str, ...]
    spin: Spin


class SharedBoard(Board):
    """A board in a segment, with the semaphore, named `wake`, of a caller that waits for any of several workers."""

    def __init__(self, observation_space: Any, action_space: Any, n: int, info_attrs: Sequence[str], wake: str) -> None:
        sizing = Arena()
        Board(observation_space, action_space, n, sizing, info_attrs)
        self.segment = Segment(sizing.size)
        try:
            self.wake = Semaphore(wake, create=True)
            super().__init__(observation_space, action_space, n, Arena(self.segment.buffer), info_attrs)
        except BaseException:
            self.segment.forget()
            unlink_semaphores([wake])
            raise

    def forget(self) -> None:
        """Remove the names by which workers have found it. Repeatable."""
        self.segment.forget()
        unlink_semaphores([self.wake.name])


class SharedTransport(Transport):
    """The rings. A backend's subclass adds the process: `boot_send`, `boot_get`, `exit_status`, `stop`.

    `names` are those that the worker has been told, `spin` says how long this side and it try before they sleep.
    """

    wakes = True

    def __init__(self, count: int, names: Names, spin: tuple[Spin, Spin] = (NEVER, NEVER)) -> None:
        self._entries = 2 * count + 64
        self._names = names
        self._spin = spin
        self._down: RingWriter | None = None
        self._up: RingReader | None = None
        self._inbox: deque[tuple[int, bytes | None]] = deque()
        self._pid: NDArray[np.int64] | None = None  # a cell in which the worker writes it

    def attach(self, board: Board) -> None:
        if not isinstance(board, SharedBoard):
            raise TypeError("a worker in another process needs a SharedBoard")
        segment = Segment(256 + 2 * (self._entries * ENTRY_BYTES + PAYLOAD + 256))
        names = self._names
        wiring = Wiring(
            board.segment.address, board.n, segment.address, self._entries, names, board.info_attrs, self._spin[1]
        )
        try:
            arena = Arena(segment.buffer)
            self._pid = _pid_cell(arena)
            self._down = RingWriter(arena, self._entries, names.down, create=True)
            up = RingReader(arena, self._entries, names.up, self._spin[0], create=True)
            self.boot_send(wiring)
            answer = self.boot_get(30.0)
        finally:
            segment.forget()
            unlink_semaphores(names.own())
        if answer is None and self.exit_status()[0]:
            raise BrokenPipeError("the worker is gone")
        if answer is None or kind_of(answer[0]) != Answer.REPLY:
            raise VecEnvError(f"a worker did not open the shared memory: {answer[1] if answer else 'no answer'}")
        self._up = up

    @abc.abstractmethod
    def boot_send(self, wiring: Wiring) -> None:
        """Bring the wiring to the worker."""

    @abc.abstractmethod
    def boot_get(self, timeout: float | None) -> Message | None:
        """Wait for a message by the boot channel; None if there is none or the worker is gone."""

    def put(self, tag: int, body: object = None) -> None:
        if self._down is None:
            raise VecEnvError("a command for a worker that is not attached")
        if body is None:
            self._down.enter(tag)
        else:
            self._down.put(tag, encode(tag, body), self._stalled)

    def sent(self) -> int | None:
        return None if self._down is None else self._down.sent

    def get(self, timeout: float | None) -> Message | None:
        if self._inbox:
            return self._decoded()
        if self._up is None:
            return self.boot_get(timeout)
        message = self._up.get(timeout)
        if message is None or message[1] is None:
            return message
        self._inbox.append(message)
        return self._decoded()

    def _decoded(self) -> Message:
        """Hand over the first message of the inbox. An exception of a signal's handler leaves it there."""
        tag, data = self._inbox[0]
        body = None if data is None else decode(tag, data)
        del self._inbox[0]
        return tag, body

    def cpu(self) -> int | None:
        if self._pid is None or self._spin[0] is not NEVER:  # there is a core for the caller alone
            return None
        return cpu_of(int(self._pid[0]))

    def _stalled(self) -> None:
        """The worker takes nothing: it may be waiting for room itself, so take what it has."""
        gone, exitcode = self.exit_status()
        if gone:
            raise BrokenPipeError(f"the worker is gone ({exitcode})")
        if self._up is not None and (message := self._up.get(0)) is not None:
            self._inbox.append(message)


def _pid_cell(arena: Arena) -> NDArray[np.int64]:
    return arena.take((1,), np.dtype(np.int64))


def serve(
    envs: Sequence[Any], made: MadeEnvs, first: int, autoreset: str, wiring: Wiring, ready: Callable[[], None]
) -> None:
    """Run a worker on shared memory until it is told to close. `ready` is called once everything is open."""
    arena = Arena(open_segment(wiring.board))
    board = Board(made.observation_space, made.action_space, wiring.n, arena, wiring.info_attrs)
    rings = Arena(open_segment(wiring.rings))
    _pid_cell(rings)[0] = os.getpid()
    down = RingReader(rings, wiring.entries, wiring.names.down, spin=wiring.spin)
    up = RingWriter(rings, wiring.entries, wiring.names.up, wake=Semaphore(wiring.names.wake))

    row = int(Answer.ROW)

    def answer(tag: int, body: object) -> None:
        if body is None:
            up.enter(tag, wake=tag & 0xFF == row)
        else:
            up.put(tag, encode(tag, body), wake=tag & 0xFF == row)

    worker = Worker(envs, first, board, autoreset, answer, remote=True)
    ready()
    going = True
    while going:
        message = down.get(_LOOK)
        if message is not None:
            tag, data = message
            going = worker.handle(tag, None if data is None else decode(tag, data))
