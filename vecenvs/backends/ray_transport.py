"""The caller's end of one Ray actor, and the two ways to it: shared memory on one node, actor calls between nodes."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from vecenvs.backends.ray_actor import Home
from vecenvs.backends.ray_cluster import Session, explain_waiting
from vecenvs.backends.ray_exit import ForeignProcess
from vecenvs.board import Board
from vecenvs.errors import BackendUnavailable
from vecenvs.protocol import Answer, Command, kind_of, loads
from vecenvs.transport import Message, Transport
from vecenvs.transport.memory import Semaphore, unlink_semaphores
from vecenvs.transport.packed import PackedTransport
from vecenvs.transport.shared import SharedBoard, SharedTransport, Wiring

PATIENCE = (0.0, 2e-4)  # as for subprocesses
REAPED = 0.5  # seconds for a dead process's exit code to be known
LATE = (5e-4, 0.02)  # seconds between looks for the answers of async resets: at first, and at most


class ActorTransport(Transport):
    """One actor. How its rows travel is decided when it is attached: `way` is "shared" or "messages", `why` tells.

    `remote_class` is that of EnvActor, with its options; `options` are they, for errors. `ready_timeout` seconds
    without a place for it on the cluster raise BackendUnavailable; making its envs may take longer.
    """

    def __init__(
        self, session: Session, remote_class: Any, options: Mapping[str, Any], shard: range, env_fns: Sequence[bytes],
        autoreset: str, forced: bool, ready_timeout: float,
    ) -> None:  # fmt: skip
        self._session = session
        self._options = options
        self._shard = shard
        self._forced = forced
        self._ready_timeout = ready_timeout
        self._actor = remote_class.remote(shard.start, len(shard), autoreset)
        paths = [os.path.abspath(path) for path in sys.path if "site-packages" not in path]
        self._home_call = self._actor.home.remote()
        self._made_call = self._actor.make.remote(env_fns, paths)
        self._launched = time.monotonic()
        self._process: ForeignProcess | None = None
        self._exit: tuple[bool, int | None] | None = None
        self._last_words = ""  # what Ray says of the actor's death
        self._wired: SharedActor | PackedActor | None = None
        self.home: Home | None = None
        self.way = "none yet"
        self.why = ""

    @property
    def wakes(self) -> bool:  # type: ignore[override]
        return self._wired is not None and self._wired.wakes

    def put(self, tag: int, body: object = None) -> None:
        if self._wired is None:
            raise BrokenPipeError("a command for a worker that is not attached")
        self._wired.put(tag, body)

    def get(self, timeout: float | None) -> Message | None:
        if self._wired is not None:
            return self._wired.get(timeout)
        import ray

        if not self._placed(timeout) or not ray.wait([self._made_call], timeout=timeout)[0]:
            return None
        try:
            message: Message = loads(ray.get(self._made_call))
        except ray.exceptions.RayActorError:
            return None
        return message

    def attach(self, board: Board) -> None:
        wired: SharedActor | PackedActor
        self.why = self._why_messages(board)
        self.way = "messages" if self.why else "shared"
        if self.why:
            wired = PackedActor(self._actor, self._shard)
        else:
            wired = SharedActor(self._actor, len(self._shard))
        wired.attach(board)
        self._wired = wired

    def exit_status(self) -> tuple[bool, int | None]:
        if self._exit is None:
            if not self._session.alive():
                self._exit = (True, None)
            else:
                call = self._made_call if self._wired is None else self._wired.watched()
                ended = call is not None and self._ended(call)
                self._exit = (True, self._exit_code()) if ended else None
        return self._exit or (False, None)

    def _ended(self, call: Any) -> bool:
        """Tell whether a call is over because its actor is, or because it has served until its end."""
        import ray

        if not ray.wait([call], timeout=0, fetch_local=False)[0]:
            return False
        try:
            result = ray.get(call)
        except ray.exceptions.RayActorError as exc:
            self._last_words = str(exc)
            return True
        return result is None

    def _exit_code(self) -> int | None:
        """The exit code, where the system tells it. It does once Ray's own process has noticed."""
        deadline = time.monotonic() + (REAPED if self._last_words and self._process else 0.0)
        while self._process is not None:
            code = self._process.exit_code()
            if code is not None or time.monotonic() >= deadline:
                return code
            time.sleep(1e-3)
        return None

    def stop(self, grace: float) -> None:
        if self._process is not None:
            self._process.close()
        actor, self._actor = self._actor, None
        if actor is None or not self._session.alive():
            return
        import ray

        if grace and self._wired is not None:
            ray.wait([actor.__ray_terminate__.remote()], timeout=grace)
        ray.kill(actor)

    def describe(self) -> dict[str, Any]:
        """Where the worker is and how it is reached."""
        home = self.home._asdict() if self.home is not None else {"node": None, "ip": None, "pid": None}
        return {**home, "transport": self.way, "why": self.why}

    @property
    def where(self) -> str:
        """Where the worker is, for WorkerDied."""
        return f" on node {self.home.node[:8]} ({self.home.ip})" if self.home is not None else ""

    def _placed(self, timeout: float | None) -> bool:
        """Wait for the actor's place on the cluster."""
        if self.home is not None:
            return True
        import ray

        if ray.wait([self._home_call], timeout=timeout)[0]:
            try:
                self.home = ray.get(self._home_call)
            except ray.exceptions.RayActorError:
                return True
            if self.home is not None and self.home.node == self._session.node:
                self._process = ForeignProcess(self.home.pid)
            return True
        if time.monotonic() - self._launched > self._ready_timeout:
            raise BackendUnavailable(explain_waiting(self._shard, self._options, self._ready_timeout))
        return False

    def _why_messages(self, board: Board) -> str:
        import ray

        if self._forced:
            return "asked for"
        if self.home is None or self.home.node != self._session.node:
            return "on another node"
        if not isinstance(board, SharedBoard):
            return "the columns are not shared"
        reason: str | None = ray.get(self._actor.reaches.remote(board.segment.address, board.wake.name))
        return f"same node, but its memory cannot be opened ({reason})" if reason else ""


