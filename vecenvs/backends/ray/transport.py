"""The caller's end of one Ray actor: its place, its end, and which of the ways of `ray_ways` leads to it."""

from __future__ import annotations

import logging
import math
import socket
import time
import warnings
from collections.abc import Sequence
from typing import Any

from vecenvs.backends.ray.actor import EnvActor, Home
from vecenvs.backends.ray.actors import WAIT, Fleet
from vecenvs.backends.ray.cluster import import_paths, shorten
from vecenvs.backends.ray.foreign_process import ForeignProcess
from vecenvs.backends.ray.placement import NoPlace, Placing, Request
from vecenvs.backends.ray.ways import CallActor, SharedActor, StreamActor, forget_frames, last_words_of
from vecenvs.batch.batch_columns import BatchColumns
from vecenvs.errors import describe_indices
from vecenvs.transport import Message, Transport
from vecenvs.transport.protocol import loads
from vecenvs.transport.shared import Names, SharedBatchColumns
from vecenvs.transport.tcp import Invitation, OutOfReach

PATIENCE = 10.0  # seconds for the replacement of a worker to find a place of its own, and for its process to start
REAPED = 0.5  # seconds for a dead process's exit code to be known
LEAVE = 0.5  # seconds for an actor without a VecEnv to close its envs

_log = logging.getLogger("vecenvs")


