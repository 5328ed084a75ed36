"""An engine for tests: workers of this machine that are reached as those of another node are, without MPI or Ray.

`NodeVecEnv` has a leader for all its workers, or with `leader=False` a connection to each.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import wait
from typing import Any

from vecenvs.batch.batch_columns import BatchColumns
from vecenvs.pool.pool_vec_env import PoolVecEnv
from vecenvs.transport import Transport
from vecenvs.transport.leaders import Leaders
from vecenvs.transport.node_link import NodeLink
from vecenvs.transport.pickling import PickledFns
from vecenvs.transport.remote import RemoteTransport
from vecenvs.transport.shared import Names
from vecenvs.transport.spinning import NEVER
from vecenvs.worker import preload
from vecenvs.worker.process import child_environment
from vecenvs.worker.serve import serve_leader, serve_worker


class NodeVecEnv(PoolVecEnv):
    """Envs in processes that share no memory with the caller."""

    _parts = (*PoolVecEnv._parts, "_leaders")

    def __init__(self, env_fns: Any, num_workers: int = 2, *, leader: bool = True, **common: Any) -> None:
        self._leader = leader
        super().__init__(env_fns, num_workers, **common)

    def _begin(self, num_workers: int | None) -> int:
        names = Names.new("")
        start = partial(NodeProcess, range(0), names, serve_leader, (os.getpid(),))
        self._leaders = Leaders(lambda: [0] * len(self._shards) if self._leader else [], lambda node: start())
        return num_workers or 1

    def _launch(self, worker: int, shard: range) -> Transport:
        names = Names.new(self._wake)
        env_fns = PickledFns(self._hosts.functions_of(shard), shard.start)
        arguments = env_fns, shard.start, self._rules_of(worker), os.getpid(), names, None, self._output(worker, shard)
        return NodeProcess(shard, names, serve_worker, arguments, partial(self._leaders.link, 0))


class NodeProcess(RemoteTransport):
    """A process of the node: a worker or the leader."""

    def __init__(
        self,
        shard: range,
        names: Names,
        serve: Callable[..., None],
        arguments: tuple[Any, ...],
        find_node: Callable[[BatchColumns], NodeLink | None] = lambda batch: None,
    ) -> None:
        super().__init__(shard, names, "messages", 0)
        self._find_node = find_node
        self._ended: tuple[bool, int | None] = False, None
        # Not by fork, which would inherit the caller's ends of other connections.
        context = multiprocessing.get_context("forkserver")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, *arguments), daemon=False)
        with child_environment(), preload.preloading("forkserver"):
            self._process.start()
        theirs.close()

    def boot_send(self, data: bytes) -> None:
        self._pipe.send_bytes(data)

    def boot_get(self, timeout: float | None) -> bytes | None:
        try:
            if self._pipe in wait([self._pipe, self._process.sentinel], timeout):
                return self._pipe.recv_bytes()
        except (EOFError, OSError):
            pass
        return None

    def why_not_shared(self) -> str:
        return "on another node"

    def spins(self) -> tuple[float, float]:
        return NEVER, NEVER

    def address(self) -> str:
        return "127.0.0.1"

    def place(self) -> dict[str, Any]:
        return {}

    def about_address(self) -> str:
        return ""

    def node_link(self, batch: BatchColumns) -> NodeLink | None:
        return self._find_node(batch)

    def exit_status(self) -> tuple[bool, int | None]:
        if self._ended[0]:
            return self._ended
        if not self._process.is_alive():
            return True, self._process.exitcode
        return self.disconnected_for_long(), None

    def stop(self, grace: float) -> None:
        if not self._ended[0]:
            for end in (lambda: None, self._process.terminate, self._process.kill):
                end()
                self._process.join(max(grace, 0.1))
                if not self._process.is_alive():
                    break
            self._ended = True, self._process.exitcode
            self._process.close()
            self._pipe.close()
        self.close_link()
