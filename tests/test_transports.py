"""What carries commands to one worker: in order and whole with a full ring, and how an end that is gone shows."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from contextlib import closing
from typing import Any

import pytest
from gymnasium import spaces

from vecenvs.batch.batch_columns import Allocator, BatchColumns
from vecenvs.pool.start_limit import StartLimit
from vecenvs.pool.workers import Workers
from vecenvs.transport import Message, Transport, tcp
from vecenvs.transport.channel import Channel
from vecenvs.transport.encoding import decode, encode
from vecenvs.transport.frames import Frames
from vecenvs.transport.leader import _Member
from vecenvs.transport.memory import new_name, open_segment
from vecenvs.transport.node_link import FIRST_MEMBER, NodeLink
from vecenvs.transport.pickling import loads
from vecenvs.transport.protocol import Answer, Command, address
from vecenvs.transport.ring import PAYLOAD, PIECE, RingReader, RingWriter
from vecenvs.transport.shared import Names, Rings, RingsSpec, SharedBatchColumns, SharedTransport
from vecenvs.transport.spinning import NEVER
from vecenvs.worker.process import wait_for_end

SHARD = range(2)
SIZES = (0, 10, PIECE, PIECE + 1, 0, 3 * PAYLOAD, 1, 0, 2 * PIECE, 40_000)


def batch_columns() -> SharedBatchColumns:
    return SharedBatchColumns(spaces.Box(0, 1, (1,)), spaces.Discrete(2), len(SHARD), (), new_name())


def worker_ends(spec: RingsSpec) -> tuple[RingReader, RingWriter]:
    memory = Allocator(open_segment(spec.rings))
    return RingReader(memory, spec.entries, spec.names.down), RingWriter(memory, spec.entries, spec.names.up)


class LocalTransport(SharedTransport):
    """A worker's ends are opened here."""

    def boot_send(self, data: bytes) -> None:
        self.down, self.up = worker_ends(loads(data))

    def boot_get(self, timeout: float | None) -> bytes | bytearray | None:
        return b""

    def exit_status(self) -> tuple[bool, int | None]:
        return False, None

    def stop(self, grace: float) -> None:
        pass


def bodies(count: int) -> list[bytes | None]:
    """Return bodies of commands. Each says its number in all of its bytes; one of no bytes is None."""
    return [bytes([number % 251]) * SIZES[number % len(SIZES)] or None for number in range(1, count + 1)]


def test_commands_keep_their_order_in_a_full_ring() -> None:
    """Those without a body do not overtake others, and what is left goes out while an answer is waited for."""
    batch, sent = batch_columns(), bodies(200)
    transport = LocalTransport(SHARD, Names.new(batch.wake.name))
    transport.attach(batch)
    batch.forget()
    got: list[tuple[int, Any]] = []
    for number, body in enumerate(sent, 1):
        transport.put(number, Command.CALL, body)
    assert transport.send_rest(), "some are left"
    while len(got) < len(sent):
        assert transport.get(0) is None, "which sends what there is room for"
        while (message := transport.down.get(0)) is not None:
            number, tag, data = message
            assert tag == Command.CALL
            got.append((number, decode(tag, data)))
            transport.down.take()
    assert not transport.send_rest()
    assert got == list(enumerate(sent, 1))


def test_a_leader_passes_commands_on_once_and_in_order() -> None:
    """Frames may come twice, and more commands than the worker's ring has room for."""
    batch, sent = batch_columns(), bodies(200)
    rings = Rings(batch, SHARD, Names.new(batch.wake.name), (NEVER, NEVER), always=True)
    down, up = worker_ends(rings.spec)
    rings.forget()
    batch.forget()
    member = _Member(3, rings, len(SHARD))
    for number, body in enumerate(sent, 1):
        for _ in range(1 + number % 2):
            member.put(number, int(Command.CALL), encode(body))
    got: list[tuple[int, Any]] = []
    while not rings.down.flush() or len(got) < len(sent):
        while (message := down.get(0)) is not None:
            got.append((message[0], decode(message[1], message[2])))
            down.take()
    assert got == list(enumerate(sent, 1))
    # A step of some envs is due until all of its rows have come, in however many answers.
    member.put(1000, *address(Command.STEP_SOME, SHARD))
    for slot in SHARD:
        assert member.due == {1000: len(SHARD) - slot}
        up.put(1000, address(Answer.SOME_ROWS, range(slot, slot + 1))[0], encode([slot] * PIECE))
        found: list[Any] = []
        while not found:
            up.flush()
            assert not member.collect(found), "rows wait for those of other workers"
        ((number, at, _, data),) = found
        assert (number, at, decode(int(Answer.REPLY), data)) == (3, 1000, [slot] * PIECE)
    assert not member.due
    up.enter(1001, int(Answer.REPLY))
    assert member.collect([]), "a reply does not"


def test_a_worker_that_is_to_close_writes_no_rows() -> None:
    """Those of a step that was never finished, say: `close` needs nothing but the worker's last answer."""
    ours, theirs = socket.socketpair()
    batch, worker = (BatchColumns(spaces.Box(0, 1, (1,)), spaces.Discrete(2), 2, Allocator()) for _ in range(2))
    with closing(Channel(theirs)) as channel:
        link = NodeLink(tcp.TcpConnection(ours), batch)
        _, number, inbox = link.join(SHARD)
        answers = Frames.of_answers(worker, {FIRST_MEMBER: SHARD})
        for row in (1.0, 2.0):
            worker.rewards[:] = row
            channel.send_bytes(answers.pack([(FIRST_MEMBER, 1, int(Answer.ROWS), b"")]))
            link.receive(5, inbox)
            assert inbox.popleft() == (1, Answer.ROWS, None)
            link.unneeded.add(number)
        assert batch.rewards.tolist() == [1.0, 1.0]
        link.remove(number)


