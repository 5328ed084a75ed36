"""The VecEnv whose workers are Ray actors."""

from __future__ import annotations

import logging
import math
import time
import weakref
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from vecenvs.arguments import check_choice, parse_int, parse_limit
from vecenvs.backends.ray.actors import MOVE, ON_LOST_NODE, Actors
from vecenvs.backends.ray.cluster import Session, check_init_kwargs, check_ray, room_for_workers
from vecenvs.backends.ray.placement import Request, check_options
from vecenvs.backends.ray.transport import ActorTransport, start_leader
from vecenvs.cpus import usable_cores
from vecenvs.errors import describe_indices
from vecenvs.pool.pool_vec_env import EnvFn, PoolVecEnv
from vecenvs.pool.workers import EXIT_GRACE
from vecenvs.transport import Transport
from vecenvs.transport.leaders import Leaders
from vecenvs.transport.memory import check_system
from vecenvs.transport.pickling import PickledFns
from vecenvs.transport.remote import TRANSPORTS
from vecenvs.transport.shared import Names

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from vecenvs.pool.pool_base import CommonArguments

_log = logging.getLogger("vecenvs")


class RayVecEnv(PoolVecEnv):
    """Steps its envs in `num_workers` Ray actors, K envs each, any remainder allowed.

    Uses the Ray this process is connected to, else the cluster that RAY_ADDRESS names or that `ray start` has begun on
    this machine, else starts one here with `ray_init_kwargs`. That one ends with the last VecEnv that uses it.

    Actors on the caller's node step through shared memory. Other nodes are reached by TCP, with one message per node
    and step each way: where a node has several workers, another actor there, its leader, passes their messages on.
    In `stats()["workers"]` each worker has, besides what all engines tell, "node" and "ip", "why" it is not reached by
    shared memory, whether it shares its node's connection ("gathered"), and whether it shares the CPUs of other workers
    until there is room ("shares"). "waiting" counts those that do, "moves" those that no longer do; a move counts among
    "restarts", too.

    Args:
        env_fns: functions that make one env each.
        num_workers: by default what the cluster has CPUs for, at most one per env.
        min_workers: begin when so many of the `num_workers` have a place, as while an autoscaler adds nodes; by default
            all of them. The envs of the others share the CPUs of these until there is room. A worker that moves then
            ends its episodes, as one that is replaced.
        ray_init_kwargs: arguments of `ray.init`.
        actor_options: arguments of each actor's `.options()`: num_cpus (1 unless given, 0 on a Ray started here),
            num_gpus, resources, runtime_env and so on.
        placement: None for Ray's default, "local" for the caller's node, "spread", a placement group or any scheduling
            strategy of Ray's.
        transport: "auto" as above, or "messages" for a connection on the caller's node, too.
        port: the TCP port at which this process listens for actors of other nodes, one at a time; by default (0) any
            that is free.
        ready_timeout: seconds in which no actor finds a place on the cluster until BackendUnavailable is raised.
        on_lost_node: what a replacement does for which there is no place (with `on_failure="restart"`, after a node has
            been lost). "move": it goes where workers are fewest, and shares the CPUs that they hold until there is
            room. "wait": it waits for as long as it takes, while the others go on.
        **common: the arguments that every engine takes (see `DummyVecEnv`).

    Raises:
        BackendUnavailable: Ray is missing, cannot be joined, this is Windows, or Ray has no place for the actors.
        VecEnvError: an actor can neither open the caller's memory nor connect to the caller.
    """

    _parts = (*PoolVecEnv._parts, "_leaders")  # noqa: SLF001  its base's

    def __init__(
        self,
        env_fns: Iterable[EnvFn],
        num_workers: int | None = None,
        ray_init_kwargs: Mapping[str, Any] | None = None,
        actor_options: Mapping[str, Any] | None = None,
        placement: Any = None,
        *,
        transport: str = "auto",
        port: int = 0,
        ready_timeout: float = 60.0,
        on_lost_node: str = MOVE,
        min_workers: int | None = None,
        **common: Unpack[CommonArguments],
    ) -> None:
        self.closed = True  # until everything stands
        check_system("RayVecEnv")
        check_ray()
        check_choice("transport", transport, TRANSPORTS)
        check_choice("on_lost_node", on_lost_node, ON_LOST_NODE)
        check_min_workers(min_workers, num_workers)
        check_init_kwargs(ray_init_kwargs)
        check_options(actor_options, placement, "actor_options")
        self._transport, self._port = transport, parse_int("port", port, 0)
        self._on_lost_node = on_lost_node
        self._min_workers, self._moves_workers = min_workers, min_workers is not None
        self._moves = 0
        self._init_kwargs, self._actor_options, self._placement = ray_init_kwargs, actor_options, placement
        self._waits = parse_limit(ready_timeout, "ready_timeout")
        try:
            super().__init__(env_fns, num_workers, **common)
        except BaseException:
            if hasattr(self, "_actors"):
                self._leave()
            raise

    def _begin(self, num_workers: int | None) -> int:
        self._session = Session(num_workers, self._init_kwargs)
        weakref.finalize(self, self._session.release).atexit = False
        # A Ray of our own steps as many VecEnvs at once as its user wants; other people's has other work to place.
        options = {"num_cpus": 0 if self._session.own else 1, **(self._actor_options or {})}
        request = Request(options, self._placement, self._session.node, self._waits, "actor_options")
        if num_workers is None:
            num_workers = self._hosts.default_workers(room_for_workers(options["num_cpus"]))
        cores = math.ceil(options["num_cpus"] or 0) or max(1, usable_cores() // num_workers)
        self._actors = actors = Actors(
            self._session,
            request,
            self._transport,
            self._port,
            self._on_lost_node,
            self._min_workers,
            cores,
        )
        weakref.finalize(self, actors.stop_waiting).atexit = False
        self._leaders = Leaders(actors.nodes_by_messages, partial(start_leader, actors))
        return num_workers

    def _launch(self, worker: int, shard: range) -> Transport:
        env_fns = PickledFns(self._hosts.functions_of(shard), shard.start)
        actors, names = self._actors, Names.new(self._wake)
        before = actors.by_worker.get(worker)
        beside = before is not None and not before.stopped  # `recycle`: that one goes on until this has made its env
        actors.part_with(worker, time.monotonic())
        replaces = before is not None and not beside
        output = self._output(worker, shard)
        arguments = shard.start, self._rules_of(worker, None), actors.cores, output
        launched = ActorTransport(
            actors, self._leaders, worker, shard, env_fns, names, arguments, replaces=replaces, beside=beside
        )
        if before is not None and before.moving:
            self._moves += 1
            _log.info("the worker of envs %s moves to a place of its own", describe_indices(shard))
        actors.by_worker[worker] = launched
        return launched

    def _engine_stats(self) -> dict[str, Any]:
        return {"waiting": len(self._actors.waiting), "moves": self._moves}

    def close(self) -> None:
        super().close()
        self._leave()

    def _leave(self) -> None:
        """Wait for the processes on this node, all at once, and release Ray."""
        self._actors.reap_all(time.monotonic() + EXIT_GRACE)
        self._session.release()


def check_min_workers(min_workers: int | None, num_workers: int | None) -> None:
    """Refuse a number of workers to begin with that is not among those there are to be."""
    if min_workers is None:
        return
    parse_int("min_workers", min_workers, 1)
    if num_workers is None:
        raise ValueError(f"min_workers={min_workers} needs num_workers=, the number of workers that there are to be")
    if min_workers > num_workers:
        raise ValueError(f"min_workers={min_workers} of num_workers={num_workers}: it can be at most as many")
