"""The actors of one VecEnv, and where one goes whose node is lost."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from vecenvs.backends.ray.actor import EnvActor
from vecenvs.backends.ray.cluster import Session
from vecenvs.backends.ray.placement import Request
from vecenvs.cpus import usable_cores
from vecenvs.transport.spinning import Spin, spins

if TYPE_CHECKING:
    from vecenvs.backends.ray.transport import ActorTransport

MOVE, WAIT = ON_LOST_NODE = ("move", "wait")


class Actors:
    """The actors of one VecEnv by worker, those being started included. `request` is what each asks for at first.

    `transport` and `port` are as in `RemoteTransport`. `on_lost_node` says what a replacement does for which there is
    no place. `cores` are how many each may use.
    """

    def __init__(
        self,
        session: Session,
        request: Request,
        autoreset: str,
        transport: str,
        port: int,
        on_lost_node: str,
        cores: int,
    ) -> None:
        self.session = session
        self.request = request
        self.actor_class = request.actor_class(EnvActor)
        self.autoreset = autoreset
        self.cores = cores
        self.transport = transport
        self.port = port
        self.on_lost_node = on_lost_node
        self.by_worker: dict[int, ActorTransport] = {}

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

    def spins(self) -> tuple[Spin, Spin]:
        """Return how long the caller and a worker of its node try a semaphore before they sleep.

        By the time that a worker is attached, all have their places.
        """
        return spins(usable_cores() - sum(node == self.session.node for node in self._nodes()))

    def reap(self, worker: int, deadline: float) -> None:
        """Free what is held for the actor of a worker, if there is one. It has been stopped."""
        actor = self.by_worker.pop(worker, None)
        if actor is not None and self.session.pid == os.getpid():
            actor.reap(deadline)

    def reap_all(self, deadline: float) -> None:
        """Reap all of them at the same time."""
        if self.session.pid == os.getpid():
            for actor in self.by_worker.values():
                actor.kill(deadline)
        for worker in list(self.by_worker):
            self.reap(worker, deadline)

    def _nodes(self) -> Iterator[str]:
        return (actor.node for actor in self.by_worker.values() if actor.node and not actor.stopped)
