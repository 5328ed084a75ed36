"""What runs inside a Ray actor: the owner of one shard of envs.

Ray runs the actor's methods one after another on its process's main thread, which is where envs may install signal
handlers or open windows. So while `serve` steps envs through shared memory, or `stream` over a connection, no other
method runs; where actor calls carry the messages, `handle` does one command per call.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

import cloudpickle

from vecenvs.transport.channel import Channel
from vecenvs.transport.memory import Address, Semaphore, open_segment
from vecenvs.transport.packed import PackedWorker
from vecenvs.transport.protocol import Answer, ShardSpec, dumps
from vecenvs.transport.shared import Wiring, serve
from vecenvs.transport.tcp import Invitation
from vecenvs.worker.make_envs import make_envs
from vecenvs.worker.process import limit_threads, watch_caller
from vecenvs.worker.worker import close_envs


class Home(NamedTuple):
    """Where an actor runs: the node's id and address, and the process."""

    node: str
    ip: str
    pid: int


class EnvActor:
    """A shard of envs in a process that Ray has placed. `first` is its first slot."""

    def __init__(self, first: int, count: int, autoreset: str) -> None:
        self._first = first
        self._shard = range(first, first + count)
        self._autoreset = autoreset
        self._envs: list[Any] = []
        self._made: ShardSpec | None = None
        self._worker: PackedWorker | None = None
        self._connection: socket.socket | None = None
        self._channel: Channel | None = None
        self._answers: SimpleQueue[bytes] = SimpleQueue()  # threads of async resets answer too

    def home(self) -> Home:
        """Tell where this is. The first answer says that the actor has been placed and runs."""
        import ray

        return Home(ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address(), os.getpid())

    def make(self, env_fns: Sequence[bytes], paths: Sequence[str]) -> bytes:
        """Make the envs; give the message MADE. `paths` are where the caller's imports look: they come last here."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the caller's, who closes its workers
        sys.path.extend(path for path in paths if path not in sys.path)
        limit_threads()
        self._envs, made = make_envs([partial(_make, env_fn) for env_fn in env_fns], self._first, remote=True)
        self._made = made if isinstance(made, ShardSpec) else None
        return dumps((0, int(Answer.MADE), made))

    def reaches(self, address: Address, semaphore: str | None) -> str | None:
        """Try to open the caller's memory; None if that works, else why not."""
        try:
            open_segment(address).release()
            if semaphore is not None:
                Semaphore(semaphore)
        except (OSError, ValueError) as exc:
            return f"{type(exc).__name__}: {exc}"
        return None

    def serve(self, wiring: Wiring, ready: str, caller: int) -> None:
        """Step the envs through shared memory until told to close. The semaphore `ready` is released at the start.

        Ends with process `caller`, whatever ended that.
        """
        opened = Semaphore(ready)
        watch_caller(caller, list(wiring.names))
        try:
            serve(self._envs, self._checked(), self._first, self._autoreset, wiring, opened.release)
            self._envs = []
        finally:
            self.leave()

    def connect(self, invitation: Invitation) -> str | None:
        """Connect to the caller, who calls `prove` next; None if that works, else why not."""
        try:
            self._connection = invitation.connect()
        except OSError as exc:
            return f"{type(exc).__name__}: {exc}"
        return None

    def prove(self, invitation: Invitation) -> None:
        """Take the connection for the caller's once it has proved to be that."""
        if self._connection is not None:
            with contextlib.suppress(OSError):  # the caller waits in vain, and says so
                invitation.prove(self._connection)
                self._channel = Channel(self._connection)

    def stream(self, n: int, info_attrs: tuple[str, ...]) -> None:
        """Step the envs, of a VecEnv of `n`, by messages over the connection, until told to close or hung up on."""
        channel = self._channel
        if channel is None:
            raise RuntimeError("stream() before prove()")
        try:
            worker = self._packed(n, info_attrs, channel.send_bytes)
            while worker.handle(memoryview(channel.recv_bytes())):
                continue
            self._envs = []
        except (EOFError, ConnectionError):
            return
        finally:
            channel.close()
            self.leave()

    def begin(self, n: int, info_attrs: tuple[str, ...]) -> None:
        """Get ready for `handle`: the shard is one of a VecEnv of `n` envs."""
        self._worker = self._packed(n, info_attrs, self._answers.put)

    def handle(self, command: bytes) -> bytes | list[bytes]:
        """Carry out one command; give every answer there is by then (one as it is: Ray moves bare bytes fastest)."""
        if self._worker is None:
            raise RuntimeError("a command before begin()")
        if not self._worker.handle(command):
            self._envs = []
        answers = self.late()
        return answers[0] if len(answers) == 1 else answers

    def late(self) -> list[bytes]:
        """Give the answers of async resets that have come since the last call."""
        answers = []
        with contextlib.suppress(Empty):
            while True:
                answers.append(self._answers.get_nowait())
        return answers

    def leave(self) -> None:
        """Close the envs that CLOSE has not closed."""
        envs, self._envs = self._envs, []
        close_envs(envs, self._first, remote=True)

    def _packed(self, n: int, info_attrs: tuple[str, ...], send: Callable[[bytes], None]) -> PackedWorker:
        return PackedWorker(self._envs, self._checked(), self._shard, n, self._autoreset, send, info_attrs)

    def _checked(self) -> ShardSpec:
        if self._made is None:
            raise RuntimeError("this actor has made no envs")
        return self._made


def _make(env_fn: bytes) -> Any:
    """Unpickle and call: what cannot be imported here is then reported like everything else its env raises."""
    return cloudpickle.loads(env_fn)()
