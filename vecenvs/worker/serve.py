"""Every worker process: make the envs, report them, reach the caller, and step until told to close."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from functools import partial
from typing import Any, Protocol

from vecenvs import identity
from vecenvs.batch.batch_columns import Allocator, BatchColumns
from vecenvs.transport.channel import Channel
from vecenvs.transport.encoding import decode, encode, encode_made
from vecenvs.transport.frames import Frames
from vecenvs.transport.leader import Leader
from vecenvs.transport.memory import Semaphore, open_segment, unlink_semaphores
from vecenvs.transport.node_link import FIRST_MEMBER
from vecenvs.transport.pickling import PickledFns, loads
from vecenvs.transport.protocol import Answer, ShardSpec
from vecenvs.transport.ring import RingReader, RingWriter
from vecenvs.transport.shared import FULL_PAUSE, RingsSpec
from vecenvs.transport.tcp import Invitation
from vecenvs.worker.calls import close_envs
from vecenvs.worker.make_envs import make_again, make_envs
from vecenvs.worker.output import Output
from vecenvs.worker.process import Terminated, begin_worker, leave, limit_threads
from vecenvs.worker.rules import Rules
from vecenvs.worker.waiting_worker import make_worker
from vecenvs.worker.worker import Answering, Worker

_WAKE_UP = 1.0  # seconds between a waiting worker's looks at its ring: see `RingReader.get`


class BootChannel(Protocol):
    """The worker's end of its boot channel: a multiprocessing Connection, or a `channel.Channel`."""

    def send_bytes(self, data: bytes, /) -> None:
        """Send a message."""

    def recv_bytes(self) -> bytes | bytearray:
        """Wait for a message. EOFError if the other end is gone."""

    def fileno(self) -> int:
        """Return the descriptor, which hangs up when the other end does."""


def serve_worker(
    channel: BootChannel,
    env_fns: Iterable[Any],
    first: int,
    rules: Rules,
    caller: int,
    names: Sequence[str] = (),
    cores: int | None = None,
    output: Output | None = None,
) -> None:
    """Be the worker of the envs `first`, `first + 1`, ... until told to close, or until process `caller` has ended.

    `env_fns` are functions, or `PickledFns`. `names` are the semaphores to unlink at the end, since
    `caller` may have ended before it could. `cores` are how many the worker may use, if not all. `output` says how it
    logs and prints, if not as this process does.
    """
    servers: list[ShardServer] = []

    def serve() -> None:
        nonlocal env_fns
        begin_worker(caller, names, channel)
        limit_threads()
        forked = not isinstance(env_fns, PickledFns)
        if output is not None:
            env_fns = output.before(env_fns, forked=forked)
        server = ShardServer(env_fns, first, rules, cores, forked=forked)
        servers.append(server)
        channel.send_bytes(server.describe())
        while problem := server.connect(channel.recv_bytes()):
            channel.send_bytes(problem)
        channel.send_bytes(b"")
        server.run()

    def close() -> None:
        unlink_semaphores(names)  # this process may end before its thread that watches the caller is told
        for server in servers:
            server.close()

    _serve_and_close(serve, (EOFError, ConnectionError), close)


def serve_leader(channel: BootChannel, caller: int) -> None:
    """Be the leader of a node (see `transport.leader`) until its caller hangs up, or until process `caller` has ended.

    The first message of the boot channel is a pickled LeaderSpec, answered as a worker's spec is.
    """
    server = LeaderServer()

    def serve() -> None:
        begin_worker(caller, (), channel)
        channel.send_bytes(server.connect(channel.recv_bytes()))
        server.run()

    _serve_and_close(serve, (EOFError, OSError), server.close)


def _serve_and_close(serve: Callable[[], None], gone: tuple[type[Exception], ...], close: Callable[[], None]) -> None:
    """Call `serve`, and then `close`, whenever SIGTERM may come. `gone` are how it tells that the caller is no more."""
    try:
        try:
            serve()
        except gone:  # or the caller gave up while starting
            pass
        finally:
            try:
                leave()  # at the beginning of which Terminated may be raised: SIGTERM comes with the end of the channel
            finally:
                close()
    except Terminated:
        sys.exit(1)


class LeaderServer:
    """The leader of a node, from its connection to its end. Its methods are called like those of a ShardServer."""

    def __init__(self) -> None:
        self._leader: Leader | None = None
        self._run: Callable[[], None] | None = None

    def connect(self, spec: bytes | bytearray) -> bytes:
        """Make the memory for the node's workers and connect to the caller, by a pickled LeaderSpec.

        Returns:
            The answer for the boot channel: why that does not work, or nothing if it does.
        """
        way = loads(spec)
        try:
            leader = Leader(way)
            self._leader = leader  # which `close` frees, whatever comes
            self._run = partial(self._serve, leader, way.invitation, way.invitation.connect())
        except (OSError, ValueError) as exc:
            return f"{type(exc).__name__}: {exc}".encode()
        return b""

    def run(self) -> None:
        """Serve the caller. EOFError or ConnectionError when it has hung up."""
        if self._run is not None:
            self._run()

    def close(self) -> None:
        """Remove what is left of the memory's names. Repeatable."""
        if self._leader is not None:
            self._leader.close()

    def _serve(self, leader: Leader, invitation: Invitation, connection: socket.socket) -> None:
        with closing(connection):
            invitation.prove(connection)
            leader.serve(Channel(connection))


