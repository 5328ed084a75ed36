"""Workers as Ray actors: placed, supervised and replaced by Ray, on this machine or over a cluster."""

from __future__ import annotations

import atexit
import time
import weakref
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import cloudpickle

from vecenvs.arguments import check_choice, check_env_fns, listed, parse_limit, split
from vecenvs.backends.ray.actors import MOVE, ON_LOST_NODE, Fleet
from vecenvs.backends.ray.cluster import Session, check_init_kwargs, check_ray, default_workers
from vecenvs.backends.ray.placement import Request, check_options
from vecenvs.backends.ray.transport import ActorTransport
from vecenvs.errors import VecEnvError
from vecenvs.pool.pool_vec_env import EnvFn, PoolVecEnv
from vecenvs.pool.workers import EXIT_GRACE
from vecenvs.transport import Transport

TRANSPORTS = ("auto", "messages", "calls")


class RayVecEnv(PoolVecEnv):
    """Steps its envs in `num_workers` Ray actors, K envs each, any remainder allowed.

    Uses the Ray this process is connected to, else the cluster that RAY_ADDRESS names or that `ray start` has begun on
    this machine, else starts one here with `ray_init_kwargs` (arguments of `ray.init`). That one ends with the last
    VecEnv that uses it.

    `num_workers` defaults to what the cluster has CPUs for, at most one per env. `actor_options` go to each actor's
    `.options()`: num_cpus (1 unless given, 0 on a Ray started here), num_gpus, resources, runtime_env and so on.
    `placement` is None for Ray's default, "local" for the caller's node, "spread", a placement group or any scheduling
    strategy of Ray's.

    An actor on the caller's node steps through shared memory; others, and all with `transport="messages"`, by one
    message per worker and step each way, over a TCP connection of their own; where nodes cannot connect, or with
    `transport="calls"`, in actor calls. `stats()["workers"]` says for each which it is, and why.

    If for `ready_timeout` seconds no actor finds a place on the cluster, BackendUnavailable says what they wait for.
    With `on_failure="restart"`, and after a node has been lost, there may be no place for a worker's replacement. By
    `on_lost_node` it then moves ("move") to where workers are fewest, and shares the CPUs that they hold; or it waits
    ("wait") for a place for as long as it takes, while the others go on.

    `common` are the arguments that every engine takes (see `DummyVecEnv`).
    """

    def __init__(
        self,
        env_fns: Iterable[EnvFn],
        num_workers: int | None = None,
        ray_init_kwargs: Mapping[str, Any] | None = None,
        actor_options: Mapping[str, Any] | None = None,
        placement: Any = None,
        *,
        transport: str = "auto",
        ready_timeout: float = 60.0,
        on_lost_node: str = MOVE,
        **common: Any,
    ) -> None:
        self.closed = True  # until everything stands
        check_ray()
        fns: list[EnvFn] = listed(env_fns)
        check_env_fns(fns)
        check_choice("transport", transport, TRANSPORTS)
        check_choice("on_lost_node", on_lost_node, ON_LOST_NODE)
        if num_workers is not None:
            split(len(fns), num_workers)
        check_init_kwargs(ray_init_kwargs)
        check_options(actor_options, placement, "actor_options")
        self._transport, self._on_lost_node = transport, on_lost_node
        self._init_kwargs, self._actor_options, self._placement = ray_init_kwargs, actor_options, placement
        self._waits = parse_limit(ready_timeout, "ready_timeout")
        try:
            super().__init__(fns, num_workers, **common)
        except BaseException:
            if hasattr(self, "_fleet"):
                self._leave()
            raise
        atexit.unregister(_close_all)
        atexit.register(_close_all)  # anew, so that it runs before the hook with which Ray ends the actors
        _open.add(self)

    def _begin(self, env_fns: Sequence[EnvFn], num_workers: int | None) -> int:
        self._session = Session(num_workers, self._init_kwargs)
        weakref.finalize(self, self._session.release).atexit = False
        # A Ray of our own steps as many VecEnvs at once as its user wants; other people's has other work to place.
        options = {"num_cpus": 0 if self._session.own else 1, **(self._actor_options or {})}
        request = Request(options, self._placement, self._session.node, self._waits, "actor_options")
        self._fleet = Fleet(self._session, request, self.autoreset, self._transport, self._on_lost_node)
        return default_workers(len(env_fns), options["num_cpus"]) if num_workers is None else num_workers

    def _launch(self, worker: int, shard: range) -> Transport:
        env_fns = [_pickled(self._env_fns[slot], slot) for slot in shard]
        replaces = worker in self._fleet.actors
        self._fleet.reap(worker, time.monotonic())
        self._fleet.actors[worker] = launched = ActorTransport(self._fleet, shard, env_fns, replaces=replaces)
        return launched

    def stats(self) -> dict[str, Any]:
        """As every VecEnv, and `workers`: a dict of node, ip, pid, transport and why for each."""
        workers = [t.describe() for t in self._workers.launched() if isinstance(t, ActorTransport)]
        ways = Counter(worker["transport"] for worker in workers)
        return {**super().stats(), "transports": dict(ways), "workers": workers}

    def close(self) -> None:
        super().close()
        self._leave()

    def _leave(self) -> None:
        """Wait for the processes on this node, all at once, and need Ray no longer."""
        self._fleet.reap_all(time.monotonic() + EXIT_GRACE)
        self._session.release()


def _pickled(env_fn: EnvFn, slot: int) -> bytes:
    try:
        data: bytes = cloudpickle.dumps(env_fn, protocol=5)
    except Exception as exc:  # whatever a foreign __reduce__ raises
        raise VecEnvError(
            f"the env function of env {slot} cannot be pickled ({exc}): make what it needs inside it"
        ) from exc
    return data


_open: weakref.WeakSet[RayVecEnv] = weakref.WeakSet()


def _close_all() -> None:
    for vec in list(_open):
        vec.close()
