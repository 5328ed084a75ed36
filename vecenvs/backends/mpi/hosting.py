"""The processes in which a rank's envs live.

A worker rank steps no env itself. For each shard it is given it starts a process of its own, from a fork server
without MPI, and passes messages on between MPI and that process. So a shard's envs have a main thread and an
interpreter to themselves, however many VecEnvs the rank serves; an env that crashes, exits or hangs costs its own shard
and not the job; and an env may import mpi4py without being taken for a rank.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import time
import types
from multiprocessing import forkserver
from multiprocessing.util import get_temp_dir
from typing import Any, NamedTuple

import cloudpickle

from vecenvs.backends.mpi import fork_server
from vecenvs.transport.channel import Channel, PolledEnd
from vecenvs.transport.packed import PackedWorker, steps_shard
from vecenvs.transport.protocol import Answer, RemoteFailure, dumps, loads
from vecenvs.transport.shared import Names
from vecenvs.transport.tcp import Invitation
from vecenvs.worker.make_envs import make_envs
from vecenvs.worker.process import Terminated, child_environment, limit_threads, run_worker, watch_caller
from vecenvs.worker.worker import close_envs


class Order(NamedTuple):
    """What rank 0 wants hosted: envs by their pickled functions, and how their rows travel."""

    env_fns: list[bytes]
    first: int
    autoreset: str
    info_attrs: tuple[str, ...]
    names: Names | None  # of the semaphores of one that shares rank 0's memory
    sys_path: list[str]
    caller: int  # rank 0's process

    @property
    def slots(self) -> range:
        return range(self.first, self.first + len(self.env_fns))


class Serve(NamedTuple):
    """Rank 0's word that a packed worker may begin: as one of `n` envs, by its connection or through the rank."""

    n: int
    by_connection: bool


def start_server() -> None:
    """Start the fork server. What it forks never sees this rank's script: functions come pickled by value."""
    sys.modules["__main__"] = types.ModuleType("__main__")
    multiprocessing.set_forkserver_preload([fork_server.__name__, __name__])
    with child_environment():
        os.environ[fork_server.FOLDER] = get_temp_dir()
        forkserver.ensure_running()
        del os.environ[fork_server.FOLDER]


def forget_server() -> None:
    """Remove what it has on disk. The server itself ends after this process and those that it has forked."""
    shutil.rmtree(get_temp_dir(), ignore_errors=True)


class Hosted:
    """One process, from the rank's side. `exitcode` is None while it lives.

    `in_lock_step`: it is stepping its whole shard, and so gets no other command before it has answered.
    """

    def __init__(self, number: int, order: Order) -> None:
        self.number = number
        ours, theirs = socket.socketpair()
        self.relay = PolledEnd(ours)
        context = multiprocessing.get_context("forkserver")
        self._process = context.Process(
            target=_main, args=(theirs, order, os.getpid()), name=f"vecenvs-hosted-{number}", daemon=False
        )
        with child_environment():
            self._process.start()
        theirs.close()
        self.sentinel = self._process.sentinel
        self.in_lock_step = False
        self._packed = order.names is None
        self._ends: list[tuple[float, str]] = []

    def put(self, data: bytearray) -> None:
        """Pass a message on to it."""
        self.relay.put(data)
        self.in_lock_step = self._packed and steps_shard(data)

    def take(self) -> list[bytes]:
        """Give what it has sent."""
        messages = self.relay.take()
        if messages:
            self.in_lock_step = False
        return messages

    @property
    def exitcode(self) -> int | None:
        return self._process.exitcode

    def stop(self, grace: float) -> None:
        """Have it ended: by itself within `grace` seconds, else by SIGTERM, after as long again by SIGKILL."""
        now = time.monotonic()
        self._ends = [(now + 2 * grace, "kill"), (now + grace, "terminate")]

    def enforce(self) -> None:
        """Do what `stop` has announced, when its time has come."""
        while self._ends and time.monotonic() >= self._ends[-1][0]:
            _, end = self._ends.pop()
            (self._process.kill if end == "kill" else self._process.terminate)()

    def terminate(self) -> None:
        """Have it close its envs and end."""
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()
        self._process.join(1.0)

    def free(self) -> None:
        self.relay.close()
        self._process.join(1.0)
        if self._process.exitcode is not None:
            self._process.close()


def _main(end: socket.socket, order: Order, rank_pid: int) -> None:
    with contextlib.suppress(OSError):  # the rank has just ended
        os.setpgid(0, os.getpgid(rank_pid))  # who kills the rank's process group means its envs too
    channel = Channel(end)
    sys.path.extend(path for path in order.sys_path if path not in sys.path)
    payload: list[Any] = list(order.env_fns)
    if order.names is not None:
        watch_caller(rank_pid, [])
        run_worker(channel, payload, order.first, order.autoreset, order.caller, order.names)
    else:
        _run_packed(channel, order, rank_pid)


def _run_packed(relayed: Channel, order: Order, rank_pid: int) -> None:
    """As `process.run_worker`, with rows in the messages."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _leave)
    watch_caller(rank_pid, [])
    limit_threads()
    first = order.first
    envs: list[Any] = []
    connection: Channel | None = None
    try:
        envs, made = make_envs([cloudpickle.loads(item) for item in order.env_fns], first, remote=True)
        relayed.send_bytes(dumps((0, int(Answer.MADE), made)))
        while isinstance(word := loads(relayed.recv_bytes()), Invitation):
            connection = _connected(word, relayed)
        if isinstance(made, RemoteFailure):
            return
        serve: Serve = word
        channel = relayed
        if connection is not None and serve.by_connection:
            channel = connection
        worker = PackedWorker(envs, made, order.slots, serve.n, order.autoreset, channel.send_bytes, order.info_attrs)
        relayed.send_bytes(dumps((0, int(Answer.REPLY), None)))
        while worker.handle(memoryview(channel.recv_bytes())):
            continue
        envs = []
    except (EOFError, ConnectionError):
        return
    except Terminated:
        sys.exit(1)
    finally:
        close_envs(envs, first, remote=True)


def _connected(invitation: Invitation, relayed: Channel) -> Channel | None:
    """Connect to rank 0, and tell it whether that works; None unless it does and rank 0 proves to be there."""
    try:
        connection = invitation.connect()
    except OSError as exc:
        relayed.send_bytes(dumps(f"{type(exc).__name__}: {exc}"))
        return None
    relayed.send_bytes(dumps(None))
    try:
        invitation.prove(connection)
    except OSError:  # rank 0 waits in vain, and says so
        return None
    return Channel(connection)


def _leave(_: int, __: object) -> None:
    raise Terminated
