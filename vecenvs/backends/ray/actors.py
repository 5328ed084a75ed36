"""The actors of one VecEnv, the leaders of its nodes, and where a worker goes whose node is lost."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from vecenvs.backends.ray.cluster import Session
from vecenvs.backends.ray.placement import Request
from vecenvs.cpus import usable_cores
from vecenvs.transport.spinning import Spin, spins

if TYPE_CHECKING:
    from vecenvs.backends.ray.actor import Home
    from vecenvs.backends.ray.transport import ActorTransport, LeaderTransport

MOVE, WAIT = ON_LOST_NODE = ("move", "wait")


class Actors:
    """The actors of one VecEnv by worker, those being started included. `request` is what each asks for at first.

    `transport` and `port` are as in `RemoteTransport`. `on_lost_node` says what a replacement does for which there is
    no place.
    """

    def __init__(
        self, session: Session, request: Request, autoreset: str, transport: str, port: int, on_lost_node: str
    ) -> None:
        self.session = session
        self.request = request
        self.autoreset = autoreset
        self.transport = transport
        self.port = port
        self.on_lost_node = on_lost_node
        self.by_worker: dict[int, ActorTransport] = {}
        self.leaders: dict[str, LeaderTransport] = {}  # by node

    def elsewhere(self) -> Request:
        """Return the request of an actor without CPUs of its own, on the node where workers are fewest per CPU.

        If no node of theirs lives, that is the caller's.
        """
        import ray

        cpus = {node["NodeID"]: node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"]}
        workers = Counter(node for node in self._nodes() if node in cpus)
        return self.request.without_cpus(
            min(workers, key=lambda node: workers[node] / max(cpus[node], 1.0), default=self.session.node)
        )

    def nodes_by_messages(self) -> Iterator[str]:
        """Yield the node of each worker that the caller reaches by messages."""
        for node in self._nodes():
            if self.transport == "messages" or node != self.session.node:
                yield node

    def spins(self, home: Home) -> tuple[Spin, Spin]:
        """Return how long a worker, and its caller or its node's leader, try a semaphore before they sleep.

        By the time that a worker is attached, all have their places.
        """
        cores = usable_cores() if home.node == self.session.node else home.cores
        return spins(cores - sum(node == home.node for node in self._nodes()))

    def reap(self, worker: int, deadline: float) -> None:
        """Free what is held for the actor of a worker, if there is one. It has been stopped."""
        actor = self.by_worker.pop(worker, None)
        if actor is not None and self.session.pid == os.getpid():
            actor.reap(deadline)

    def reap_all(self, deadline: float) -> None:
        """Reap all of them at the same time."""
        everyone = [*self.by_worker.values(), *self.leaders.values()]
        self.by_worker.clear()
        self.leaders.clear()
        if self.session.pid == os.getpid():
            for actor in everyone:
                actor.kill(deadline)
            for actor in everyone:
                actor.reap(deadline)

    def _nodes(self) -> Iterator[str]:
        return (actor.node for actor in self.by_worker.values() if actor.node and not actor.stopped)
