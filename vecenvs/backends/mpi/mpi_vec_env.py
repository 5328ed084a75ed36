"""The VecEnv whose workers the ranks of an MPI job host."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from vecenvs.arguments import check_choice, parse_int, parse_timeout
from vecenvs.backends.mpi.hosting import LaunchRequest
from vecenvs.backends.mpi.job import worker_ranks
from vecenvs.backends.mpi.transport import Places, RankTransport
from vecenvs.pool.pool_vec_env import EnvFn, PoolVecEnv
from vecenvs.transport import Transport
from vecenvs.transport.leaders import Leaders
from vecenvs.transport.memory import check_system
from vecenvs.transport.pickling import PickledFns
from vecenvs.transport.remote import TRANSPORTS
from vecenvs.transport.shared import Names

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from vecenvs.pool.pool_base import CommonArguments


class MpiVecEnv(PoolVecEnv):
    """Steps its envs on the ranks of `comm`, whose rank 0 is the caller.

    The other ranks leave the user's script where it constructs its first MpiVecEnv. From there on they serve any number
    of VecEnvs, until rank 0 ends.

    Workers on the caller's node step through shared memory. Other nodes are reached by TCP, with one message per node
    and step each way: where a node has several workers, a process there, its leader, passes their messages on.
    In `stats()["workers"]` each worker has, besides what all engines tell, "rank", "why" it is not reached by shared
    memory, and whether it shares its node's connection ("gathered").

    Args:
        env_fns: functions that make one env each. Those of rank 0 count; the other ranks may give none.
        comm: the communicator, of mpi4py; by default all ranks.
        num_workers: by default one per worker rank, at most one per env. There may be more than ranks.
        transport: "auto" as above, or "messages" for a connection on the caller's node, too.
        address: the IP address of rank 0's host to which workers of other nodes connect; by default the one on the
            route to the worker's host.
        port: the TCP port at which rank 0 listens for them, one at a time; by default (0) any that is free.
        placement: with fewer workers than ranks: None for the lowest ranks, "spread" for the same number of workers
            on each node, as far as possible: one per node with as many workers as nodes.
        **common: the arguments that every engine takes (see `DummyVecEnv`).

    Raises:
        BackendUnavailable: MPI is missing, this is Windows, or this program was not started by its mpirun.
        VecEnvError: a worker can neither open the caller's memory nor connect to the caller.
    """

    _parts = (*PoolVecEnv._parts, "_leaders")  # noqa: SLF001  its base's

    def __init__(
        self,
        env_fns: Iterable[EnvFn],
        comm: Any = None,
        num_workers: int | None = None,
        transport: str = "auto",
        address: str | None = None,
        port: int = 0,
        placement: str | None = None,
        **common: Unpack[CommonArguments],
    ) -> None:
        check_system("MpiVecEnv")
        check_choice("transport", transport, TRANSPORTS)
        if placement is not None:
            check_choice("placement", placement, ("spread",))
        self._spread = placement == "spread"
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
        self._reached_by = transport, address, parse_int("port", port, 0)
        # The longest that all ranks may take to come here, if the user has set a limit.
        limit = parse_timeout(common.get("start_timeout"), "start_timeout")
        self._limit = {} if limit is None else {"patience": limit}
        super().__init__(env_fns, num_workers, **common)
        self._ranks.vec_envs.add(self)

    def _join(self) -> None:
        # Arguments that are wrong on every rank have been refused on every rank. Only rank 0's functions count: the
        # others may have none, and must not end while it waits for them.
        self._ranks = worker_ranks(self._comm, **self._limit)

    def _begin(self, num_workers: int | None) -> int:
        self._places = places = Places(self._ranks, *self._reached_by)
        self._leaders = Leaders(places.nodes_by_messages, places.start_leader)
        return self._hosts.default_workers(len(self._ranks.peers)) if num_workers is None else num_workers

    def _launch(self, worker: int, shard: range) -> Transport:
        used = self._places.used
        used.pop(worker, None)
        env_fns = PickledFns(self._hosts.functions_of(shard), shard.start)
        names = Names.new(self._wake)
        while True:
            for each in range(len(self._shards)):  # so that it is known how many are to share a node
                if each not in used:
                    used[each] = self._ranks.least_busy(list(used.values()), spread=self._spread)
            peer = used[worker]
            shared = None if self._places.by_messages(peer) else names
            cores = self._ranks.cores(peer.node) // sum(other.node == peer.node for other in used.values())
            output = self._output(worker, shard)
            request = LaunchRequest(
                env_fns,
                shard.start,
                self._rules_of(worker, peer.node),
                shared,
                list(sys.path),
                os.getpid(),
                cores,
                output,
            )
            try:
                launched = self._ranks.launch(peer, request)
                break
            except BrokenPipeError:  # this rank is gone, and from now on known to be
                del used[worker]
        return RankTransport(launched, names, self._places, self._leaders)
