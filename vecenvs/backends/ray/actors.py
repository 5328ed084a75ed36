"""The actors of one VecEnv, the leaders of its nodes, and where a worker goes whose node is lost."""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from vecenvs.backends.ray.cluster import Session
from vecenvs.backends.ray.placement import LOOK, NoPlace, PendingActor, Request
from vecenvs.cpus import usable_cores
from vecenvs.errors import BackendUnavailable
from vecenvs.transport.spinning import spins

if TYPE_CHECKING:
    from vecenvs.backends.ray.actor import ActorLocation
    from vecenvs.backends.ray.transport import ActorTransport, LeaderTransport

MOVE, WAIT = ON_LOST_NODE = ("move", "wait")

_log = logging.getLogger("vecenvs")


class Actors:
    """The actors of one VecEnv by worker, those being started included. `request` is what each asks for at first.

    `transport` and `port` are as in `RemoteTransport`. `on_lost_node` says what a replacement does for which there is
    no place. With `min_workers` the VecEnv begins when so many have a place; the others share the CPUs of these.
    `cores` are how many each worker may use.
    """

    def __init__(
        self,
        session: Session,
        request: Request,
        transport: str,
        port: int,
        on_lost_node: str,
        min_workers: int | None,
        cores: int,
    ) -> None:
        self.session = session
        self.request = request
        self.cores = cores
        self.transport = transport
        self.port = port
        self.on_lost_node = on_lost_node
        self.min_workers = min_workers
        self.by_worker: dict[int, ActorTransport] = {}
        self.waiting: dict[int, PendingActor] = {}  # by worker: those without a place, while others step their envs
        self.beside: list[ActorTransport] = []  # those beside which others have been started
        self._next_look = 0.0
        self.leaders: dict[str, LeaderTransport] = {}  # by node
        self.lost_nodes: set[str] = set()  # to which connections have ended, while Ray has still to find that out

    def elsewhere(self) -> Request:
        """Return the request of an actor without CPUs of its own, on the node where workers are fewest per CPU.

        If no node of theirs lives, that is the caller's.
        """
        import ray

        alive = [node for node in ray.nodes() if node["Alive"] and node["NodeID"] not in self.lost_nodes]
        cpus = {node["NodeID"]: node["Resources"].get("CPU", 0.0) for node in alive}
        workers = Counter(node for node in self._nodes() if node in cpus)
        return self.request.without_cpus(
            min(workers, key=lambda node: workers[node] / max(cpus[node], 1.0), default=self.session.node)
        )

    def begins(self, waited: float) -> bool:
        """Tell whether `min_workers` have a place. NoPlace if not and no worker has found one for too long."""
        placed = sum(actor.placed for actor in self.by_worker.values())
        if self.min_workers is None or placed >= self.min_workers:
            return True
        if waited > self.request.seconds:
            who = f"{self.min_workers - placed} of the {self.min_workers} workers that min_workers asks for"
            raise NoPlace(self.request.explain(who, "", self.request.seconds))
        return False

    def share_all(self, why: str) -> None:
        """Begin with the workers that have a place: those that have none share their CPUs, and log it."""
        # One that has died is not hidden: its death is raised when its turn comes.
        without = [actor for actor in self.by_worker.values() if not actor.placed and not actor.exit_status()[0]]
        for actor in without:
            actor.share()
        _log.warning(
            "%d of %d workers have a place, and the envs of the others share their CPUs until there is room: %s",
            len(self.by_worker) - len(without), len(self.by_worker), why,
        )  # fmt: skip

    def has_room(self, worker: int) -> bool:
        """Tell whether a worker's actor that has waited for a place has one, as far as it was looked at."""
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + LOOK
            for other in list(self.waiting):
                self._look(other)
        return worker in self.waiting and self.waiting[worker].placement.found

    def _look(self, worker: int) -> None:
        import ray

        pending = self.waiting[worker]
        try:
            pending.placement.look()
        except ray.exceptions.RayActorError:  # it has died since, with its node for instance
            self.waiting[worker] = pending.again()
        except BackendUnavailable as exc:
            _log.warning("no actor waits for a place any more: %s", exc)
            del self.waiting[worker]

    def nodes_by_messages(self) -> Iterator[str]:
        """Yield the node of each worker that the caller reaches by messages."""
        for node in self._nodes():
            if self.transport == "messages" or node != self.session.node:
                yield node

    def spins(self, location: ActorLocation) -> tuple[float, float]:
        """Return how long a worker, and its caller or its node's leader, try a semaphore before they sleep.

        By the time that a worker is attached, all have their places.
        """
        cores = usable_cores() if location.node == self.session.node else location.cores
        return spins(cores - sum(node == location.node for node in self._nodes()))

    def part_with(self, worker: int, deadline: float) -> None:
        """Free what is held for the actor of a worker, if it has been stopped; else it goes on beside the next one."""
        if worker in self.by_worker:
            self.beside.append(self.by_worker.pop(worker))
        stopped = [actor for actor in self.beside if actor.stopped]
        self.beside = [actor for actor in self.beside if not actor.stopped]
        for actor in stopped if self.session.pid == os.getpid() else ():
            actor.reap(deadline)

    def reap_all(self, deadline: float) -> None:
        """Reap all of them at the same time."""
        self.stop_waiting()
        everyone = [*self.by_worker.values(), *self.beside, *self.leaders.values()]
        self.by_worker.clear()
        self.beside.clear()
        self.leaders.clear()
        if self.session.pid == os.getpid():
            for actor in everyone:
                actor.kill(deadline)
            for actor in everyone:
                actor.reap(deadline)

    def stop_waiting(self) -> None:
        """End the actors that wait for a place. Repeatable."""
        import ray

        waiting = list(self.waiting.values())
        self.waiting.clear()
        if self.session.alive():
            for pending in waiting:
                ray.kill(pending.actor)

    def _nodes(self) -> Iterator[str]:
        return (actor.node for actor in (*self.by_worker.values(), *self.beside) if actor.node and not actor.stopped)
