"""How a worker is reached that MPI or Ray has launched: rings on the caller's machine, otherwise a TCP connection.

There is no third way. Where a worker can neither open the caller's memory nor connect to the caller, the error says
which port has to be opened.
"""

from __future__ import annotations

import abc
import socket
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple

from vecenvs.batch.batch_columns import BatchColumns
from vecenvs.errors import VecEnvError
from vecenvs.transport import Message
from vecenvs.transport.encoding import encode
from vecenvs.transport.memory import unlink_semaphores
from vecenvs.transport.node_link import Member, NodeLink, NoLeader
from vecenvs.transport.pickling import dumps
from vecenvs.transport.protocol import Command
from vecenvs.transport.shared import BOOT_TIMEOUT, MemoryUnreachable, Names, SharedTransport
from vecenvs.transport.tcp import CAUSE_TIMEOUT, Invitation, Listener, TcpConnection

TRANSPORTS = ("auto", "messages")
OTHER_NODE = "on another node"
ASKED_FOR = "asked for"
_CLOSE = int(Command.CLOSE)
_LOOK = 0.2  # seconds between looks at whether a worker lives that is to answer


class TcpSpec(NamedTuple):
    """What a worker needs to connect to its caller, and to lay out columns of its own."""

    invitation: Invitation
    n: int
    info_attrs: tuple[str, ...]