def test_a_long_command_goes_on_while_another_worker_is_waited_for() -> None:
    """`flush` sends what the socket had no room for; `get` of this worker is not needed."""
    ours, theirs = socket.socketpair()
    batch = BatchColumns(spaces.Box(0, 1, (1,)), spaces.Discrete(2), 2, Allocator())
    link = NodeLink(tcp.TcpConnection(ours), batch)
    member = link.join(SHARD)
    with theirs, closing(ours):
        theirs.setblocking(False)
        link.put((member.number, 1, int(Command.CALL), bytes(10 * 2**20)))
        arrived, rounds = 0, 0
        while link.flush():
            rounds += 1
            with contextlib.suppress(BlockingIOError):
                while True:
                    arrived += len(theirs.recv(2**20))
        with contextlib.suppress(BlockingIOError):
            while True:
                arrived += len(theirs.recv(2**20))
        assert rounds > 1
        assert arrived > 10 * 2**20


@pytest.mark.parametrize("slots", [[range(2), range(2, 4), range(4, 6)], [range(4, 6), range(2), range(2, 4)]])
@pytest.mark.parametrize("some", [False, True])
def test_a_removed_worker_writes_no_rows(slots: list[range], some: bool) -> None:
    """Its last frame may come after the first rows of the worker that has replaced it, on another node."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    batch, worker = (BatchColumns(spaces.Box(0, 1, (3,)), spaces.Discrete(2), 6, Allocator()) for _ in range(2))
    with closing(Channel(theirs)) as channel:
        link = NodeLink(tcp.TcpConnection(ours), batch)
        members = [link.join(each) for each in slots]
        worker.rewards[:] = worker.observations.arrays[0][:] = 0
        answers = Frames.of_answers(worker, {member.number: each for member, each in zip(members, slots, strict=True)})
        worker.rewards[:] = range(1, 7)
        worker.observations.arrays[0][:] = worker.rewards[:, None]
        link.remove(members[1].number)
        tags = [address(Answer.SOME_ROWS, each[1:]) if some else (int(Answer.ROWS), None) for each in slots]
        entries = [
            (m.number, 1, tag, encode(body) if some else b"") for m, (tag, body) in zip(members, tags, strict=True)
        ]
        channel.send_bytes(answers.pack(entries))
        link.receive(5, members[0].inbox)
        left = [slot for each in (slots[0], slots[2]) for slot in (each[1:] if some else each)]
        expected = [slot + 1 if slot in left else 0 for slot in range(6)]
        assert batch.rewards.tolist() == expected
        assert batch.observations.arrays[0][:, 1].tolist() == expected
        for member in (members[0], members[2]):
            link.remove(member.number)


class Endless(LocalTransport):
    """A worker whose answer is waited for when a signal comes."""

    def __init__(self) -> None:
        super().__init__(SHARD, Names.new(new_name()))
        self.stopped = False

    def put(self, number: int, tag: int, body: object = None) -> None:
        pass

    def get(self, timeout: float | None) -> Message | None:
        raise TimeoutError("what the handler raises")

    def take(self) -> None:
        raise AssertionError("nothing has come")

    def stop(self, grace: float) -> None:
        self.stopped = True


def test_what_a_handler_raises_in_close_goes_on() -> None:
    transport = Endless()

    class Owner:
        def launch(self, worker: int, shard: range) -> Transport:
            return transport

    owner = Owner()
    workers = Workers([SHARD], owner.launch, 5.0, StartLimit(None, [1]))
    workers.transports.append(transport)
    with pytest.raises(TimeoutError, match="what the handler raises"):
        workers.close(0.2)
    assert transport.stopped


class Connection:
    """A connection of which the kernel tells this: `struct tcp_info` of linux/tcp.h."""

    def __init__(self, retransmits: int, probes: int, silent: int) -> None:
        unused = [0] * 12
        self.info = struct.pack("=8B13I", 1, 0, retransmits, probes, 0, 0, 0, 0, *unused, silent)

    def fileno(self) -> int:
        return 5

    def getsockopt(self, _: int, __: int, size: int) -> bytes:
        return self.info[:size]


@pytest.mark.skipif(not hasattr(socket, "TCP_INFO"), reason="the system does not tell")
@pytest.mark.parametrize(
    ("retransmits", "probes", "seconds", "cut"),
    [(9, 0, 15.1, 1), (2, 0, 15.1, 1), (0, 2, 15.1, 1), (9, 9, 14.9, 0), (1, 0, 60, 0), (0, 0, 1e4, 0)],
)  # fmt: skip
def test_a_connection_that_is_cut(retransmits: int, probes: int, seconds: float, cut: int) -> None:
    """Retransmissions alone are no sign, nor is silence alone: an idle connection is probed by keepalive."""
    connection: Any = Connection(retransmits, probes, round(1e3 * seconds))
    assert tcp._is_cut(connection) == cut


@pytest.mark.parametrize(("problem", "ended"), [(PermissionError, False), (ProcessLookupError, True), (None, False)])
def test_the_end_of_a_process_without_descriptors(
    problem: type[OSError] | None, ended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Off Linux. A process of another user, as a caller is that has given up its rights, is one that lives."""

    def kill(_: int, signal: int) -> None:
        assert signal == 0
        if problem is not None:
            raise problem

    monkeypatch.delattr(os, "pidfd_open", raising=False)
    monkeypatch.setattr(os, "kill", kill)
    assert wait_for_end(os.getpid(), None, 0.01) == ended
