"""The caller's end of a worker that a rank hosts."""

from __future__ import annotations

import socket
import sys
from contextlib import suppress
from typing import Any

from vecenvs.backends.mpi.hosting import LeaderRequest
from vecenvs.backends.mpi.launched_worker import LaunchedWorker
from vecenvs.backends.mpi.nodes import Peer
from vecenvs.backends.mpi.ranks import WorkerRanks
from vecenvs.batch.batch_columns import BatchColumns
from vecenvs.transport.leaders import Leaders
from vecenvs.transport.node_link import NodeLink
from vecenvs.transport.remote import ASKED_FOR, OTHER_NODE, RemoteTransport
from vecenvs.transport.shared import Names
from vecenvs.transport.spinning import NEVER, spins


class Places:
    """The rank of each worker of one VecEnv, those not launched yet included, and how the caller reaches them.

    `transport` and `port` are as in `RemoteTransport`. `address` is an IP address of this machine to which workers
    connect; None for the one on the route to their host.
    """

    def __init__(self, ranks: WorkerRanks, transport: str, address: str | None, port: int) -> None:
        self.used: dict[int, Peer] = {}
        self.transport = transport
        self.address = address
        self.port = port
        self._ranks = ranks

    def by_messages(self, peer: Peer) -> bool:
        """Tell whether the workers of a rank are reached by messages."""
        return self.transport == "messages" or not peer.shares

    def nodes_by_messages(self) -> list[int]:
        """Return the node of each worker that is reached by messages."""
        return [peer.node for peer in self.used.values() if self.by_messages(peer)]

    def start_leader(self, node: int) -> RankTransport:
        """Have a rank launch the leader of its node."""
        peer = next(peer for peer in self.used.values() if peer.node == node and self.by_messages(peer))
        leader = RankTransport(self._ranks.launch(peer, LeaderRequest(list(sys.path))), Names.new(""), self)
        leader.why = ASKED_FOR if self.transport == "messages" else leader.why_not_shared()  # for an error
        return leader

    def spins(self, peer: Peer) -> tuple[float, float]:
        """Return how long a worker of a rank, and its caller or leader, try a semaphore before they sleep."""
        here = [other for other in self.used.values() if other.node == peer.node]
        spare = self._ranks.cores(peer.node) - len(here)
        if spare < 0 or here.count(peer) > len(peer.cpus):
            return NEVER, NEVER
        return spins(spare)


class RankTransport(RemoteTransport):
    """A worker whose boot channel is MPI, by way of its rank; or a leader, without `leaders`."""

    def __init__(self, launched: LaunchedWorker, names: Names, places: Places, leaders: Leaders | None = None) -> None:
        super().__init__(launched.slots, names, places.transport, places.port)
        self._launched = launched
        self._places = places
        self._leaders = leaders
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

    def spins(self) -> tuple[float, float]:
        return self._places.spins(self._launched.peer)

    def address(self) -> str:
        return self._places.address or address_towards(self._launched.peer.host)

    def about_address(self) -> str:
        return "address= chooses another IP address of rank 0's host, on a network that all nodes reach"

    def node_link(self, batch: BatchColumns) -> NodeLink | None:
        return None if self._leaders is None else self._leaders.link(self._launched.peer.node, batch)

    def place(self) -> dict[str, Any]:
        return {"rank": self._launched.peer.rank}

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
