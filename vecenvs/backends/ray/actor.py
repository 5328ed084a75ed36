"""What runs inside a Ray actor: the owner of one shard of envs.

Ray runs the actor's methods one after another on its process's main thread, which is where envs may install signal
handlers or open windows. So while `serve` steps envs no other method runs.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from typing import NamedTuple

from vecenvs.transport.pickling import loads
from vecenvs.transport.shared import RingsSpec
from vecenvs.worker.process import limit_threads, watch_caller
from vecenvs.worker.serve import ShardServer


class Home(NamedTuple):
    """Where an actor runs: the node's id and address, and the process."""

    node: str
    ip: str
    pid: int


class EnvActor:
    """The envs `first`, `first + 1`, ... in a process that Ray has placed.

    `caller` is the caller's process, and `cores` are how many this one may use.
    """

    def __init__(self, first: int, autoreset: str, caller: int, cores: int | None = None) -> None:
        self._first = first
        self._autoreset = autoreset
        self._caller = caller
        self._cores = cores
        self._server: ShardServer | None = None
        self._connected = False

    def home(self) -> Home:
        """Return where this is. The first answer says that the actor has been placed and runs."""
        import ray

        return Home(ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address(), os.getpid())

    def make(self, env_fns: Sequence[bytes], paths: Sequence[str]) -> bytes:
        """Make the envs; return the body of MADE. `paths` are where the caller's imports look: they come last here."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the caller, which closes its workers
        sys.path.extend(path for path in paths if path not in sys.path)
        limit_threads()
        self._server = ShardServer(env_fns, self._first, self._autoreset, self._cores)
        return self._server.describe()

    def connect(self, spec: bytes) -> bytes:
        """Open the caller's memory, or connect to the caller: see `ShardServer.connect`."""
        if self._server is None:
            raise RuntimeError("connect() before make()")
        problem = self._server.connect(spec)
        self._connected = not problem
        way = loads(spec)
        if self._connected and isinstance(way, RingsSpec):  # the caller is on this machine
            watch_caller(self._caller, way.names)
        return problem

    def serve(self) -> None:
        """Step the envs until told to close, or until the caller hangs up. Return at once if `connect` has failed."""
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
