"""The caller's side of a node with a leader: one connection for all of the node's workers."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from vecenvs.batch.batch_columns import BatchColumns
from vecenvs.errors import VecEnvError
from vecenvs.transport import Message, Transport
from vecenvs.transport.encoding import decode, encode
from vecenvs.transport.frames import Entry, Frames
from vecenvs.transport.pickling import dumps
from vecenvs.transport.shared import BOOT_TIMEOUT, Names, RingsSpec
from vecenvs.transport.spinning import Spin
from vecenvs.transport.tcp import Invitation, TcpConnection

ABOUT_MEMBERS = 0  # the member of an entry that is for the leader itself


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


class NodeLink:
    """The connection to the leader of one node. `stop` ends the leader, once the last worker has been removed.

    Commands are gathered until `flush`, which a wait for any of the node's workers calls, too.
    """

    def __init__(self, connection: TcpConnection, batch: BatchColumns, stop: Callable[[], None]) -> None:
        self._connection = connection
        self._stop = stop
        self._commands, self._answers = Frames.of_commands(batch), Frames.of_answers(batch)
        self._outbox: list[Entry] = []
        self._inboxes: dict[int, deque[Message]] = {}
        self._members = itertools.count(ABOUT_MEMBERS + 1)

    @property
    def closed(self) -> bool:
        """Whether the leader has hung up, or its machine has been silent for too long."""
        return self._connection.closed

    def fileno(self) -> int:
        """Return the connection's descriptor."""
        return self._connection.fileno()

    def watch(self) -> tuple[int, int] | None:
        """Return a descriptor and events, as `Transport.watch`."""
        return self._connection.watch()

    def open(self, shard: range, names: Names, spin: Spin) -> tuple[int, deque[Message], RingsSpec]:
        """Have the leader make the rings of a worker.

        Returns:
            The worker's number as a member, its inbox, and what it needs to open the rings.

        Raises:
            NoLeader: the leader cannot make them.
            BrokenPipeError: the leader is gone.
        """
        member = next(self._members)
        self._commands.shards[member] = self._answers.shards[member] = shard
        inbox = self._inboxes[member] = deque()
        self.tell("open", member, shard, names, spin)
        self.receive(BOOT_TIMEOUT, inbox)
        if not inbox:
            self.remove(member)
            raise BrokenPipeError("the leader of its node is gone, or does not answer")
        spec = inbox.popleft()[2]
        if not isinstance(spec, RingsSpec):
            self.remove(member)
            raise NoLeader(f"its node's leader has no memory for it: {spec}")
        return member, inbox, spec

    def tell(self, *what: Any) -> None:
        """Tell the leader something about its members: see `Leader`."""
        self.put((ABOUT_MEMBERS, 0, 0, dumps(what)))

    def put(self, entry: Entry) -> None:
        """Gather a command; BrokenPipeError if the leader has hung up."""
        if self._connection.hung_up:
            raise BrokenPipeError("the leader of its node has closed the connection")
        self._outbox.append(entry)

    def flush(self) -> None:
        """Send the gathered commands as one message. After an exception in here they may be sent twice."""
        if self._outbox:
            if not self._connection.hung_up:
                self._connection.send(self._commands.pack(self._outbox))
            self._outbox = []

    def receive(self, timeout: float | None, inbox: deque[Message]) -> None:
        """Put what has arrived into the inboxes. Wait up to `timeout` seconds for something in this one."""
        self.flush()
        deadline = None if timeout is None else time.monotonic() + timeout
        data = self._connection.receive(timeout)
        while data is not None:
            for members, number, tag, body in self._answers.unpack(data):
                message = number, tag, decode(tag, body)
                for member in members:
                    if member in self._inboxes:  # else it has been removed
                        self._inboxes[member].append(message)
            self._connection.drop()
            if inbox:
                data = self._connection.arrived()
            else:
                data = self._connection.receive(None if deadline is None else max(deadline - time.monotonic(), 0.0))

    def remove(self, member: int) -> None:
        """Forget a worker; end the leader with the last one. Repeatable."""
        if self._inboxes.pop(member, None) is None:
            return
        if not self.closed:
            self.tell("remove", member)
            self.flush()
        if not self._inboxes:
            self.close()

    def close(self) -> None:
        """Hang up, and end the leader. Repeatable."""
        self._connection.close()
        self._stop()


class NodeTransport(Transport):
    """The caller's end of one worker of a node with a leader."""

    def __init__(self, link: NodeLink, member: int, inbox: deque[Message]) -> None:
        self.link = link
        self._member = member
        self._inbox = inbox

    def attach(self, batch: BatchColumns) -> None:
        raise VecEnvError("a worker of a leader's is attached when it is opened")

    def put(self, number: int, tag: int, body: object = None) -> None:
        self.link.put((self._member, number, int(tag), b"" if body is None else encode(body)))
        self.sent = number

    def send_rest(self) -> bool:
        self.link.flush()
        return False

    def get(self, timeout: float | None) -> Message | None:
        inbox = self._inbox
        if not inbox:
            self.link.receive(timeout, inbox)
        return inbox[0] if inbox else None

    def take(self) -> None:
        self._inbox.popleft()

    def work(self) -> bool:
        return bool(self._inbox)  # which came with another worker's answer, so that `watch` does not show it

    def watch(self) -> tuple[int, int] | None:
        return self.link.watch()

    def fileno(self) -> int:
        """Return the connection's descriptor."""
        return self.link.fileno()

    def exit_status(self) -> tuple[bool, int | None]:
        """Return whether the connection has ended, which says nothing of an exit code."""
        return self.link.closed, None

    def stop(self, grace: float) -> None:
        self.link.remove(self._member)
