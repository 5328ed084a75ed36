"""The caller's side of the explorers: start, supervision, replacement, calls and end."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import cloudpickle
import numpy as np

from vecenvs.arguments import parse_indices
from vecenvs.backends.ray.actor import ActorLocation
from vecenvs.backends.ray.cluster import Session, import_paths, shorten
from vecenvs.backends.ray.foreign_process import ForeignProcess
from vecenvs.backends.ray.placement import Placement, Request
from vecenvs.batch.space_equality import same_space
from vecenvs.env_calls import get_attr, name_for
from vecenvs.errors import BackendUnavailable, ClosedError, VecEnvError
from vecenvs.replay import link
from vecenvs.replay.errors import ExplorerDied, ExplorerError
from vecenvs.replay.explorer import blank_stats
from vecenvs.replay.explorer_actor import ExplorerActor, ExplorerReport
from vecenvs.transport.pickling import loads
from vecenvs.transport.protocol import RemoteFailure
from vecenvs.worker.process import HeldSignals

PAUSE = 0.5  # seconds between reports of each explorer: the age of stats, the delay of errors
GRACE = 3.0  # seconds for explorers to close their envs


class ExplorerHandle:
    """An explorer's actor, the unanswered call to it (`make` at first, then `report`), and its last stats."""

    def __init__(self, index: int, generation: int, actor: Any, request: Request) -> None:
        self.index = index
        self.generation = generation
        self.actor = actor
        self.location: ActorLocation | None = None
        self.process: ForeignProcess | None = None
        self.placement = Placement(request, actor, f"explorer {index}")
        self.call: Any = None
        self.started = False
        self.failed = False
        self.stats = blank_stats(index)

    def set_location(self, location: ActorLocation, node: str) -> None:
        """Store where the actor runs; watch its process if that is on this `node`."""
        self.location = location
        self.process = link.watch_process(location, node)


