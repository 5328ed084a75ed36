"""The caller's end of the actor that leads a node."""

from __future__ import annotations

import time

from vecenvs.backends.ray.actor import LeaderActor
from vecenvs.backends.ray.actor_end import ActorEnd
from vecenvs.backends.ray.actors import Actors
from vecenvs.backends.ray.placement import PendingActor
from vecenvs.transport.remote import ASKED_FOR, OTHER_NODE
from vecenvs.transport.shared import Names


class LeaderTransport(ActorEnd):
    """The actor of a node's leader."""

    def __init__(self, actors: Actors, node: str) -> None:
        super().__init__(actors, f"the leader of node {node[:8]}", range(0), None, Names.new(""))
        self.why = ASKED_FOR if actors.transport == "messages" else OTHER_NODE  # for an error
        self._start(PendingActor(actors.request.for_leader(node), LeaderActor, (), self._who))


def start_leader(actors: Actors, node: str) -> LeaderTransport:
    """Start the leader of a node, in place of the one that it has had."""
    before = actors.leaders.pop(node, None)
    if before is not None:
        before.stop(0.0)
        before.reap(time.monotonic())
    leader = actors.leaders[node] = LeaderTransport(actors, node)
    return leader