class SharedActor(SharedTransport):
    """An actor on the caller's node: one endless actor call, and all else through its rings."""

    def __init__(self, actor: Any, count: int) -> None:
        super().__init__(count, PATIENCE)
        self._actor = actor
        self._serving: Any = None
        self._ready: Semaphore | None = None

    def watched(self) -> Any:
        """The call that ends, with None or an error, when the worker does."""
        return self._serving

    def boot_send(self, wiring: Wiring) -> None:
        self._ready = Semaphore()
        self._serving = self._actor.serve.remote(wiring, self._ready.name, os.getpid())

    def boot_get(self, timeout: float | None) -> Message | None:
        import ray

        if self._ready is None:
            return None
        end = time.monotonic() + (timeout or 0.0)
        try:
            while not self._ready.acquire(True, 0.05):
                if time.monotonic() >= end or ray.wait([self._serving], timeout=0)[0]:
                    return None
        finally:
            unlink_semaphores([self._ready.name])
        return Answer.REPLY, None

    def exit_status(self) -> tuple[bool, int | None]:
        import ray

        return bool(ray.wait([self._serving], timeout=0)[0]), None

    def stop(self, grace: float) -> None:
        """Leave the actor to its ActorTransport: here is nothing else to end."""


class PackedActor(PackedTransport):
    """An actor out of the caller's reach: one call per command, which returns its answers."""

    def __init__(self, actor: Any, shard: range) -> None:
        super().__init__(shard)
        self._actor = actor
        self._calls: deque[Any] = deque()
        self._come: deque[bytes] = deque()
        self._late = 0  # answers that no call under way will return: those of async resets
        self._look = LATE[0]

    def watched(self) -> Any:
        """The call that fails when the worker has died; None while nothing is asked of it."""
        return self._calls[0] if self._calls else None

    def boot(self, n: int) -> None:
        import ray

        ray.get(self._actor.begin.remote(n))

    def put(self, tag: int, body: object = None) -> None:
        # Each slot's first row shall come when it is there: one call each, not one for all that ends with the last.
        if kind_of(tag) == Command.RESET and isinstance(body, dict) and len(body) > 1:
            for slot, wanted in body.items():
                super().put(tag, {slot: wanted})
            return
        self._late += kind_of(tag) == Command.AWAIT_RESET
        super().put(tag, body)

    def deliver(self, data: bytes) -> None:
        self._calls.append(self._actor.handle.remote(data))

    def collect(self, timeout: float | None) -> bytes | memoryview | None:
        import ray

        end = None if timeout is None else time.monotonic() + timeout
        while not self._come:
            if not self._calls:
                if not self._late:
                    return None
                self._calls.append(self._actor.late.remote())
            rest = None if end is None else max(end - time.monotonic(), 0.0)
            if not ray.wait(list(self._calls)[:1], timeout=rest)[0]:
                return None
            try:
                answers = ray.get(self._calls[0])
            except ray.exceptions.RayActorError:
                return None  # stays in front, where `watched` finds it
            self._calls.popleft()
            self._come.extend([answers] if isinstance(answers, bytes) else answers)
        return self._come.popleft()

    def exit_status(self) -> tuple[bool, int | None]:
        return False, None  # its ActorTransport knows

    def stop(self, grace: float) -> None:
        self._calls.clear()