class RemoteTransport(SharedTransport):
    """The caller's end of one worker, on any machine. `wanted` is "auto", or "messages" for a connection everywhere.

    `way` is "shared" or "messages" once the worker is attached, and `why` says why it is not "shared". The caller
    listens at `port`, or at any free port if that is 0.

    A subclass adds what one of SharedTransport does, and what is abstract below.
    """

    def __init__(self, shard: range, names: Names, wanted: str, port: int) -> None:
        super().__init__(shard, names)
        self.way = "none yet"
        self.why = ""
        self.problem = ""  # why it could not connect
        self._wanted = wanted
        self._port = port
        self._member: Member | None = None  # of a connection, where there are no rings
        self._has_leader = False
        self._disconnected = 0.0  # when the connection was first seen to have ended

    @abc.abstractmethod
    def why_not_shared(self) -> str:
        """Return why the worker cannot open the caller's memory; "" if it may be able to."""

    @abc.abstractmethod
    def spins(self) -> tuple[float, float]:
        """Return how long the caller and the worker try a semaphore before they sleep."""

    @abc.abstractmethod
    def address(self) -> str:
        """Return the address of this machine to which the worker is to connect. OSError if there is none."""

    @abc.abstractmethod
    def place(self) -> dict[str, Any]:
        """Return what the engine calls the worker's place, for `stats`."""

    @abc.abstractmethod
    def about_address(self) -> str:
        """Return what chooses the address that `address` returns, for an error: a clause."""

    def node_link(self, batch: BatchColumns) -> NodeLink | None:
        """Return the link to the leader of the worker's node; None if it has none. NoLeader if it cannot have one."""
        return None

    def describe(self) -> dict[str, Any]:
        return {**self.place(), "transport": self.way, "why": self.why, "gathered": self._has_leader}

    def attach(self, batch: BatchColumns) -> None:
        self.why = ASKED_FOR if self._wanted == "messages" else self.why_not_shared()
        self._spin = self.spins()
        if not self.why:
            try:
                super().attach(batch)
                self.way = "shared"
                return
            except MemoryUnreachable as exc:
                self.why = f"on the caller's node, but {exc}"
        try:
            self._has_leader = self._join(batch)
        except NoLeader as exc:
            self.why = f"{self.why}, and {exc}"
        if not self._has_leader:
            connection = self.connect(partial(TcpSpec, n=batch.n, info_attrs=batch.info_attrs))
            self._member = NodeLink(TcpConnection(connection), batch).join(self._shard)
        self.way = "messages"

    def put(self, number: int, tag: int, body: object = None) -> None:
        member = self._member
        if tag == _CLOSE:
            self.expect_disconnect()
            if member is not None:
                member.link.unneeded.add(member.number)
        if member is None:
            SharedTransport.put(self, number, tag, body)  # super() costs as much as both calls
        else:
            member.link.put((member.number, number, int(tag), b"" if body is None else encode(body)))

    def send_rest(self) -> bool:
        if self._member is None:
            return super().send_rest()
        return self._member.link.flush()

    def get(self, timeout: float | None) -> Message | None:
        if self._member is None:
            return SharedTransport.get(self, timeout)
        link, _, inbox = self._member
        if not inbox:
            link.receive(timeout, inbox)
        return inbox[0] if inbox else None

    def take(self) -> None:
        if self._member is not None:
            self._member.inbox.popleft()

    def work(self) -> bool:
        # What came with another worker's answer, so that `watch` does not show it.
        return self._member is not None and bool(self._member.inbox)

    def watch(self) -> tuple[int, int] | None:
        return None if self._member is None else self._member.link.watch()

    def expect_disconnect(self) -> None:
        """Note that the worker is told to close, so the end of its connection is no loss."""

    def disconnected(self) -> bool:
        """Tell whether the worker's connection has ended."""
        return self._member is not None and self._member.link.closed

    @property
    def attached(self) -> bool:
        """Whether the worker has rings or a connection."""
        return self._member is not None or self._down is not None

    def disconnected_for_long(self, seconds: float = CAUSE_TIMEOUT) -> bool:
        """Tell whether its engine has had the time to say why the worker's connection has ended, and has not."""
        if not self.disconnected():
            return False
        self._disconnected = self._disconnected or time.monotonic()
        return time.monotonic() - self._disconnected > seconds

    def close_link(self) -> None:
        """Close the connection, if there is one, and unlink the worker's semaphores. Repeatable."""
        if self._member is not None:
            self._member.link.remove(self._member.number)
        unlink_semaphores(self._names)

    def _join(self, batch: BatchColumns) -> bool:
        """Have the leader of the worker's node serve it. False if there is none, NoLeader if they share no memory."""
        link = self.node_link(batch)
        if link is None:
            return False
        self._member, spec = link.open(self._shard, self._names, self._spin[1])
        try:
            self.boot_send(dumps(spec))
            problem = self._boot_answer()
        finally:
            if not link.closed:
                link.tell("opened", self._member.number)
        if not problem:
            return True
        link.remove(self._member.number)
        self._member = None
        raise NoLeader(f"cannot open the memory of its node's leader: {problem}")

    def connect(self, spec: Callable[[Invitation], Any]) -> socket.socket:
        """Have the process connect to this one, by what `spec` makes of an invitation.

        Raises:
            VecEnvError: it cannot. The message has the remedy; `problem` is why.
        """
        host, port = "the caller", self._port
        try:
            host = self.address()
            with closing(Listener(host, port)) as listener:
                port = listener.invitation.port
                self.boot_send(dumps(spec(listener.invitation)))
                problem = self._boot_answer()
                if not problem:
                    return listener.accept()
        except ConnectionError:
            raise
        except OSError as exc:
            problem = f"{type(exc).__name__}: {exc}"
        self.problem = problem
        raise VecEnvError(self._explain(host, port, problem))

    def _boot_answer(self) -> str:
        deadline = time.monotonic() + BOOT_TIMEOUT
        while (answer := self.boot_get(_LOOK)) is None:
            if self.exit_status()[0]:
                raise BrokenPipeError("the worker is gone")
            if time.monotonic() > deadline:
                raise VecEnvError(f"the worker{self.where} has made its envs, but does not answer any more")
        return bytes(answer).decode()

    def _explain(self, host: str, port: int, problem: str) -> str:
        if self._port:
            which = f"TCP port {port} of {host}, which port= has chosen"
        else:
            which = f"the TCP ports of {host} (this time it was {port or 'none yet'}; port= chooses a single one)"
        return (
            f"the worker{self.where} cannot connect to this process at {host}, port {port} ({problem}), and it does "
            f"not share its memory ({self.why}). Open {which} to the worker's machine; {self.about_address()}"
        )