class Explorers:
    """The explorers 0 to count - 1 of a Replay. A thread supervises them twice a second."""

    def __init__(
        self,
        session: Session,
        functions: tuple[Callable[..., Any], Callable[..., Any]],
        count: int,
        request: Request,
        arguments: Mapping[str, Any],
        seed: int | None,
        max_restarts: int,
    ) -> None:
        self._session = session
        try:
            self._functions = cloudpickle.dumps(functions, protocol=5)
        except Exception as exc:  # a __reduce__ may raise anything
            raise VecEnvError(
                f"make_vec or make_policy cannot be pickled ({exc}): create the objects that they need inside them"
            ) from exc
        self._paths = import_paths()
        self._request = request
        self._class = request.actor_class(ExplorerActor)
        self._arguments = dict(arguments)
        self._seed = seed
        self._max_restarts = max_restarts
        self._server: Any = None
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._errors: deque[Exception] = deque()
        self._last_error: Exception | None = None
        self.replaced = 0
        self._handles = [self._launch(index, 0) for index in range(count)]
        self._thread = threading.Thread(target=self._watch, name="vecenvs-explorers", daemon=True)
        try:
            for handle in self._handles:
                handle.set_location(handle.placement.wait(), session.node)
            for handle in self._handles:
                made = self._wait_until_made(handle)
                if handle.index == 0:
                    self.spaces: tuple[Any, Any] = made
                self._check_made(handle, made)
        except BaseException:
            self.stop()
            raise

    def __len__(self) -> int:
        return len(self._handles)

    def begin(self, server: Any) -> None:
        """Start exploring; the explorers send transitions to the server's actor."""
        self._server = server
        for handle in self._handles:
            handle.started = True
            link.result_of(handle.actor.begin.remote(server))
        self._thread.start()

    def raise_error(self) -> None:
        """Raise the oldest ExplorerError or ExplorerDied that was not raised yet."""
        if self._errors:
            raise self._errors.popleft()

    def check(self) -> None:
        """Raise like `raise_error`; if no explorer is left, raise the last error again."""
        self.raise_error()
        if self._last_error is not None and all(handle.failed for handle in self._handles):
            raise self._last_error

    def stats(self) -> list[dict[str, Any]]:
        """Return each explorer's last stats, its node and pid, and how often it was replaced."""
        with self._lock:
            return [
                {
                    **handle.stats,
                    "replaced": handle.generation,
                    "node": handle.location.node if handle.location else None,
                    "pid": handle.location.pid if handle.location else None,
                }
                for handle in self._handles
            ]

    def get_attr(self, name: str, indices: int | Sequence[int] | None = None) -> list[Any]:
        """Read an attribute of each Explorer.

        Args:
            name: a dotted name such as "policy.epsilon" or "vec.num_envs".
            indices: the explorers, or None for all.

        Returns:
            One value per explorer.

        Raises:
            AttributeError: there is no such attribute.
            TypeError: a value cannot be pickled.
        """
        return self.call(get_attr, name, indices=indices)

    def set_attr(self, name: str, value: Any, indices: int | Sequence[int] | None = None) -> None:
        """Set an existing attribute of each Explorer. Later replacements of explorers do not have the new value.

        Args:
            name: a dotted name.
            value: the value, which must be picklable.
            indices: the explorers, or None for all.

        Raises:
            AttributeError: there is no such attribute.
        """
        self.call(link.set_attr, name, value, indices=indices)

    def call(
        self, function: Callable[..., Any], *args: Any, indices: int | Sequence[int] | None = None, **kwargs: Any
    ) -> list[Any]:
        """Run `function(explorer, *args, **kwargs)` in each explorer's process, between two steps.

        Args:
            function: a function whose first argument is the Explorer.
            *args: further arguments.
            indices: the explorers, or None for all.
            **kwargs: keyword arguments.

        Returns:
            One result per explorer.

        Raises:
            TypeError: a result cannot be pickled.
        """
        import ray

        if self._stopping.is_set():
            raise ClosedError(name_for(function), of="Replay")
        check = partial(link.check_connection, self._session)
        check()
        pickled = link.pickle_call(function, args, kwargs)
        called = [self._handles[index] for index in parse_indices(indices, len(self._handles))]
        results = []
        for handle, answer in [(handle, handle.actor.call.remote(pickled)) for handle in called]:
            try:
                results.append(loads(link.result_of(answer, check)))
            except ray.exceptions.RayActorError as exc:
                raise VecEnvError(
                    f"explorer {handle.index} has died during the call ({shorten(str(exc))}): call again when it has "
                    "been replaced"
                ) from None
        return results

    def stop(self) -> None:
        """Close the envs and end the actors, within a bounded time. Later calls do nothing."""
        with HeldSignals():  # explorers that are not ended explore on, in a Ray that stays
            self._stopping.set()
            if self._thread.ident is not None:
                self._thread.join()
            handles, self._handles = self._handles, []
            if self._session.pid != os.getpid() or not self._session.alive():
                return
            import ray

            deadline = time.monotonic() + GRACE
            closing = [handle.actor.close.remote() for handle in handles if handle.location is not None]
            if closing:
                ray.wait(closing, num_returns=len(closing), timeout=GRACE)
            for handle in handles:
                ray.kill(handle.actor)
            for handle in handles:
                link.end_actor(handle.actor, handle.process, max(deadline, time.monotonic() + 0.5), self._session)

    def _launch(self, index: int, generation: int) -> ExplorerHandle:
        handle = ExplorerHandle(index, generation, self._class.remote(index, generation), self._request)
        seed = None if self._seed is None else np.random.SeedSequence(self._seed, spawn_key=(index, generation))
        handle.call = handle.actor.make.remote(self._functions, self._paths, {**self._arguments, "seed": seed})
        return handle

    def _wait_until_made(self, handle: ExplorerHandle) -> Any:
        import ray

        try:
            made = ray.get(handle.call)
        except ray.exceptions.RayActorError as exc:
            raise ExplorerDied(handle.index, f"while starting: {shorten(str(exc))}", None) from None
        handle.call = None
        return made

    def _check_made(self, handle: ExplorerHandle, made: tuple[Any, Any] | RemoteFailure) -> None:
        """Raise if the explorer could not be made, or if its spaces differ from explorer 0's."""
        if isinstance(made, RemoteFailure):
            raise ExplorerError.of(made)
        for which, theirs, ours in zip(("observation_space", "action_space"), made, self.spaces, strict=True):
            if not same_space(theirs, ours):
                raise ExplorerError(
                    handle.index,
                    f"explorer {handle.index} has {which} {theirs}, but explorer 0 has {ours}: let make_vec wrap the "
                    "envs so that all explorers of a Replay agree",
                )

    # The supervising thread

    def _watch(self) -> None:
        while not self._stopping.wait(PAUSE):
            for position, handle in enumerate(self._handles):
                if not self._session.alive():
                    return
                if not self._stopping.is_set():
                    self._poll(position, handle)

    def _poll(self, position: int, handle: ExplorerHandle) -> None:
        import ray

        if handle.failed:
            return
        if handle.call is None:
            handle.call = handle.actor.report.remote()
        try:
            if handle.location is None and not self._find_location(handle):
                return
            if not ray.wait([handle.call], timeout=0, fetch_local=False)[0]:
                return
            answer = ray.get(handle.call)
            handle.call = None
            if handle.started:
                self._take_report(handle, answer)
            else:
                self._check_made(handle, answer)
                handle.actor.begin.remote(self._server)
                handle.started = True
        except ray.exceptions.RayActorError as exc:
            if not self._stopping.is_set():
                self._replace(position, handle, shorten(str(exc)))
        except BackendUnavailable as exc:  # Ray finds no node for it
            ray.kill(handle.actor)
            self._fail(handle, exc)
        except Exception as exc:  # the explorer could not be made, or its answer cannot be unpickled
            self._fail(handle, exc)

    def _find_location(self, handle: ExplorerHandle) -> bool:
        location = handle.placement.location(0)
        if location is not None:
            with self._lock:
                handle.set_location(location, self._session.node)
        return location is not None

    def _take_report(self, handle: ExplorerHandle, report: ExplorerReport) -> None:
        with self._lock:
            handle.stats = report.stats
        if report.failure is not None:
            self._fail(handle, ExplorerError.of(report.failure))

    def _replace(self, position: int, handle: ExplorerHandle, reason: str) -> None:
        if handle.process is not None:
            handle.process.close()
        if self.replaced >= self._max_restarts:
            self._fail(handle, ExplorerDied(handle.index, reason, self._max_restarts))
            return
        self.replaced += 1
        made = self._launch(handle.index, handle.generation + 1)
        with self._lock:
            self._handles[position] = made

    def _fail(self, handle: ExplorerHandle, error: Exception) -> None:
        handle.failed = True
        self._last_error = error
        self._errors.append(error)
