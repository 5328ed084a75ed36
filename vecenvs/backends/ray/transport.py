"""The caller's ends of the actors of workers, which may do without a place of their own, and of leaders."""

from __future__ import annotations

import logging
import math
import time
from contextlib import suppress
from typing import Any

from vecenvs.backends.ray.actor import EnvActor, LeaderActor
from vecenvs.backends.ray.actor_end import ActorEnd, forget_frames
from vecenvs.backends.ray.actors import WAIT, Actors
from vecenvs.backends.ray.placement import NoPlace, PendingActor
from vecenvs.batch.batch_columns import BatchColumns
from vecenvs.errors import describe_indices
from vecenvs.pool.workers import EXIT_GRACE
from vecenvs.transport.leaders import Leaders
from vecenvs.transport.node_link import NodeLink
from vecenvs.transport.pickling import PickledFns
from vecenvs.transport.protocol import Command
from vecenvs.transport.remote import ASKED_FOR, OTHER_NODE
from vecenvs.transport.shared import Names

PLACE_TIMEOUT = 10.0  # seconds for a worker to find a place of its own, and its process to start, if it can do without

_STEPS = frozenset({int(Command.STEP), int(Command.STEP_SOME)})

_log = logging.getLogger("vecenvs")


class ActorTransport(ActorEnd):
    """The actor of worker number `worker`.

    If there is no place of its own for an actor that `replaces` another, it shares the CPUs of other workers, or waits:
    see `Actors.on_lost_node`. With `Actors.min_workers` it also shares them at the start. The next step after it has
    found its own place finds it `moving`. One that starts `beside` another has to find a place.
    """

    def __init__(
        self,
        actors: Actors,
        leaders: Leaders,
        worker: int,
        shard: range,
        env_fns: PickledFns,
        names: Names,
        arguments: tuple[Any, ...],
        *,
        replaces: bool,
        beside: bool,
    ) -> None:
        super().__init__(actors, f"the worker of envs {describe_indices(shard)}", shard, env_fns, names)
        self._leaders = leaders
        self._worker = worker
        self._replaces = replaces
        self._arguments = arguments  # of EnvActor
        optional = replaces or actors.min_workers is not None
        self._accommodating = optional and not (beside or actors.request.needs_nothing)
        seconds = min(PLACE_TIMEOUT, actors.request.seconds) if self._accommodating else None
        if beside or worker not in actors.waiting:
            self._start(PendingActor(actors.request, EnvActor, self._arguments, self._who, seconds))
        elif actors.has_room(worker):
            self._start(actors.waiting.pop(worker))
        else:
            self._share()

    @property
    def shares(self) -> bool:
        """Whether the worker shares the CPUs of others, while an actor waits for a place of its own."""
        return self._worker in self._actors.waiting

    def put(self, number: int, tag: int, body: object = None) -> None:
        if tag & 0xFF in _STEPS and self.shares and self._actors.has_room(self._worker):
            self.moving = True
            raise BrokenPipeError("the worker moves")
        super().put(number, tag, body)

    def stop(self, grace: float) -> None:
        if self.moving and not self.stopped:
            with suppress(ConnectionError):  # its envs are well, and to be closed like any others
                super().put(2**62, Command.CLOSE)
                self.send_rest()
            grace = max(grace, EXIT_GRACE)
        super().stop(grace)

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "shares": self.shares}

    def node_link(self, batch: BatchColumns) -> NodeLink | None:
        return None if self.location is None else self._leaders.link(self.location.node, batch)

    def _finds_other_way(self) -> bool:
        if not self._accommodating:
            return False
        why = self._actors.request.why()
        if not self._replaces:
            if self._actors.begins(self._placement.waited()):
                self._actors.share_all(why)
        elif self._actors.on_lost_node == WAIT:
            self._accommodating = False
            self._placement.seconds = math.inf
            _log.warning("%s waits for a place: %s", self._who, why)
        else:
            self.share()
            _log.warning("%s finds no place of its own, so it shares the CPUs of others: %s", self._who, why)
        return True

    @property
    def placed(self) -> bool:
        """Whether the worker has a place of its own. False also if it has died, or never will."""
        import ray

        if self.location is None:
            try:
                self._arrive(self._placement.look())
            except (NoPlace, ray.exceptions.RayActorError) as exc:
                forget_frames(exc)
        return self.location is not None and not self.shares

    def share(self) -> None:
        """Go to a node of other workers, while another actor waits for a place of its own.

        That one is new: this one would make its envs there at once.
        """
        import ray

        self._accommodating = False
        self._placement.give_up()
        ray.kill(self._actor)
        waiting = PendingActor(self._actors.request, EnvActor, self._arguments, self._who, math.inf)
        self._actors.waiting[self._worker] = waiting
        self._share()

    def _share(self) -> None:
        self._accommodating = False
        self._start(PendingActor(self._actors.elsewhere(), EnvActor, self._arguments, self._who))


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
