"""The caller's end of a connection: to a worker of another machine, or to the leader of a node for all its workers."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from vecenvs.batch.batch_columns import BatchColumns
from vecenvs.transport.encoding import decode
from vecenvs.transport.frames import Entry, Frames
from vecenvs.transport.pickling import dumps
from vecenvs.transport.protocol import Message
from vecenvs.transport.shared import BOOT_TIMEOUT, Names, RingsSpec
from vecenvs.transport.tcp import Invitation, TcpConnection

ABOUT_MEMBERS = 0  # the member of an entry that is for the leader itself
FIRST_MEMBER = 1


class NoLeader(Exception):
    """A worker is to connect to the caller by itself, although its node could have a leader; the message says why."""


class LeaderSpec(NamedTuple):
    """What a leader needs to connect to its caller, and to lay out columns for its node's workers."""

    invitation: Invitation
    observation_space: Any
    action_space: Any
    n: int
    info_attrs: tuple[str, ...]
    wake: str  # the name of the semaphore that its workers release
    members: int  # how many workers it is to have at first; those after them do not wake it


class Member(NamedTuple):
    """One worker of a connection: its number there, and its answers that have come."""

    link: NodeLink
    number: int
    inbox: deque[Message]


class NodeLink:
    """The connection to one worker, or to the leader of one node. `stop` ends the leader after its last worker.

    Commands are gathered until `flush`, which a wait for any of these workers calls, too.
    """

    def __init__(self, connection: TcpConnection, batch: BatchColumns, stop: Callable[[], None] = lambda: None) -> None:
        self._connection = connection
        self._stop = stop
        self._shards: dict[int, range] = {}
        self._commands, self._answers = (make(batch, self._shards) for make in (Frames.of_commands, Frames.of_answers))
        self._outbox: list[Entry] = []
        self._inboxes: dict[int, deque[Message]] = {}
        self.unneeded: set[int] = set()  # members that are told to close or removed: nobody needs their rows
        self._members = itertools.count(FIRST_MEMBER)

    @property
    def closed(self) -> bool:
        """Whether the leader has hung up, or its machine has been silent for too long."""
        return self._connection.lost

    def watch(self) -> tuple[int, int] | None:
        """Return a descriptor and events, as `Transport.watch`."""
        return self._connection.watch()

    def join(self, shard: range) -> Member:
        """Return another worker of this connection."""
        number = next(self._members)
        self._shards[number] = shard
        self._inboxes[number] = inbox = deque[Message]()
        return Member(self, number, inbox)

    def open(self, shard: range, names: Names, spin: float) -> tuple[Member, RingsSpec]:
        """Have the leader make the rings of another worker.

        Returns:
            The worker, and what it needs to open the rings.

        Raises:
            NoLeader: the leader cannot make them.
            BrokenPipeError: the leader is gone.
        """
        member = self.join(shard)
        self.tell("open", member.number, shard, names, spin)
        self.receive(BOOT_TIMEOUT, member.inbox)
        if not member.inbox:
            self.remove(member.number)
            raise BrokenPipeError("the leader of its node is gone, or does not answer")
        spec = member.inbox.popleft()[2]
        if not isinstance(spec, RingsSpec):
            self.remove(member.number)
            raise NoLeader(f"its node's leader has no memory for it: {spec}")
        return member, spec

    def tell(self, *what: Any) -> None:
        """Tell the leader something about its members: see `Leader`."""
        self.put((ABOUT_MEMBERS, 0, 0, dumps(what)))

    def put(self, entry: Entry) -> None:
        """Gather a command; BrokenPipeError if the other end has hung up."""
        if self._connection.closed:
            raise BrokenPipeError("the other end has closed the connection")
        self._outbox.append(entry)

    def flush(self) -> bool:
        """Send the gathered commands as one message. After an exception in here they may be sent twice.

        Returns:
            Whether something of what was to be sent is left.
        """
        connection = self._connection
        if self._outbox:
            if not connection.closed:
                connection.put(self._commands.pack(self._outbox))
            self._outbox = []
        elif not connection.closed:
            connection.flush()
        return not connection.closed and connection.has_unsent

    def receive(self, timeout: float | None, inbox: deque[Message]) -> None:
        """Put what has arrived into the inboxes. Wait up to `timeout` seconds for something in this one."""
        self.flush()
        deadline = None if timeout is None else time.monotonic() + timeout
        data = self._connection.wait(timeout)
        while data is not None:
            for members, number, tag, body in self._answers.unpack(data, without=self.unneeded):
                message = number, tag, decode(tag, body)
                for member in members:
                    if member in self._inboxes:  # else it has been removed
                        self._inboxes[member].append(message)
            self._connection.drop()
            if inbox:
                data = self._connection.first()
            else:
                data = self._connection.wait(None if deadline is None else max(deadline - time.monotonic(), 0.0))

    def remove(self, member: int) -> None:
        """Forget a worker; hang up with the last one. Repeatable."""
        if self._inboxes.pop(member, None) is None:
            return
        self.unneeded.add(member)  # a late frame would write over those of the worker that replaces it elsewhere
        if not self._inboxes:
            self._connection.close()
            self._stop()
        elif not self.closed:
            self.tell("remove", member)
            self.flush()
