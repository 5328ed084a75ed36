"""The caller's end of one Ray actor, and the two ways to it: shared memory on one node, actor calls between nodes."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from queue import Empty, SimpleQueue
from typing import Any

from vecenvs.backends.ray_actor import Home
from vecenvs.backends.ray_cluster import Session, explain_waiting, shorten
from vecenvs.backends.ray_exit import ForeignProcess
from vecenvs.board import Board
from vecenvs.errors import BackendUnavailable
from vecenvs.protocol import Answer, Command, kind_of, loads, slot_of
from vecenvs.transport import Message, Transport
from vecenvs.transport.memory import Semaphore, unlink_semaphores
from vecenvs.transport.packed import PackedTransport
from vecenvs.transport.shared import SharedBoard, SharedTransport, Wiring

PATIENCE = (0.0, 2e-4)  # as for subprocesses
REAPED = 0.5  # seconds for a dead process's exit code to be known
LEAVE = 0.5  # seconds for an actor without a VecEnv to close its envs
LATE = (5e-4, 0.02)  # seconds between looks for the answers of async resets: at first, and at most


WHILE = 1.0  # seconds to wait if nobody says how long
DONE = "its work is done"


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
        self._said = ""
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
        import ray

        try:
            self.why = self._why_messages(board)
            self.way = "messages" if self.why else "shared"
            way = PackedActor(self._actor, self._shard) if self.why else SharedActor(self._actor, len(self._shard))
            way.attach(board)
        except ray.exceptions.RayActorError as exc:
            self._exit, self._said = (True, self._exit_code()), str(exc)
            raise BrokenPipeError("the actor died while it was attached") from exc
        self._wired = way

    def exit_status(self) -> tuple[bool, int | None]:
        if self._exit is None:
            words = self._words()
            if words:
                self._exit = (True, self._exit_code() if words != DONE else None)
                self._said = words
        return self._exit or (False, None)

    def _words(self) -> str:
        """What is said of the actor's end; nothing while it lives."""
        if not self._session.alive():
            return "the connection to Ray has been closed"
        if self._wired is None:
            return _ended(self._made_call).replace(DONE, "")
        self._wired.exit_status()
        return self._wired.last_words

    def _exit_code(self) -> int | None:
        """The exit code, where the system tells it: a little later than Ray tells of the end."""
        deadline = time.monotonic() + REAPED
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

        idle = self._wired is None and bool(ray.wait([self._made_call], timeout=0)[0])
        if grace or idle:  # else it is known, or presumed, to hang
            actor.leave.remote()
            ray.wait([actor.__ray_terminate__.remote()], timeout=max(grace, LEAVE))
        ray.kill(actor)

    def describe(self) -> dict[str, Any]:
        """Where the worker is and how it is reached."""
        home = self.home._asdict() if self.home is not None else {"node": None, "ip": None, "pid": None}
        return {**home, "transport": self.way, "why": self.why}

    @property
    def where(self) -> str:  # type: ignore[override]
        """Where the worker is; and once it is dead, what Ray says of that."""
        place = f" on node {self.home.node[:8]} ({self.home.ip})" if self.home is not None else " on no node yet"
        return f"{place} [{shorten(self._said)}]" if self._said else place

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


def _ended(call: Any) -> str:
    """Say how a call has ended: DONE, or Ray's words of its actor's death; nothing while it is under way."""
    import ray

    if not ray.wait([call], timeout=0, fetch_local=False)[0]:
        return ""
    try:
        ray.get(call)
    except ray.exceptions.RayError as exc:
        return str(exc)
    return DONE


class SharedActor(SharedTransport):
    """An actor on the caller's node: one endless actor call, and all else through its rings."""

    def __init__(self, actor: Any, count: int) -> None:
        super().__init__(count, PATIENCE)
        self._actor = actor
        self._serving: Any = None
        self._ready: Semaphore | None = None
        self.last_words = ""  # what Ray says of the actor's end

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
        self.last_words = self.last_words or _ended(self._serving)
        return bool(self.last_words), None

    def stop(self, grace: float) -> None:
        """Leave the actor to its ActorTransport: here is nothing else to end."""


class PackedActor(PackedTransport):
    """An actor out of the caller's reach: one call per command, which returns its answers.

    Nothing here waits in Ray: a thread of Ray's brings what a call has returned, and wakes who waits for any worker.
    """

    def __init__(self, actor: Any, shard: range) -> None:
        super().__init__(shard)
        self._actor = actor
        self._calls: set[Any] = set()  # under way: Ray forgets a future that nobody holds
        self._come: SimpleQueue[bytes] = SimpleQueue()
        self._wake: Callable[[], None] | None = None
        self._info_attrs: tuple[str, ...] = ()
        self._awaited: set[int] = set()  # slots whose async reset may end when no call is under way to return it
        self._look = 0.0  # when to look for those
        self._pause = LATE[0]
        self.last_words = ""  # what Ray says of the actor's death, once it is dead

    @property
    def wakes(self) -> bool:  # type: ignore[override]
        return not self._awaited

    def attach(self, board: Board) -> None:
        self._info_attrs = tuple(board.info_attrs)
        super().attach(board)
        self._wake = board.wake.release if isinstance(board, SharedBoard) else None

    def boot(self, n: int) -> None:
        import ray

        ray.get(self._actor.begin.remote(n, self._info_attrs))

    def put(self, tag: int, body: object = None) -> None:
        # Each slot's first row shall come when it is there: one call each, not one for all that ends with the last.
        if kind_of(tag) == Command.RESET and isinstance(body, dict) and len(body) > 1:
            for slot, wanted in body.items():
                super().put(tag, {slot: wanted})
            return
        if kind_of(tag) == Command.AWAIT_RESET:
            self._awaited.add(slot_of(tag))
            self._pause = LATE[0]
        super().put(tag, body)

    def get(self, timeout: float | None) -> Message | None:
        message = super().get(timeout)
        if self._awaited and message is not None and kind_of(message[0]) == Answer.ROW:
            self._awaited.discard(slot_of(message[0]))
        return message

    def deliver(self, data: bytes) -> None:
        if self.last_words:
            raise BrokenPipeError(self.last_words)
        self._watch(self._actor.handle.remote(data))

    def collect(self, timeout: float | None) -> bytes | memoryview | None:
        end = time.monotonic() + (WHILE if timeout is None else timeout)
        while True:
            now = time.monotonic()
            if self._awaited and not self._calls and not self.last_words and now >= self._look:
                self._look = now + self._pause
                self._pause = min(2 * self._pause, LATE[1])
                self._watch(self._actor.late.remote())
            until = min(end, self._look) if self._awaited else end
            try:
                return self._come.get(until > now, max(until - now, 0.0))
            except Empty:
                if self.last_words or time.monotonic() >= end:
                    return None

    def _watch(self, call: Any) -> None:
        future = call.future()
        self._calls.add(future)
        future.add_done_callback(self._take)

    def _take(self, future: Any) -> None:
        """Keep what a call has returned. Runs on a thread of Ray's."""
        try:
            answers = future.result()
            for answer in [answers] if isinstance(answers, bytes) else answers:
                self._come.put(answer)
        except Exception as exc:  # of Ray's: the actor, its node or its answer is lost
            self.last_words = str(exc)
        self._calls.discard(future)
        if self._wake is not None:
            self._wake()

    def exit_status(self) -> tuple[bool, int | None]:
        return bool(self.last_words), None

    def stop(self, grace: float) -> None:
        self._wake = None
