"""Workers on the ranks of an MPI job, on one node or many."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import cloudpickle
import numpy as np

from vecenvs.arguments import check_choice, check_env_fns, parse_int, parse_timeout
from vecenvs.backends.mpi.hosting import Order
from vecenvs.backends.mpi.job import session_of
from vecenvs.backends.mpi.nodes import Peer
from vecenvs.backends.mpi.ranks import Session
from vecenvs.backends.mpi.transport import WAYS, PackedHosted, SharedHosted
from vecenvs.errors import VecEnvError
from vecenvs.pool.pool_vec_env import EnvFn, PoolVecEnv
from vecenvs.transport import Transport
from vecenvs.transport.shared import Names
from vecenvs.transport.spinning import NEVER, Spin, spins
from vecenvs.transport.tcp import Reach


class MpiVecEnv(PoolVecEnv):
    """Steps its envs on the ranks of `comm` (default: all), whose rank 0 is the caller.

    The other ranks leave the user's script where it constructs its first MpiVecEnv, and from there on serve any number
    of them, until rank 0 ends. `num_workers` defaults to one per worker rank, at most one per env; there may be more.
    BackendUnavailable if MPI is missing or this program was not started by its mpirun.

    Workers on the caller's node step through shared memory; those of other nodes, and all with `transport="messages"`,
    by one message per worker and step each way, over a TCP connection of their own to `address` (an IP address of
    rank 0's host; by default the one that leads to the worker's); where nodes cannot connect, or with
    `transport="mpi"`, by MPI messages. `stats()["workers"]` says for each which it is, and why.

    `common` are the arguments that every engine takes (see `DummyVecEnv`).
    """

    def __init__(
        self,
        env_fns: Iterable[EnvFn],
        comm: Any = None,
        num_workers: int | None = None,
        transport: str = "auto",
        address: str | None = None,
        **common: Any,
    ) -> None:
        check_choice("transport", transport, WAYS)
        if address is not None and not isinstance(address, str):
            raise TypeError(f"address must be an IP address of rank 0's host, as text, or None, not {address!r}")
        if isinstance(comm, (int, np.integer)):
            raise TypeError(
                f"comm must be a communicator of mpi4py's or None, not {comm!r}: it is the second argument, and the "
                f"number of workers is num_workers={comm!r}"
            )
        if num_workers is not None:
            parse_int("num_workers", num_workers, 1)
        self._comm = comm
        self._transport = transport
        self._address = address
        # The longest that anything else may take while workers start, if the user has set a limit.
        limit = parse_timeout(common.get("start_timeout"), "start_timeout")
        self._limit = {} if limit is None else {"patience": limit}
        self._used: dict[int, Peer] = {}
        self._reach = Reach()
        super().__init__(env_fns, num_workers, **common)
        self._session.vec_envs.add(self)

    def _begin(self, env_fns: Sequence[EnvFn], num_workers: int | None) -> int:
        # What every rank gets wrong has been raised on every rank. Only rank 0's functions count: the others may have
        # none, and must not end while it waits for them.
        self._session = session_of(self._comm, **self._limit)
        check_env_fns(env_fns)
        return max(1, min(len(env_fns), len(self._session.peers))) if num_workers is None else num_workers

    def _launch(self, worker: int, shard: range) -> Transport:
        self._used.pop(worker, None)
        env_fns = [_pickled(self._env_fns[slot], slot) for slot in shard]
        while True:
            peer = self._used[worker] = self._session.least_busy(list(self._used.values()))
            names = Names.new(self._wake) if self._transport == "auto" and peer.shares else None
            order = Order(env_fns, shard.start, self.autoreset, self._info_attrs, names, list(sys.path), os.getpid())
            try:
                line = self._session.host(peer, order)
                break
            except BrokenPipeError:  # this rank is gone, and from now on known to be
                del self._used[worker]
        if names is not None:
            return SharedHosted(line, len(shard), names, partial(_spins, self._session, self._used, peer))
        why = "rank 0's memory cannot be opened there" if self._transport == "auto" else "asked for"
        return PackedHosted(line, shard, self._transport, self._address, why, self._reach, **self._limit)

    def stats(self) -> dict[str, Any]:
        """As every VecEnv, and `workers`: a dict of rank, host, pid (the rank's), transport and why for each."""
        workers = [t.describe() for t in self._workers.launched() if isinstance(t, SharedHosted | PackedHosted)]
        ways = Counter(worker["transport"] for worker in workers)
        return {**super().stats(), "transports": dict(ways), "workers": workers}


def _spins(session: Session, used: Mapping[int, Peer], peer: Peer) -> tuple[Spin, Spin]:
    """How long the caller and a worker of this node try before they sleep."""
    here = [other for other in used.values() if other.shares]
    spare = session.cores() - len(here)
    if spare < 0 or here.count(peer) > len(peer.cpus):
        return NEVER, NEVER
    return spins(spare)


def _pickled(env_fn: EnvFn, slot: int) -> bytes:
    try:
        data: bytes = cloudpickle.dumps(env_fn, protocol=5)
    except Exception as exc:
        raise VecEnvError(
            f"the env function of env {slot} cannot be pickled ({exc}): make everything it needs inside it"
        ) from exc
    return data
