"""The caller's end of a Ray actor, a worker or a leader: its place, its end, its boot channel of actor calls."""

from __future__ import annotations

import time
from typing import Any

from vecenvs.backends.ray.actor import ActorLocation
from vecenvs.backends.ray.actors import Actors
from vecenvs.backends.ray.cluster import import_paths, shorten
from vecenvs.backends.ray.foreign_process import ForeignProcess
from vecenvs.backends.ray.placement import NoPlace, PendingActor
from vecenvs.transport.pickling import PickledFns
from vecenvs.transport.remote import OTHER_NODE, RemoteTransport
from vecenvs.transport.shared import Names
from vecenvs.transport.spinning import NEVER
from vecenvs.transport.tcp import CAUSE_TIMEOUT

WORD_TIMEOUT = 5.0  # seconds for Ray to say why a connection has ended, unless it has lost the node itself
EXIT_CODE_TIMEOUT = 0.5  # seconds for a dead process's exit code to be known
CLOSE_TIMEOUT = 0.5  # seconds for an actor without a VecEnv to close its envs


class ActorEnd(RemoteTransport):
    """One actor, which errors call `who`.

    Being without a place on the cluster for longer than the request allows raises NoPlace; making its envs may take
    longer.
    """

    def __init__(self, actors: Actors, who: str, shard: range, env_fns: PickledFns | None, names: Names) -> None:
        super().__init__(shard, names, actors.transport, actors.port)
        self._actors = actors
        self._session = actors.session
        self._who = who
        self._env_fns = env_fns
        self._process: ForeignProcess | None = None
        self._exit: tuple[bool, int | None] | None = None
        self._last_words = ""  # what Ray says of the actor's death
        self.stopped = False
        self.location: ActorLocation | None = None
        self._bound_for: str | None = None

    def _start(self, pending: PendingActor) -> None:
        """Have an actor begin, as soon as it has its place."""
        self._actor, self._placement = pending.actor, pending.placement
        self._bound_for, self._needs_nothing = pending.request.bound_for, pending.request.needs_nothing
        self._answering = self._actor.make.remote(self._env_fns, import_paths())  # the next message of the boot channel
        self._serving: Any = None

    def boot_send(self, data: bytes) -> None:
        self._env_fns = None  # the envs are made
        self._answering = self._actor.connect.remote(data)
        self._serving = self._actor.serve.remote()

    def boot_get(self, timeout: float | None) -> bytes | None:
        import ray

        if not self._placed(timeout) or not ray.wait([self._answering], timeout=timeout)[0]:
            return None
        try:
            data: bytes = ray.get(self._answering)
        except ray.exceptions.RayActorError as exc:
            forget_frames(exc)
            return None
        return data

    def why_not_shared(self) -> str:
        return "" if self.here else OTHER_NODE

    def spins(self) -> tuple[float, float]:
        return (NEVER, NEVER) if self.location is None else self._actors.spins(self.location)

    def address(self) -> str:
        import ray

        host: str = ray.util.get_node_ip_address()
        return host

    def about_address(self) -> str:
        return "the address is this node's in the cluster, which `ray start --node-ip-address` chooses"

    def exit_status(self) -> tuple[bool, int | None]:
        if self._exit is None and self._has_ended():
            # If Ray says nothing of that, the actor has been told to close, and its process goes on.
            self._exit = (True, self._exit_code() if self._last_words else None)
        return self._exit or (False, None)

    def _has_ended(self) -> bool:
        """Tell whether the actor serves no longer, and keep what is said of that."""
        if not self._session.alive():
            self._last_words = "the connection to Ray has been closed"
            return True
        if not self.attached:
            self._last_words = last_words_of(self._answering)
            return bool(self._last_words)
        # Ray hears of a death later than the connection does, and of a node that cannot be reached after a minute.
        lost = self.disconnected_for_long(WORD_TIMEOUT)
        self._last_words = last_words_of(self._serving, CAUSE_TIMEOUT if self.disconnected() else 0.0)
        if lost and not self._last_words and self.location is not None:
            self._actors.lost_nodes.add(self.location.node)
            self._last_words = "its node does not answer"
        return bool(self._last_words) or has_ended(self._serving)

    def _exit_code(self) -> int | None:
        """Return the exit code, where the system tells it: a little later than Ray tells of the end."""
        deadline = time.monotonic() + EXIT_CODE_TIMEOUT
        while self._process is not None:
            code = self._process.exit_code()
            if code is not None or time.monotonic() >= deadline:
                return code
            time.sleep(1e-3)
        return None

    def stop(self, grace: float) -> None:
        self.close_link()
        if self.stopped or not self._session.alive():
            return
        self.stopped = True
        import ray

        idle = not self.attached and has_ended(self._answering)
        if grace or idle:  # otherwise it is known, or presumed, to hang
            self._actor.leave.remote()
            if ray.wait([self._actor.__ray_terminate__.remote()], timeout=max(grace, CLOSE_TIMEOUT))[0]:
                return  # it is about to end: `reap` waits for that
        ray.kill(self._actor)

    def kill(self, deadline: float) -> bool:
        """Kill the process, after `stop`, if it has not ended by `deadline`. Tell whether it has; False elsewhere."""
        if self._process is None or self._process.wait(deadline - time.monotonic()):
            return self._process is not None
        self._process.kill()
        return False

    def reap(self, deadline: float) -> None:
        """Kill the process as `kill` does, wait until it has ended, and free what is held for it."""
        gone = self.kill(deadline)
        if self._process is not None and not gone:
            self._process.wait(CLOSE_TIMEOUT)
        if not gone and self._session.alive():
            import ray

            ray.kill(self._actor)
        if self._process is not None:
            self._process.close()

    def place(self) -> dict[str, Any]:
        node, ip, *_ = self.location or (None, None)
        return {"node": node, "ip": ip}

    @property
    def node(self) -> str | None:
        """The node where the actor is, or to which it is bound; None if Ray has still to choose one."""
        return self._bound_for if self.location is None else self.location.node

    @property
    def here(self) -> bool:
        """Whether the actor has a place on the caller's node."""
        return self.location is not None and self.location.node == self._session.node

    @property
    def untimed(self) -> bool:  # type: ignore[override]
        return self.location is None and not self._needs_nothing

    @property
    def where(self) -> str:  # type: ignore[override]
        """Where the worker is; and once it is dead, what Ray says of that."""
        place = " on no node yet"
        if self.location is not None:
            place = f" on node {self.location.node[:8]} ({self.location.ip})"
        return f"{place} [{shorten(self._last_words)}]" if self._last_words else place

    def _placed(self, timeout: float | None) -> bool:
        """Wait for the actor's place on the cluster, or its death."""
        if self.location is not None:
            return True
        import ray

        try:
            self._arrive(self._placement.location(timeout))
        except ray.exceptions.RayActorError as exc:
            forget_frames(exc)
            return True
        except NoPlace:
            if not self._finds_other_way():
                raise
        return self.location is not None

    def _arrive(self, location: ActorLocation | None) -> None:
        self.location = location
        if location is not None and self.here and self._process is None:
            self._process = ForeignProcess(location.pid)

    def _finds_other_way(self) -> bool:
        """Tell whether there is another way for an actor that has found no place in time."""
        return False


def has_ended(call: Any, seconds: float = 0.0) -> bool:
    """Tell whether a call is over, well or not, within so many seconds."""
    import ray

    return bool(ray.wait([call], timeout=seconds, fetch_local=False)[0])


def last_words_of(call: Any, seconds: float = 0.0) -> str:
    """Return what Ray says, within so many seconds, of the death of a call's actor; "" if it has not died."""
    import ray

    if not has_ended(call, seconds):
        return ""
    try:
        ray.get(call)
    except ray.exceptions.RayError as exc:
        forget_frames(exc)
        return str(exc)
    return ""


def forget_frames(exc: BaseException) -> None:
    """Break the cycle of an exception of `ray.get`, whose frame refers to it.

    The cycle would keep alive what the frames refer to, a transport and its memory, until garbage is collected.
    """
    exc.__traceback__ = None
