"""The processes in which a rank's envs live.

A worker rank steps no env itself. For each shard it starts a process, from a fork server without MPI, and passes boot
messages on between MPI and that process. So a shard's envs have a main thread and an interpreter to themselves, however
many VecEnvs the rank serves. An env that crashes, exits or hangs ends its own worker and not the job. And an env may
import mpi4py without being taken for a rank.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import socket
import sys
import time
import types
from multiprocessing import forkserver
from multiprocessing.util import get_temp_dir
from typing import NamedTuple

from vecenvs.backends.mpi import fork_server
from vecenvs.transport.channel import Channel, PolledEnd
from vecenvs.transport.pickling import PickledFns
from vecenvs.transport.shared import Names
from vecenvs.worker import descendants
from vecenvs.worker.output import Output
from vecenvs.worker.process import child_environment, watch_caller
from vecenvs.worker.rules import Rules
from vecenvs.worker.serve import serve_leader, serve_worker


class LaunchRequest(NamedTuple):
    """What a rank needs to launch a worker of rank 0's."""

    env_fns: PickledFns
    first: int
    rules: Rules
    names: Names | None  # of the semaphores of a worker that may open rank 0's memory
    sys_path: list[str]
    caller: int  # rank 0's process
    cores: int | None = None  # that the worker may use, if not all of its rank
    output: Output | None = None  # how it logs and prints

    @property
    def slots(self) -> range:
        """The slots of the worker's envs."""
        return range(self.first, self.first + self.env_fns.num_envs)


class LeaderRequest(NamedTuple):
    """What a rank needs to launch the leader of its node (see `transport.leader`)."""

    sys_path: list[str]

    @property
    def slots(self) -> range:
        """The slots of its envs: it has none."""
        return range(0)


def start_server() -> None:
    """Start the fork server. What it forks never sees this rank's script: functions come pickled by value."""
    sys.modules["__main__"] = types.ModuleType("__main__")
    multiprocessing.set_forkserver_preload([fork_server.__name__, __name__])
    with child_environment():
        os.environ[fork_server.FOLDER] = get_temp_dir()
        forkserver.ensure_running()
        del os.environ[fork_server.FOLDER]


def forget_server() -> None:
    """Remove the server's folder. The server ends by itself, after this process and those that it has forked."""
    shutil.rmtree(get_temp_dir(), ignore_errors=True)


class HostedProcess:
    """The process of one worker, seen from the rank that has started it. `relay` has its boot messages."""

    def __init__(self, number: int, request: LaunchRequest | LeaderRequest) -> None:
        self.number = number
        ours, theirs = socket.socketpair()
        self.relay = PolledEnd(ours)
        self._mark = descendants.new_mark()
        context = multiprocessing.get_context("forkserver")
        arguments = (theirs, request, os.getpid(), self._mark)
        self._process = context.Process(target=_main, args=arguments, name=f"vecenvs-hosted-{number}", daemon=False)
        try:
            with child_environment():
                descendants.guardian.add(self._mark)
                self._process.start()
        except BaseException:
            self.relay.close()
            descendants.release(self._mark, killed=True)
            raise
        finally:
            theirs.close()
        self.sentinel = self._process.sentinel
        self._ends: list[tuple[float, str]] = []

    @property
    def exitcode(self) -> int | None:
        """The exit code, negative for a signal; None while the process runs."""
        return self._process.exitcode

    def stop(self, grace: float) -> None:
        """Let `enforce` send SIGTERM if it has not ended after `grace` seconds, and SIGKILL after twice that."""
        now = time.monotonic()
        self._ends = [(now + 2 * grace, "kill"), (now + grace, "terminate")]

    def enforce(self) -> None:
        """Send the signals of `stop` whose time has come."""
        while self._ends and time.monotonic() >= self._ends[-1][0]:
            _, end = self._ends.pop()
            (self._process.kill if end == "kill" else self.terminate)()

    def terminate(self) -> None:
        """Have it close its envs and end: it obeys SIGTERM once this end has hung up."""
        self.relay.close()
        self._process.terminate()

    def kill(self) -> None:
        """End it by force."""
        self._process.kill()
        self._process.join(1.0)

    def free(self) -> None:
        """Free what is held for a process that has ended."""
        self.relay.close()
        self._process.join(1.0)
        if self._process.exitcode is not None:
            descendants.release(self._mark, killed=self._process.exitcode != 0)
            self._process.close()


def _main(end: socket.socket, request: LaunchRequest | LeaderRequest, rank_pid: int, mark: int) -> None:
    descendants.put_on(mark)
    with contextlib.suppress(OSError):  # the rank has just ended
        os.setpgid(0, os.getpgid(rank_pid))  # a signal to the rank's process group is meant for its envs, too
    sys.path.extend(path for path in request.sys_path if path not in sys.path)
    if isinstance(request, LeaderRequest):
        serve_leader(Channel(end), rank_pid)
        return
    caller, names = rank_pid, tuple[str, ...]()
    if request.names is not None:  # rank 0 is on this machine
        caller, names = request.caller, request.names
        watch_caller(rank_pid)
    fns, first, rules = request.env_fns, request.first, request.rules
    serve_worker(Channel(end), fns, first, rules, caller, names, request.cores, request.output)
