"""The caller's end of a worker that a rank hosts."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from vecenvs.backends.mpi.ranks import LaunchedWorker
from vecenvs.batch.batch_columns import BatchColumns
from vecenvs.transport.node_link import NodeLink
from vecenvs.transport.remote import OTHER_NODE, RemoteTransport
from vecenvs.transport.shared import Names
from vecenvs.transport.spinning import Spin


class RankTransport(RemoteTransport):
    """A worker whose boot channel is MPI, by way of its rank.

    `address` is an IP address of this machine to which workers connect; None for the one on the route to their host.
    `find_spins` and `find_node` are called when all workers have been placed.
    """

    def __init__(
        self,
        launched: LaunchedWorker,
        names: Names,
        find_spins: Callable[[], tuple[Spin, Spin]],
        wanted: str,
        address: str | None,
        port: int,
        find_node: Callable[[BatchColumns], NodeLink | None] = lambda _: None,
    ) -> None:
        super().__init__(launched.slots, names, wanted, port)
        self._launched = launched
        self._find_spins = find_spins
        self._address = address
        self._find_node = find_node
        self.where = launched.where

    def boot_send(self, data: bytes) -> None:
        self._launched.send(data)

    def boot_get(self, timeout: float | None) -> bytearray | None:
        return self._launched.receive(timeout)

    def why_not_shared(self) -> str:
        peer = self._launched.peer
        if peer.shares:
            return ""
        return "its rank cannot open the caller's shared memory" if peer.same_node else OTHER_NODE

    def spins(self) -> tuple[Spin, Spin]:
        return self._find_spins()

    def address(self) -> str:
        return self._address or address_towards(self._launched.peer.host)

    def about_address(self) -> str:
        return "address= chooses another IP address of rank 0's host, on a network that all nodes reach"

    def node_link(self, batch: BatchColumns) -> NodeLink | None:
        return self._find_node(batch)

    def place(self) -> dict[str, Any]:
        peer = self._launched.peer
        return {"rank": peer.rank, "host": peer.host, "pid": peer.pid}

    def attach(self, batch: BatchColumns) -> None:
        super().attach(batch)
        if (watched := self.watch()) is not None:
            self._launched.note_connected(watched[0])

    def expect_disconnect(self) -> None:
        self._launched.expect_disconnect()

    def exit_status(self) -> tuple[bool, int | None]:
        launched = self._launched
        gone, exitcode = launched.exit_status()
        if gone:
            return True, exitcode
        if self.disconnected():
            launched.ranks.ping_host(launched.peer.host)  # its rank says more, unless it is gone as well
            gone = self.disconnected_for_long()
            if gone:
                launched.note_lost()
        elif not self.attached and self._made is not None:
            gone = launched.ranks.is_out_of_reach(launched.peer)
        return gone, None

    def stop(self, grace: float) -> None:
        self._launched.stop(grace)
        self.close_link()


def address_towards(host: str) -> str:
    """Return the address of this machine that another host sees, by the route to it. OSError if there is no route."""
    found = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
    for family, _, _, _, address in found[:-1]:
        with suppress(OSError):  # no route by this one
            return _address_on_route(family, address)
    return _address_on_route(found[-1][0], found[-1][4])


def _address_on_route(family: int, address: Any) -> str:
    with socket.socket(family, socket.SOCK_DGRAM) as unused:
        unused.connect(address)  # nothing is sent
        return str(unused.getsockname()[0])