class ActorTransport(Transport):
    """One actor. How its rows travel is decided when it is attached: `way` is "shared", "messages" or "calls",
    `why` tells.

    Being without a place on the cluster for longer than the fleet's request allows raises NoPlace; making its envs may
    take longer. One that `replaces` another goes elsewhere, or waits as long as it takes: the fleet's `on_lost_node`.
    """

    def __init__(self, fleet: Fleet, shard: range, env_fns: Sequence[bytes], *, replaces: bool) -> None:
        self._fleet = fleet
        self._session = fleet.session
        self._shard = shard
        self._who = f"the worker of envs {describe_indices(shard)}"
        self._env_fns = env_fns
        self._accommodating = replaces and not fleet.request.modest  # it may go on without a place of its own
        self._process: ForeignProcess | None = None
        self._exit: tuple[bool, int | None] | None = None
        self._said = ""  # what Ray says of the actor's death
        self.stopped = False
        self._wired: SharedActor | StreamActor | CallActor | None = None
        self.home: Home | None = None
        self._bound_for: str | None = None
        self.way = "none yet"
        self.why = ""
        self._start(fleet.request, fleet.actor_class, PATIENCE if self._accommodating else None)

    def _start(self, request: Request, actor_class: Any, seconds: float | None) -> None:
        self._actor = actor_class.remote(self._shard.start, len(self._shard), self._fleet.autoreset)
        self._modest = request.modest
        self._placing = Placing(request, self._actor, self._who, seconds)
        self._made_call = self._actor.make.remote(self._env_fns, import_paths())

    @property
    def wakes(self) -> bool:  # type: ignore[override]
        return self._wired is not None and self._wired.wakes

    def put(self, number: int, tag: int, body: object = None) -> None:
        if self._wired is None:
            raise BrokenPipeError("a command for a worker that is not attached")
        self._wired.put(number, tag, body)
        self.sent = number

    def send_rest(self) -> bool:
        return self._wired is not None and self._wired.send_rest()

    def take(self) -> None:
        if self._wired is not None:
            self._wired.take()

    def get(self, timeout: float | None) -> Message | None:
        if self._wired is not None:
            return self._wired.get(timeout)
        import ray

        if not self._placed(timeout) or not ray.wait([self._made_call], timeout=timeout)[0]:
            return None
        try:
            message: Message = loads(ray.get(self._made_call))
        except ray.exceptions.RayActorError as exc:
            forget_frames(exc)
            return None
        return message

    def watch(self) -> tuple[int, int] | None:
        return None if self._wired is None else self._wired.watch()

    def attach(self, batch: BatchColumns) -> None:
        import ray

        try:
            way = self._choose(batch)
            try:
                way.attach(batch)
            except BaseException:
                way.stop(0.0)
                raise
        except ray.exceptions.RayActorError as exc:
            self._exit, self._said = (True, self._exit_code()), str(exc)
            raise BrokenPipeError("the actor died while it was attached") from exc
        self._wired = way

    def exit_status(self) -> tuple[bool, int | None]:
        if self._exit is None:
            gone, self._said = self._end()
            if gone:  # if nothing is said of that, it has been told to close, and its process goes on
                self._exit = (True, self._exit_code() if self._said else None)
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

    def kill(self, deadline: float) -> bool:
        """After `stop`, kill the process if it has not gone by `deadline`; tell whether it has. False elsewhere."""
        if self._process is None or self._process.wait(deadline - time.monotonic()):
            return self._process is not None
        self._process.kill()
        return False

    def reap(self, deadline: float) -> None:
        """As `kill`, and wait until the process is gone, and free what is held for it."""
        gone = self.kill(deadline)
        if self._process is not None and not gone:
            self._process.wait(LEAVE)
        if not gone and self._session.alive():
            import ray

            ray.kill(self._actor)
        if self._process is not None:
            self._process.close()

    def describe(self) -> dict[str, Any]:
        """Where the worker is and how it is reached."""
        home = self.home._asdict() if self.home is not None else {"node": None, "ip": None, "pid": None}
        return {**home, "transport": self.way, "why": self.why}

    @property
    def node(self) -> str | None:
        """The node on which it is, or to which it is on its way; None if Ray has still to choose one."""
        return self._bound_for if self.home is None else self.home.node

    @property
    def here(self) -> bool:
        """Whether it has a place on the caller's node."""
        return self.home is not None and self.home.node == self._session.node

    @property
    def unplaced(self) -> bool:  # type: ignore[override]
        return self.home is None and not self._modest

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
        except ray.exceptions.RayActorError as exc:
            forget_frames(exc)
            return True
        except NoPlace:
            if not self._accommodating:
                raise
            self._accommodating = False
            self._do_without()
        if self.home is not None and self.here:
            self._process = ForeignProcess(self.home.pid)
        return self.home is not None

    def _do_without(self) -> None:
        """Go on without a place of its own: move to a node of other workers, or wait for one, and say so."""
        import ray

        why = self._fleet.request.why()
        if self._fleet.on_lost_node == WAIT:
            self._placing.seconds = math.inf
            _log.warning("%s waits for a place: %s", self._who, why)
            return
        request = self._fleet.elsewhere()
        ray.kill(self._actor)
        self._start(request, request.actor_class(EnvActor), None)
        self._bound_for = request.bound_for
        _log.warning("%s finds no place of its own, so it shares the CPUs of others: %s", self._who, why)

    def _choose(self, batch: BatchColumns) -> SharedActor | StreamActor | CallActor:
        """Take the best way there is, or the one that is wanted, and say why."""
        self.why = "asked for" if self._fleet.transport != "auto" else self._why_not_shared(batch)
        if not self.why and isinstance(batch, SharedBatchColumns):
            self.way = "shared"
            return SharedActor(self._actor, len(self._shard), Names.new(batch.wake.name), self._fleet.spins())
        if self._fleet.transport != "calls":
            connection = self._connect()
            if connection is not None:
                self.way = "messages"
                return StreamActor(self._actor, self._shard, connection)
        self.way = "calls"
        return CallActor(self._actor, self._shard)

    def _why_not_shared(self, batch: BatchColumns) -> str:
        import ray

        if not self.here:
            return "on another node"
        if not isinstance(batch, SharedBatchColumns):
            return "the columns are not shared"
        wake = batch.wake.name if batch.named else None
        reason: str | None = ray.get(self._actor.reaches.remote(batch.segment.address, wake))
        return f"same node, but its memory cannot be opened ({reason})" if reason else ""

    def _connect(self) -> socket.socket | None:
        """Have the actor connect to this process. If it cannot, say so in `why`; and warn, once for each node."""
        import ray

        try:
            return self._fleet.reach.connect(self.node, ray.util.get_node_ip_address, self._invite)
        except OutOfReach as exc:
            self.why += f"; {exc}"
            if exc.known:
                return None
        warnings.warn(
            f"{self._who} is reached by actor calls, which costs a millisecond or more per step, and so are others of "
            f"its node: {self.why}. Let nodes connect to each other at any port, or pass transport='calls'",
            RuntimeWarning,
            stacklevel=2,
        )
        return None

    def _invite(self, invitation: Invitation) -> str | None:
        import ray

        problem: str | None = ray.get(self._actor.connect.remote(invitation))
        if problem is None:
            self._actor.prove.remote(invitation)
        return problem
