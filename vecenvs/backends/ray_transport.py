"""The caller's end of one Ray actor: its place, its end, and which of the ways of `ray_ways` leads to it."""

from __future__ import annotations

import socket
import time
import warnings
from collections.abc import Sequence
from typing import Any

from vecenvs.backends.ray_actor import Home
from vecenvs.backends.ray_cluster import Session, import_paths, shorten
from vecenvs.backends.ray_exit import ForeignProcess
from vecenvs.backends.ray_request import Placing, Request
from vecenvs.backends.ray_ways import CallActor, SharedActor, StreamActor, last_words_of
from vecenvs.board import Board
from vecenvs.cpus import usable_cores
from vecenvs.errors import describe_indices
from vecenvs.protocol import loads
from vecenvs.transport import Message, Transport
from vecenvs.transport.shared import Names, SharedBoard
from vecenvs.transport.spin import Spin, spins
from vecenvs.transport.stream import OutOfReach, have_connect

REAPED = 0.5  # seconds for a dead process's exit code to be known
LEAVE = 0.5  # seconds for an actor without a VecEnv to close its envs


class ActorTransport(Transport):
    """One actor. How its rows travel is decided when it is attached: `way` is "shared", "messages" or "calls",
    `why` tells. `wanted` is "auto", or the way that it shall be.

    `actor_class` is EnvActor with what `request` asks for. Being without a place on the cluster for longer than that
    allows raises BackendUnavailable; making its envs may take longer. `launched` are all actors of the VecEnv, as they
    come and go.
    """

    def __init__(
        self, session: Session, request: Request, actor_class: Any, shard: range, env_fns: Sequence[bytes],
        autoreset: str, wanted: str, launched: Sequence[ActorTransport],
    ) -> None:  # fmt: skip
        self._session = session
        self._shard = shard
        self._wanted = wanted
        self._launched = launched
        self._actor = actor_class.remote(shard.start, len(shard), autoreset)
        self._placing = Placing(request, self._actor, f"the worker of envs {describe_indices(shard)}")
        self._made_call = self._actor.make.remote(env_fns, import_paths())
        self._process: ForeignProcess | None = None
        self._exit: tuple[bool, int | None] | None = None
        self._said = ""  # what Ray says of the actor's death
        self.stopped = False
        self._wired: SharedActor | StreamActor | CallActor | None = None
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

    def watch(self) -> tuple[int, int] | None:
        return None if self._wired is None else self._wired.watch()

    def attach(self, board: Board) -> None:
        import ray

        try:
            way = self._choose(board)
            try:
                way.attach(board)
            except BaseException:
                way.stop(0.0)
                raise
        except ray.exceptions.RayActorError as exc:
            self._exit, self._said = (True, self._exit_code()), str(exc)
            raise BrokenPipeError("the actor died while it was attached") from exc
        self._wired = way

    def _spins(self) -> tuple[Spin, Spin]:
        """How long the caller and a worker of this node try before they sleep.

        By the time that one of them is attached, all have their places.
        """
        return spins(usable_cores() - sum(actor.here and not actor.stopped for actor in self._launched))

    def exit_status(self) -> tuple[bool, int | None]:
        if self._exit is None:
            gone, self._said = self._end()
            if gone:
                self._exit = (True, self._exit_code())
        return self._exit or (False, None)

    def _end(self) -> tuple[bool, str]:
        """Tell whether the actor serves no longer, and what is said of that."""
        if not self._session.alive():
            return True, "the connection to Ray has been closed"
        if self._wired is None:
            words = last_words_of(self._made_call)
            return bool(words), words
        return self._wired.exit_status()[0], self._wired.last_words

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
        if self._wired is not None:
            self._wired.stop(grace)
        if self.stopped or not self._session.alive():
            return
        self.stopped = True
        import ray

        idle = self._wired is None and bool(ray.wait([self._made_call], timeout=0)[0])
        if grace or idle:  # else it is known, or presumed, to hang
            self._actor.leave.remote()
            if ray.wait([self._actor.__ray_terminate__.remote()], timeout=max(grace, LEAVE))[0]:
                return  # it is on its way: `reap` sees to the end
        ray.kill(self._actor)

    def reap(self, deadline: float) -> None:
        """Wait until the process is gone, after `stop`; kill it at `deadline`. Elsewhere Ray is told to, at once."""
        here = self._process is not None
        if self._process is not None and not self._process.wait(deadline - time.monotonic()):
            here = False
            self._process.kill()
            self._process.wait(LEAVE)
        if not here and self._session.alive():
            import ray

            ray.kill(self._actor)
        if self._process is not None:
            self._process.close()

    def describe(self) -> dict[str, Any]:
        """Where the worker is and how it is reached."""
        home = self.home._asdict() if self.home is not None else {"node": None, "ip": None, "pid": None}
        return {**home, "transport": self.way, "why": self.why}

    @property
    def here(self) -> bool:
        """Whether it has a place on the caller's node."""
        return self.home is not None and self.home.node == self._session.node

    @property
    def where(self) -> str:  # type: ignore[override]
        """Where the worker is; and once it is dead, what Ray says of that."""
        place = f" on node {self.home.node[:8]} ({self.home.ip})" if self.home is not None else " on no node yet"
        return f"{place} [{shorten(self._said)}]" if self._said else place

    def _placed(self, timeout: float | None) -> bool:
        """Wait for the actor's place on the cluster, or its death."""
        if self.home is not None:
            return True
        import ray

        try:
            self.home = self._placing.home(timeout)
        except ray.exceptions.RayActorError:
            return True
        if self.home is not None and self.here:
            self._process = ForeignProcess(self.home.pid)
        return self.home is not None

    def _choose(self, board: Board) -> SharedActor | StreamActor | CallActor:
        """Take the best way there is, or the one that is wanted, and say why."""
        self.why = "asked for" if self._wanted != "auto" else self._why_not_shared(board)
        if not self.why and isinstance(board, SharedBoard):
            self.way = "shared"
            return SharedActor(self._actor, len(self._shard), Names.new(board.wake.name), self._spins())
        if self._wanted != "calls":
            connection = self._connect()
            if connection is not None:
                self.way = "messages"
                return StreamActor(self._actor, self._shard, connection)
        self.way = "calls"
        return CallActor(self._actor, self._shard)

    def _why_not_shared(self, board: Board) -> str:
        import ray

        if not self.here:
            return "on another node"
        if not isinstance(board, SharedBoard):
            return "the columns are not shared"
        reason: str | None = ray.get(self._actor.reaches.remote(board.segment.address, board.wake.name))
        return f"same node, but its memory cannot be opened ({reason})" if reason else ""

    def _connect(self) -> socket.socket | None:
        """Have the actor connect to this process. If it cannot, warn, and say so in `why`."""
        import ray

        try:
            return have_connect(
                ray.util.get_node_ip_address(), lambda invitation: ray.get(self._actor.connect.remote(invitation))
            )
        except OutOfReach as exc:
            self.why += f"; {exc}"
        warnings.warn(
            f"the worker of envs {describe_indices(self._shard)} is reached by actor calls, which costs a millisecond "
            f"or more per step: {self.why}. Let nodes connect to each other at any port, or pass transport='calls'",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
