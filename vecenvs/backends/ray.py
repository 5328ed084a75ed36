"""Workers as Ray actors: placed, supervised and replaced by Ray, on this machine or over a cluster."""

from __future__ import annotations

import atexit
import os
import time
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import cloudpickle

from vecenvs.arguments import check_env_fns, parse_limit, split
from vecenvs.backends.ray_actor import EnvActor
from vecenvs.backends.ray_cluster import Session, check_init_kwargs, check_ray, default_workers
from vecenvs.backends.ray_request import Request, check_options
from vecenvs.backends.ray_transport import ActorTransport
from vecenvs.crew import EXIT_GRACE
from vecenvs.errors import VecEnvError
from vecenvs.pool import EnvFn, PoolVecEnv
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
    `transport="calls"`, in actor calls. `stats()["workers"]` says for each which it is, and why. If an actor has not
    found a place on the cluster within `ready_timeout` seconds, BackendUnavailable says what it waits for.

    `common` are the arguments that every engine takes (see `DummyVecEnv`).
    """

    def __init__(
        self,
        env_fns: Sequence[EnvFn],
        num_workers: int | None = None,
        ray_init_kwargs: Mapping[str, Any] | None = None,
        actor_options: Mapping[str, Any] | None = None,
        placement: Any = None,
        *,
        transport: str = "auto",
        ready_timeout: float = 60.0,
        **common: Any,
    ) -> None:
        self.closed = True  # until everything stands
        check_ray()
        check_env_fns(env_fns)
        if transport not in TRANSPORTS:
            raise ValueError(f"transport {transport!r} is none of {', '.join(TRANSPORTS)}")
        if num_workers is not None:
            split(len(env_fns), num_workers)
        check_init_kwargs(ray_init_kwargs)
        check_options(actor_options, placement, "actor_options")
        self._transport = transport
        self._init_kwargs, self._actor_options, self._placement = ray_init_kwargs, actor_options, placement
        self._waits = parse_limit(ready_timeout, "ready_timeout")
        self._launched: list[ActorTransport] = []
        try:
            super().__init__(env_fns, num_workers, **common)
        except BaseException:
            if hasattr(self, "_session"):
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
        self._request = Request(options, self._placement, self._session.node, self._waits, "actor_options")
        self._actor_class = self._request.actor_class(EnvActor)
        return default_workers(len(env_fns), options["num_cpus"]) if num_workers is None else num_workers

    def _launch(self, worker: int, shard: range) -> Transport:
        env_fns = [_pickled(self._env_fns[slot], slot) for slot in shard]
        launched = ActorTransport(
            self._session, self._request, self._actor_class, shard, env_fns, self.autoreset, self._transport,
            self._launched,
        )  # fmt: skip
        self._launched.append(launched)
        return launched

    def stats(self) -> dict[str, Any]:
        """As every VecEnv, and `workers`: a dict of node, ip, pid, transport and why for each."""
        workers = [t.describe() for t in self._crew.launched() if isinstance(t, ActorTransport)]
        ways = Counter(worker["transport"] for worker in workers)
        return {**super().stats(), "transports": dict(ways), "workers": workers}

    def close(self) -> None:
        super().close()
        self._leave()

    def _leave(self) -> None:
        """Wait for the processes on this node, all at once, and need Ray no longer."""
        deadline = time.monotonic() + EXIT_GRACE
        while self._launched and self._session.pid == os.getpid():
            self._launched.pop().reap(deadline)
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