class ShardServer:
    """The envs of one shard, from their making to their end.

    `serve_worker` calls `describe`, `connect`, `run` and `close`, in this order. So does a Ray actor, whose boot
    messages are calls of its methods.
    """

    def __init__(
        self, env_fns: Iterable[Any], first: int, rules: Rules, cores: int | None = None, *, forked: bool = False
    ) -> None:
        self._first = first
        self._rules = rules
        # Functions of a fork are there anyway; those which came in a pickle are kept only if they may be called again.
        again = forked or rules.on_error != "raise" or rules.concurrency is not None
        again = again or rules.spares > 0
        kept: list[Any] = []
        if rules.told is not None:
            identity.become(rules.told.placed())
            rules.told.separate_generators()
        self._envs, self._made, self._runner = make_envs(
            env_fns, first, rules, cores, remote=True, kept=kept if again else None
        )
        self._remake = partial(make_again, kept, first, rules, cores, None) if again else None
        self._run: Callable[[], None] | None = None
        self._forked = forked

    def describe(self) -> bytes:
        """Return the first message of the boot channel: the body of MADE."""
        return encode_made(self._made, self._first, by_name=self._forked)

    def connect(self, spec: bytes | bytearray) -> bytes:
        """Open the caller's memory, or connect to the caller, by a pickled RingsSpec or TcpSpec.

        Returns:
            The answer for the boot channel: why that does not work, or nothing if it does.
        """
        way = loads(spec)
        try:
            if isinstance(way, RingsSpec):
                memory, down, up = _open_rings(way)
                batch = self._columns(way.n, Allocator(memory), way.info_attrs, finals=way.finals)
                self._run = partial(self._serve_rings, batch, down, up, always=way.always)
            else:
                batch = self._columns(way.n, Allocator(), way.info_attrs, finals=False)
                self._run = partial(self._serve_connection, batch, way.invitation, way.invitation.connect())
        except (OSError, ValueError) as exc:
            return f"{type(exc).__name__}: {exc}".encode()
        return b""

    def run(self) -> None:
        """Serve the caller until told to close. EOFError or ConnectionError if the caller has hung up."""
        if self._run is not None:
            self._run()
            self._envs = []  # closed, as told

    def close(self) -> None:
        """Close the envs that no CLOSE has closed. Repeatable."""
        envs, self._envs = self._envs, []
        if envs:
            close_envs(envs, self._first, remote=True, runner=self._runner)

    def _worker(self, batch: BatchColumns, answer: Answering) -> Worker:
        return make_worker(
            self._envs, self._first, batch, self._rules, answer,
            remote=True, remake=self._remake, runner=self._runner,
        )  # fmt: skip

    def _columns(self, n: int, allocator: Allocator, info_attrs: Sequence[str], **options: Any) -> BatchColumns:
        if not isinstance(self._made, ShardSpec):
            raise RuntimeError("this worker has made no envs")
        return BatchColumns(self._made.observation_space, self._made.action_space, n, allocator, info_attrs, **options)

    def _serve_rings(self, batch: BatchColumns, down: RingReader, up: RingWriter, *, always: bool) -> None:
        some_rows = int(Answer.SOME_ROWS)

        def answer(number: int, tag: int, body: object) -> None:
            wakes = always or tag & 0xFF == some_rows
            if body is None and up.enter(number, tag, wakes):
                return
            up.put(number, tag, encode(body), wakes)
            while not up.flush():
                time.sleep(FULL_PAUSE / 10)  # until the caller has read some

        worker = self._worker(batch, answer)
        going = True
        while going:
            message = down.get(_WAKE_UP)
            if message is not None:
                number, tag, data = message
                down.take()
                going = worker.handle(number, tag, None if data is None else decode(tag, data))

    def _serve_connection(self, batch: BatchColumns, invitation: Invitation, connection: socket.socket) -> None:
        try:
            invitation.prove(connection)
        except OSError as exc:  # the caller waits in vain, and says so
            raise EOFError(str(exc)) from exc
        channel = Channel(connection)

        def answer(number: int, tag: int, body: object) -> None:
            channel.send_bytes(answers.pack([(FIRST_MEMBER, number, tag, encode(body))]))

        worker = self._worker(batch, answer)
        shards = {FIRST_MEMBER: range(self._first, self._first + len(worker.env_shard.all))}
        commands, answers = Frames.of_commands(batch, shards), Frames.of_answers(batch, shards)
        going = True
        try:
            while going:
                for _, number, tag, data in commands.unpack(memoryview(channel.recv_bytes())):
                    going = worker.handle(number, tag, decode(tag, data))
        finally:
            channel.close()


def _open_rings(spec: RingsSpec) -> tuple[memoryview, RingReader, RingWriter]:
    """Return the memory of the columns, and the ends of the rings. OSError or ValueError if they cannot be opened."""
    memory = open_segment(spec.batch)
    rings = Allocator(open_segment(spec.rings))
    down = RingReader(rings, spec.entries, spec.names.down, spin=spec.spin)
    wake = Semaphore(spec.names.wake) if spec.wakes else None
    return memory, down, RingWriter(rings, spec.entries, spec.names.up, wake=wake)
