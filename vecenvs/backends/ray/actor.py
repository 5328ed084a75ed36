"""What runs inside a Ray actor: the owner of one shard of envs, or the leader of a node.

Ray runs the actor's methods one after another on its process's main thread, which is where envs may install signal
handlers or open windows. So while `serve` steps envs no other method runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NamedTuple

from vecenvs.cpus import usable_cores
from vecenvs.transport.pickling import PickledFns, loads
from vecenvs.transport.shared import RingsSpec
from vecenvs.worker import descendants
from vecenvs.worker.output import Output
from vecenvs.worker.process import limit_threads, take_signals, watch_caller
from vecenvs.worker.rules import Rules
from vecenvs.worker.serve import LeaderServer, ShardServer


class ActorLocation(NamedTuple):
    """Where an actor runs: the node's id and address, the process, and how many cores it may use."""

    node: str
    ip: str
    pid: int
    cores: int


def here() -> ActorLocation:
    """Return where the calling actor runs."""
    import ray

    context = ray.get_runtime_context()
    return ActorLocation(context.get_node_id(), ray.util.get_node_ip_address(), os.getpid(), usable_cores())


class ServingActor:
    """A process that Ray has placed, and that serves the caller of a VecEnv."""

    def __init__(self) -> None:
        self._server: ShardServer | LeaderServer | None = None
        self._connected = False

    def location(self) -> ActorLocation:
        """Return where this is. The first answer says that the actor has been placed and runs."""
        return here()

    def connect(self, spec: bytes) -> bytes:
        """Open the memory of the caller or the leader, or connect to the caller: see `ShardServer.connect`."""
        if self._server is None:
            raise RuntimeError("connect() before make()")
        problem = self._server.connect(spec)
        self._connected = not problem
        way = loads(spec)
        if self._connected and isinstance(way, RingsSpec):  # its maker is on this machine
            watch_caller(way.maker, way.names)
        return problem

    def serve(self) -> None:
        """Serve until told to close, or until the caller hangs up. Return at once if `connect` has failed."""
        if self._server is None or not self._connected:
            return
        try:
            self._server.run()
        except (EOFError, ConnectionError):
            return
        finally:
            self.leave()

    def leave(self) -> None:
        """Close the envs that no command has closed."""
        if self._server is not None:
            self._server.close()


class EnvActor(ServingActor):
    """The envs `first`, `first + 1`, ... in a process that may use so many `cores`."""

    def __init__(self, first: int, rules: Rules, cores: int | None = None, output: Output | None = None) -> None:
        super().__init__()
        self._output = output
        self._mark = 0
        self._cores = cores
        self._first = first
        self._rules = rules

    def make(self, env_fns: PickledFns, paths: Sequence[str]) -> bytes:
        """Make the envs; return the body of MADE. `paths` are where the caller's imports look: they come last here."""
        begin_process(paths)
        self._mark = descendants.new_mark()
        descendants.put_on(self._mark)
        descendants.guardian.orphan = True
        descendants.guardian.add(self._mark)
        limit_threads()
        fns = env_fns if self._output is None else self._output.before(env_fns, forked=False)
        self._server = server = ShardServer(fns, self._first, self._rules, self._cores)
        return server.describe()

    def leave(self) -> None:
        """Close the envs that no command has closed. They have ended what they started."""
        super().leave()
        descendants.guardian.remove(self._mark)


class LeaderActor(ServingActor):
    """The leader of a node (see `transport.leader`)."""

    def make(self, _: None, paths: Sequence[str]) -> bytes:
        """Get ready for `connect`. There are no envs to make."""
        begin_process(paths)
        self._server = LeaderServer()
        return b""


def begin_process(paths: Sequence[str]) -> None:
    """Leave Ctrl-C to the caller, which closes its workers, and import what the caller can."""
    take_signals()
    sys.path.extend(path for path in paths if path not in sys.path)
