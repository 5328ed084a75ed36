"""The caller's side of the server: one object that starts it, samples from it, asks it and ends it."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
from gymnasium import spaces

from vecenvs.arguments import parse_int, parse_limit, parse_timeout
from vecenvs.backends.ray.cluster import Session, check_init_kwargs, check_ray, import_paths
from vecenvs.backends.ray.foreign_process import ForeignProcess
from vecenvs.backends.ray.placement import Placing, Request, check_options
from vecenvs.replay import link
from vecenvs.replay.blocks import BlockLayout
from vecenvs.replay.buffer import ReplayBuffer
from vecenvs.replay.ending import Ending, end_all
from vecenvs.replay.errors import StoppedError
from vecenvs.replay.inserter import Inserter
from vecenvs.replay.limiter import RateLimiter
from vecenvs.replay.schema import Schema
from vecenvs.replay.server_actor import ServerActor
from vecenvs.replay.storage import import_cpprb
from vecenvs.replay.stream import Stream

BLOCK_BYTES = 2 * 2**20
MOST_BATCHES = {False: 64, True: 16}  # by whether priorities count: those change with every update
UPDATES = 8  # updates of priorities that may be unanswered

Self = TypeVar("Self", bound="ReplayServer")


class ReplayServer:
    """A replay buffer in a Ray actor on the caller's node, for transitions between two spaces.

    `capacity`, `prioritized`, `alpha`, `n_step` and `gamma` are ReplayBuffer's. `batch_size` is what `sample` gives
    unless told otherwise; nothing is sampled before `min_size` transitions (`batch_size` if None) are stored.
    `samples_per_insert` and `tolerance` are RateLimiter's, the tolerance at least `batch_size`, and
    `prefetch` * `batch_size` if None.

    `prefetch` batches are drawn by one call, and two calls are always under way: a batch was drawn at most 3 * prefetch
    batches before it is given. By that much it may lag behind what was inserted, and behind updated priorities. None
    takes as many as fit 2 MiB, 64 at most, 16 if prioritised; 1 lags least. `seed` makes uniform draws repeatable.

    Uses Ray as RayVecEnv does; `server_options` go to the actor's `.options()`. `restore` is a file of `save`.
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        capacity: int,
        *,
        batch_size: int = 256,
        min_size: int | None = None,
        samples_per_insert: float | None = None,
        tolerance: float | None = None,
        prioritized: bool = False,
        alpha: float = 0.6,
        beta: float = 0.4,
        n_step: int = 1,
        gamma: float = 0.99,
        prefetch: int | None = None,
        seed: int | None = None,
        restore: str | os.PathLike[str] | None = None,
        ray_init_kwargs: Mapping[str, Any] | None = None,
        server_options: Mapping[str, Any] | None = None,
        ready_timeout: float | None = 60.0,
    ) -> None:
        self.closed = True  # until everything stands
        check_ray()
        import_cpprb()
        self.schema = Schema(observation_space, action_space, n_step, gamma)
        self.batch_size = parse_int("batch_size", batch_size, 1)
        self.beta = beta
        self._prioritized = prioritized
        self._layout = BlockLayout(self.schema, prioritized)
        self._prefetch = None if prefetch is None else parse_int("prefetch", prefetch, 1)
        limiter = self._limiter_arguments(parse_int("capacity", capacity, 1), samples_per_insert, min_size, tolerance)
        buffer: dict[str, Any] = {"prioritized": prioritized, "alpha": alpha, "n_step": n_step, "gamma": gamma}
        buffer["seed"] = None if prioritized else seed
        ReplayBuffer(observation_space, action_space, 1, **buffer)  # raises here what it would raise there
        waits = parse_limit(ready_timeout, "ready_timeout")
        check_init_kwargs(ray_init_kwargs)
        check_options(server_options, None, "server_options")
        self._session = Session(None, ray_init_kwargs)
        try:
            options = {"num_cpus": 0 if self._session.own else 1, **(server_options or {})}
            request = Request(options, "local", self._session.node, waits, "server_options")
            made = request.actor_class(ServerActor)
            self.actor = made.remote((observation_space, action_space), capacity, buffer, limiter, import_paths())  # type: ignore[attr-defined]
            home = Placing(request, self.actor, "the replay server").wait()
        except BaseException:
            if hasattr(self, "actor"):
                link.end(self.actor, None, 0.0, self._session)
            self._session.release()
            raise
        process = link.watched(home, self._session.node)
        self._updates: deque[Any] = deque()
        self._streams = 0
        self._own_inserter = Inserter(self.actor, self.schema)
        self._parts: list[Callable[[], None]] = [
            partial(_end, self.actor, process, self._session),
            self._session.release,
        ]
        self.ending = Ending(self, self._parts)
        self.closed = False
        try:
            self._stream = self._new_stream(self.batch_size)
            if restore is not None:
                self.restore(restore)
        except BaseException:
            self.stop()
            raise

    def sample(self, batch_size: int | None = None, timeout: float | None = None) -> dict[str, Any]:
        """Give a batch: a dict of arrays as ReplayBuffer's, the caller's own.

        Waits for `min_size` and the rate limiter; SampleTimeout after `timeout` seconds. Another batch size than the
        last one drops what was drawn ahead. ValueError if more is asked for than is stored; ServerDied, ClosedError.
        """
        return self.sample_checking(batch_size, timeout, self.check)

    def sample_checking(
        self, batch_size: int | None, timeout: float | None, check: Callable[[], None]
    ) -> dict[str, Any]:
        """As `sample`; `check` is called five times a second while it waits, and may raise."""
        self._check_open("sample")
        size = self.batch_size if batch_size is None else batch_size
        if size != self._stream.batch_size:
            self._change_batch_size(size)
        return self._stream.take(self.beta, parse_timeout(timeout), check)

    def update_priorities(self, indexes: Any, priorities: Any) -> None:
        """Give sampled transitions new priorities. Does not wait, unless for the eighth update before.

        Transitions that are overwritten by now are left out, and counted in `stats()["ignored_priorities"]`. What is
        wrong with them may be raised by a later call.
        """
        self._check_open("update_priorities")
        if not self._prioritized:
            raise ValueError("update_priorities on a uniform buffer: make it with prioritized=True")
        given = np.asarray(priorities, np.float32)
        if np.shape(indexes) != given.shape:
            raise ValueError(f"priorities have shape {given.shape}, indexes {np.shape(indexes)}: give one each")
        self.check()
        self._updates.append(self.actor.update_priorities.remote(np.asarray(indexes), given))
        while len(self._updates) > UPDATES:
            link.get(self._updates.popleft())

    def insert(self, transitions: Mapping[str, Any]) -> None:
        """Store the caller's own transitions (`explorer` is -1 unless given).

        They come in at once, and count: who samples cannot wait for samples. So they should be few, or come first.
        """
        self._check_open("insert")
        self._ask("insert_at_once", self._own_inserter.pack(transitions))

    def inserter(self, explorer: int = -1) -> Inserter:
        """Give what other actors and tasks, or a loop of the caller's, insert with."""
        self._check_open("inserter")
        return Inserter(self.actor, self.schema, explorer)

    def stats(self) -> dict[str, Any]:
        """Give stored, capacity, inserted, sampled (drawn ahead included), waiting_inserts, waiting_samples,
        ignored_priorities, version, and how batches come: transport, "shared" or "messages", and why.
        """
        why = self._stream.why
        return {**self._ask("stats"), "transport": "messages" if why else "shared", "why": why}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything stored to a file on the server's node, the caller's. The server does only that meanwhile."""
        self._ask("save", os.path.abspath(path))

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Take over what `save` wrote. ValueError that names the difference if its layout is another."""
        self._ask("restore", os.path.abspath(path))
        self._stream.give_back()

    def get_attr(self, name: str) -> Any:
        """Read an attribute of the server by a dotted name: "buffer.inserted", "limiter.samples_per_insert"."""
        return self._ask("get_attr", name)

    def set_attr(self, name: str, value: Any) -> None:
        """Write an attribute of the server by a dotted name. AttributeError if it has none of that name."""
        self._ask("set_attr", name, value)

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run `function(server, *args, **kwargs)` where the server lives; give what it returns."""
        return self._ask("call", link.pickled_call(function, args, kwargs))

    def check(self) -> None:
        """Raise ServerDied if the server, or the connection to Ray, is gone."""
        link.check_connection(self._session)

    def stop(self) -> None:
        """End the server. What it stores is gone. Repeatable."""
        if self.closed:
            return
        self.closed = True
        self.ending.cancel()
        if self._session.pid == os.getpid():
            end_all(self._parts)

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _ask(self, method: str, *args: Any) -> Any:
        self._check_open(method)
        self.check()
        return link.get_patiently(getattr(self.actor, method).remote(*args), self.check)

    def _check_open(self, what: str) -> None:
        if self.closed:
            raise StoppedError(what)

    def _limiter_arguments(
        self, capacity: int, samples_per_insert: float | None, min_size: int | None, tolerance: float | None
    ) -> dict[str, Any]:
        size = self.batch_size if min_size is None else parse_int("min_size", min_size, 1)
        if max(size, self.batch_size) > capacity:
            raise ValueError(f"capacity={capacity} is less than min_size={size} or batch_size={self.batch_size}")
        room = self._batches(self.batch_size) * self.batch_size if tolerance is None else tolerance
        if samples_per_insert is not None and room < self.batch_size:
            raise ValueError(
                f"tolerance={room} samples is less than a batch of {self.batch_size}: it could never be drawn"
            )
        arguments: dict[str, Any] = {"samples_per_insert": samples_per_insert, "min_size": size, "tolerance": room}
        RateLimiter(**arguments)  # as above
        return arguments

    def _change_batch_size(self, size: int) -> None:
        tolerance = self._ask("get_attr", "limiter.tolerance")
        if parse_int("batch_size", size, 1) > self._ask("get_attr", "buffer.capacity"):
            raise ValueError(f"a batch of {size} is more than capacity: it could never be drawn")
        if self._ask("get_attr", "limiter.samples_per_insert") is not None and size > tolerance:
            raise ValueError(f"a batch of {size} is more than tolerance={tolerance} samples: it could never be drawn")
        self._stream.give_back()
        self._stream = self._new_stream(size)

    def _new_stream(self, batch_size: int) -> Stream:
        self._streams += 1
        return Stream(self.actor, self._layout, batch_size, self._batches(batch_size), self._streams)

    def _batches(self, batch_size: int) -> int:
        """How many batches a call is for."""
        fitting = max(min(BLOCK_BYTES // (self._layout.row_bytes * batch_size), MOST_BATCHES[self._prioritized]), 1)
        return fitting if self._prefetch is None else self._prefetch


def _end(actor: Any, process: ForeignProcess | None, session: Session) -> None:
    link.end(actor, process, time.monotonic(), session)
