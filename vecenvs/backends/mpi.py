"""Workers on the ranks of an MPI job, on one node or many."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import cloudpickle

from vecenvs.arguments import check_env_fns
from vecenvs.board import Board
from vecenvs.errors import VecEnvError
from vecenvs.mpi.hosting import Order
from vecenvs.mpi.job import session_of
from vecenvs.mpi.nodes import Peer
from vecenvs.mpi.session import Line, Session
from vecenvs.pool import EnvFn, PoolVecEnv
from vecenvs.protocol import Answer, dumps, kind_of, loads
from vecenvs.transport import Message, Transport
from vecenvs.transport.packed import PackedTransport
from vecenvs.transport.shared import SharedTransport, Wiring
from vecenvs.transport.spin import NEVER, Spin, spins

BOOT_TIMEOUT = 30.0


class MpiVecEnv(PoolVecEnv):
    """Steps its envs on the ranks of `comm` (default: all), whose rank 0 is the caller.

    The other ranks leave the user's script where it constructs its first MpiVecEnv, and from there on serve any number
    of them, until rank 0 ends. `num_workers` defaults to one per worker rank, at most one per env; there may be more.
    Workers on the caller's node use shared memory, those of other nodes get a packed message per step; with
    `shared_memory=False` all do. BackendUnavailable if MPI is missing or this program was not started by its mpirun.
    """

    def __init__(
        self,
        env_fns: Sequence[EnvFn],
        comm: Any = None,
        num_workers: int | None = None,
        shared_memory: bool = True,
        **common: Any,
    ) -> None:
        self._session = session_of(comm)
        check_env_fns(env_fns)
        self._shared_memory = shared_memory
        self._used: dict[int, Peer] = {}
        if num_workers is None:
            num_workers = max(1, min(len(env_fns), len(self._session.peers)))
        super().__init__(env_fns, num_workers, **common)
        self._session.vec_envs.add(self)

    def _launch(self, worker: int, shard: range) -> Transport:
        self._used.pop(worker, None)
        peer = self._used[worker] = self._session.least_busy(list(self._used.values()))
        shared = self._shared_memory and peer.shares
        env_fns = [_pickled(self._env_fns[slot], slot) for slot in shard]
        order = Order(env_fns, shard.start, self.autoreset, self._info_attrs, shared, list(sys.path), os.getpid())
        line = self._session.host(peer, order)
        if not shared:
            return PackedRankTransport(line, shard)
        return SharedRankTransport(line, len(shard), partial(_spins, self._session, self._used, peer))


def _spins(session: Session, used: Mapping[int, Peer], peer: Peer) -> tuple[Spin, Spin]:
    """How long the caller and a worker of this node try before they sleep."""
    here = [other for other in used.values() if other.shares]
    spare = session.cores() - len(here)
    if spare < 0 or here.count(peer) > len(peer.cpus):
        return NEVER, NEVER
    return spins(spare)


class SharedRankTransport(SharedTransport):
    """A worker hosted by a rank of the caller's node: MPI messages until its rings stand, and news of its end."""

    def __init__(self, line: Line, count: int, find_spins: Callable[[], tuple[Spin, Spin]]) -> None:
        super().__init__(count)
        self._line = line
        self._find_spins = find_spins
        self.where = line.where

    def attach(self, board: Board) -> None:
        self._spin = self._find_spins()  # all workers have been placed by now
        super().attach(board)

    def boot_send(self, wiring: Wiring) -> None:
        self._line.send(dumps(wiring))

    def boot_get(self, timeout: float | None) -> Message | None:
        return _unpickled(self._line.receive(timeout))

    def exit_status(self) -> tuple[bool, int | None]:
        return self._line.exit_status()

    def stop(self, grace: float) -> None:
        self._line.stop(grace)


class PackedRankTransport(PackedTransport):
    """A worker hosted by a rank of another node: one MPI message per step each way."""

    def __init__(self, line: Line, shard: range) -> None:
        super().__init__(shard)
        self._line = line
        self.where = line.where

    def deliver(self, data: bytes) -> None:
        self._line.send(data)

    def collect(self, timeout: float | None) -> bytes | memoryview | None:
        data = self._line.receive(timeout)
        return None if data is None else memoryview(data)

    def boot(self, board: Board) -> None:
        self._line.send(dumps(board.n))
        answer = _unpickled(self._line.receive(BOOT_TIMEOUT))
        if answer is None or kind_of(answer[0]) != Answer.REPLY:
            raise VecEnvError(f"the worker on {self._line.peer} does not serve: {answer[1] if answer else 'no answer'}")

    def exit_status(self) -> tuple[bool, int | None]:
        return self._line.exit_status()

    def stop(self, grace: float) -> None:
        self._line.stop(grace)


def _pickled(env_fn: EnvFn, slot: int) -> bytes:
    try:
        data: bytes = cloudpickle.dumps(env_fn, protocol=5)
    except Exception as exc:
        raise VecEnvError(
            f"the env function of env {slot} cannot be pickled ({exc}): make everything it needs inside it"
        ) from exc
    return data


def _unpickled(data: bytearray | None) -> Message | None:
    return None if data is None else loads(data)
