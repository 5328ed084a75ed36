"""The ways to a worker that a rank hosts: shared memory on rank 0's node, and between nodes messages.

Those travel over a connection of the worker's own, or by MPI through its rank where the nodes' network lets only MPI's
through.
"""

from __future__ import annotations

import math
import socket
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from vecenvs.backends.mpi.hosting import Serve
from vecenvs.backends.mpi.ranks import Line
from vecenvs.batch.batch_columns import BatchColumns
from vecenvs.errors import VecEnvError, describe_indices
from vecenvs.transport import Message
from vecenvs.transport.packed import PackedTransport
from vecenvs.transport.protocol import Answer, Command, dumps, kind_of, loads
from vecenvs.transport.shared import Names, SharedTransport, Wiring
from vecenvs.transport.spinning import Spin
from vecenvs.transport.tcp import HEARSAY, OutOfReach, Reach, Stream

BOOT_TIMEOUT = 30.0  # seconds for a worker to answer when it has made its envs
LOOK = 0.2  # seconds between looks at whether it lives, meanwhile
WAYS = ("auto", "messages", "mpi")


class SharedHosted(SharedTransport):
    """A worker on rank 0's node: MPI messages until its rings stand, and news of its end."""

    def __init__(self, line: Line, count: int, names: Names, find_spins: Callable[[], tuple[Spin, Spin]]) -> None:
        super().__init__(count, names)
        self._line = line
        self._find_spins = find_spins
        self.where = line.where

    def attach(self, batch: BatchColumns) -> None:
        self._spin = self._find_spins()  # all workers have been placed by now
        super().attach(batch)

    def boot_send(self, wiring: Wiring) -> None:
        self._line.send(dumps(wiring))

    def boot_get(self, timeout: float | None) -> Message | None:
        data = self._line.receive(timeout)
        if data is None:
            return None
        message: Message = loads(data)
        self._line.drop()
        return message

    def exit_status(self) -> tuple[bool, int | None]:
        return self._line.exit_status()

    def stop(self, grace: float) -> None:
        self._line.stop(grace)

    def describe(self) -> dict[str, Any]:
        """Where the worker is and how it is reached."""
        return {**self._line.describe(), "transport": "shared", "why": ""}


class PackedHosted(PackedTransport):
    """A worker out of reach of rank 0's memory: one message per step each way.

    `why` says why it is. The messages go over a connection unless `wanted` is "mpi"; `address` is where the worker may
    connect to, None for what leads to its host from here; `reach` is the VecEnv's. `patience` is how many seconds it
    has for each answer until it serves.
    """

    def __init__(
        self,
        line: Line,
        shard: range,
        wanted: str,
        address: str | None,
        why: str,
        reach: Reach,
        patience: float = BOOT_TIMEOUT,
    ) -> None:
        super().__init__(shard)
        self._line = line
        self._wanted = wanted
        self._address = address
        self._why = why
        self._reach = reach
        self._patience = patience
        self._stream: Stream | None = None
        self._hung_up = math.inf  # since when its end of the connection is known to be closed
        self.where = line.where

    def put(self, number: int, tag: int, body: object = None) -> None:
        if tag == Command.CLOSE and self._stream is not None:
            self._line.session.hang_ups.forget(self._stream.fileno())
        super().put(number, tag, body)

    def deliver(self, data: bytes) -> None:
        (self._stream or self._line).send(data)

    def collect(self, timeout: float | None) -> bytearray | memoryview | None:
        return (self._stream or self._line).receive(timeout)

    def drop(self) -> None:
        (self._stream or self._line).drop()

    def watch(self) -> tuple[int, int] | None:
        return None if self._stream is None else self._stream.watch()

    def boot(self, batch: BatchColumns) -> None:
        stream = None if self._wanted == "mpi" else self._connect()
        try:
            _, kind, body = self._ask(Serve(batch.n, stream is not None))
            if kind_of(kind) != Answer.REPLY:
                raise VecEnvError(f"{self._name()} does not serve: {body}")
        except BaseException:
            if stream is not None:
                stream.close()
            raise
        self._stream = stream
        if stream is not None:
            text = f"{self._line.peer}, with envs {describe_indices(self._line.slots)}"
            self._line.session.hang_ups.watch(stream.fileno(), self._line.number, text)

    def exit_status(self) -> tuple[bool, int | None]:
        gone, exitcode = self._line.exit_status()
        session, peer = self._line.session, self._line.peer
        if not gone and self._stream is not None and self._stream.closed:  # its rank says so sooner, unless it is gone
            session.ask_host(peer.host)
            self._hung_up = min(self._hung_up, time.monotonic())
            gone = time.monotonic() - self._hung_up > HEARSAY
            if gone:
                session.hang_ups.note(self._stream.fileno())
        elif not gone and self._stream is None and self._commands is not None:
            gone = session.is_out_of_reach(peer)
        return gone, exitcode

    def stop(self, grace: float) -> None:
        if self._stream is not None:
            hang_ups = self._line.session.hang_ups
            # What ends by itself, or with its node, may not have been noted yet.
            (hang_ups.note if self._line.gone else hang_ups.forget)(self._stream.fileno())
        self._line.stop(grace)
        if self._stream is not None:
            self._stream.close()

    def describe(self) -> dict[str, Any]:
        """Where the worker is and how it is reached."""
        way = "none yet" if self._commands is None else "mpi" if self._stream is None else "messages"
        return {**self._line.describe(), "transport": way, "why": self._why}

    def _connect(self) -> Stream | None:
        """Have the worker connect to this process. If it cannot, say so in `why`; and warn, once for each host."""
        host = self._line.peer.host
        try:
            return Stream(self._reach.connect(host, lambda: self._address or address_towards(host), self._ask))
        except OutOfReach as exc:
            self._why += f"; {exc}"
            if exc.known:
                return None
        warnings.warn(
            f"workers on {host} are reached by MPI messages, which cost up to a millisecond more per "
            f"step: {self._why}. Let nodes connect to each other, say "
            "with address= which IP address of rank 0's host they reach, or pass transport='mpi'",
            RuntimeWarning,
            stacklevel=2,
        )
        return None

    def _ask(self, what: object) -> Any:
        """Bring something to the worker by way of its rank, and wait for its answer."""
        self._line.send(dumps(what))
        deadline = time.monotonic() + self._patience
        while (answer := self._line.receive(LOOK)) is None:
            if self._line.session.is_out_of_reach(self._line.peer) or self._line.exit_status()[0]:
                raise BrokenPipeError("the worker is gone")
            if time.monotonic() > deadline:
                raise VecEnvError(f"{self._name()} has made its envs, but does not answer within {self._patience:g} s")
        self._line.drop()
        return loads(answer)

    def _name(self) -> str:
        return f"the worker on {self._line.peer} with envs {describe_indices(self._line.slots)}"


def address_towards(host: str) -> str:
    """Give the address of this host's that another one sees, by the route to it. OutOfReach if its name is unknown."""
    try:
        found = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
        for family, _, _, _, address in found[:-1]:
            with suppress(OSError):  # no route by this one
                return _address_on_route(family, address)
        return _address_on_route(found[-1][0], found[-1][4])
    except OSError as exc:
        raise OutOfReach(f"it cannot connect to rank 0's host ({exc})") from exc


def _address_on_route(family: int, address: Any) -> str:
    with socket.socket(family, socket.SOCK_DGRAM) as unused:
        unused.connect(address)  # nothing is sent
        return str(unused.getsockname()[0])
