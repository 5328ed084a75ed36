"""The caller's side of the server: start, samples, calls and end."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import numpy as np
from gymnasium import spaces

from vecenvs.arguments import parse_int, parse_limit, parse_timeout
from vecenvs.backends.ray.cluster import Session, check_init_kwargs, check_ray, import_paths
from vecenvs.backends.ray.placement import Placement, Request, check_options
from vecenvs.env_calls import get_attr, name_for
from vecenvs.errors import ClosedError
from vecenvs.pool.finalizers import Finalizer, Part, call_all
from vecenvs.replay import link
from vecenvs.replay.buffer import ReplayBuffer, parse_beta
from vecenvs.replay.inserter import Inserter
from vecenvs.replay.limiter import RateLimiter
from vecenvs.replay.prefetcher import Prefetcher
from vecenvs.replay.server_actor import ServerActor
from vecenvs.replay.storage import import_cpprb
from vecenvs.transport.pickling import loads
from vecenvs.worker.process import HeldSignals

Self = TypeVar("Self", bound="ReplayServer")

CALL_BYTES = 2 * 2**20  # the size of an answer by default
MOST_PREFETCHED = {False: 64, True: 16}  # if prioritised: fewer, since priorities change with every update
MOST_UPDATES = 8  # updates of priorities that may be unanswered


class ReplayServer:
    """A replay buffer in a Ray actor on the caller's node, without explorers. Without a Ray it starts one.

    Args:
        observation_space: a space whose parts all have a fixed shape.
        action_space: likewise.
        capacity: the number of transitions that the buffer holds.
        batch_size: the number of rows of a batch.
        min_size: nothing is sampled before this many transitions, or a batch of them, are stored.
        samples_per_insert: the ratio kept between samples and inserts, give or take one call of `prefetch` batches;
            None means no limit.
        prioritized: draw in proportion to priority to the power `alpha`, in place of uniformly.
        alpha: from 0 on.
        beta: the exponent of the weights in prioritised batches.
        n_step: the number of steps in a transition.
        gamma: the discount per step, from 0 to 1.
        prefetch: batches per call. Two calls are always unanswered, so a batch is drawn up to 3 * `prefetch` batches
            before it is returned, and lags that far behind inserts and new priorities. None means as many as fit 2 MiB,
            at most 64, or 16 if prioritised.
        seed: makes uniform draws repeatable.
        restore: a file from `save` to begin with.
        ray_init_kwargs: arguments for `ray.init`, as for RayVecEnv.
        server_options: arguments for the actor's `.options()`. num_cpus is 1 unless given, or 0 on a Ray started here.
        ready_timeout: seconds for the actor to start; None means no limit.

    Raises:
        ValueError: an argument is out of range, or a space has a part without a fixed shape.
        BackendUnavailable: Ray or cpprb is not installed, or Ray cannot start the actor.
    """

    closed = True  # until it has started

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        capacity: int,
        *,
        batch_size: int = 256,
        min_size: int = 1,
        samples_per_insert: float | None = None,
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
        check_ray()
        import_cpprb()
        buffer: dict[str, Any] = {"prioritized": prioritized, "alpha": alpha, "n_step": n_step, "gamma": gamma}
        buffer["seed"] = None if prioritized else seed
        self.observation_space, self.action_space = observation_space, action_space
        checked = ReplayBuffer(observation_space, action_space, 1, **buffer)  # raises errors here, not in the actor
        self.schema = checked.schema
        self.batch_size = parse_int("batch_size", batch_size, 1)
        self.beta = parse_beta(beta)
        self._prioritized = prioritized
        size = max(parse_int("min_size", min_size, 1), self.batch_size)
        if size > parse_int("capacity", capacity, 1):
            raise ValueError(f"capacity={capacity} is less than min_size={min_size} or batch_size={self.batch_size}")
        if prefetch is None:
            fitting = CALL_BYTES // (8 * checked.drawn_words * self.batch_size)
            prefetch = max(min(fitting, MOST_PREFETCHED[prioritized]), 1)
        batches = parse_int("prefetch", prefetch, 1)
        limiter = samples_per_insert, size, batches * self.batch_size
        RateLimiter(*limiter)  # raises errors here
        waits = parse_limit(ready_timeout, "ready_timeout")
        check_init_kwargs(ray_init_kwargs)
        check_options(server_options, None, "server_options")
        self._session = Session(None, ray_init_kwargs)
        self._parts: list[Part] = [self._session.release]
        self._finalizer = Finalizer(self, type(self).stop, [partial(call_all, self._parts)])  # more may be added
        self.closed = False
        try:
            options = {"num_cpus": 0 if self._session.own else 1, **(server_options or {})}
            request = Request(options, "local", self._session.node, waits, "server_options")
            made = request.actor_class(ServerActor)
            self.actor = made.remote((observation_space, action_space), capacity, buffer, limiter, import_paths())
            self._parts.insert(0, partial(link.end_actor, self.actor, None, 0.0, self._session))
            process = link.watch_process(Placement(request, self.actor, "the replay server").wait(), self._session.node)
            self._parts[0] = partial(link.end_actor, self.actor, process, 0.0, self._session)
            self._updates: deque[Any] = deque()
            self._own_inserter = Inserter(self.actor, self.schema)
            self._prefetcher = Prefetcher(self.actor, self.schema, checked.drawn_words, self.batch_size, batches)
            if restore is not None:
                self.restore(restore)
        except BaseException:
            self.stop()
            raise

    def sample(self, timeout: float | None = None) -> dict[str, Any]:
        """Return a batch; wait for `min_size` and the rate limiter.

        Args:
            timeout: seconds to wait, or None for no limit.

        Returns:
            A batch as described at ReplayBuffer. The arrays belong to the caller.

        Raises:
            SampleTimeout: there is no batch in time; a later `sample` still returns it.
            ServerDied: the server has died.
            ClosedError: the server has been stopped.
            ExplorerError: an env or policy of a Replay has raised. Each error is raised once, and again if no explorer
                is left.
            ExplorerDied: an explorer of a Replay has died after `max_restarts` replacements; likewise.
        """
        self._check_open("sample")
        self._check_explorers()
        return self._prefetcher.take(parse_beta(self.beta), parse_timeout(timeout), self._check_wait)

    def update_priorities(self, indexes: Any, priorities: Any) -> None:
        """Set the priorities of sampled transitions.

        Overwritten transitions are ignored, and counted in `stats()["ignored_priorities"]`. This does not wait, except
        for the eighth update before; errors of the server are raised by a later call.

        Args:
            indexes: the `indexes` of a batch, int64 (n,).
            priorities: n numbers from 0 on.

        Raises:
            ValueError: the buffer is not prioritised, or a priority is no number from 0 on.
        """
        self._check_open("update_priorities")
        if not self._prioritized:
            raise ValueError("update_priorities on a uniform buffer: make it with prioritized=True")
        given = np.asarray(priorities, np.float32)
        if np.shape(indexes) != given.shape:
            raise ValueError(f"priorities have shape {given.shape}, indexes {np.shape(indexes)}: give one each")
        self._check_connection()
        self._updates.append(self.actor.update_priorities.remote(np.asarray(indexes), given))
        while len(self._updates) > MOST_UPDATES:
            link.server_result(self._updates.popleft())

    def insert(self, transitions: Mapping[str, Any]) -> None:
        """Store transitions at once.

        The rate limiter counts them but does not delay them. Insert few of them, or insert them before sampling.

        Args:
            transitions: a dict of columns, structured as a batch. `explorer` is -1 unless given, `episode` 0.

        Raises:
            ValueError: a field is missing, unknown, or has another shape.
            TypeError: a field's dtype would lose values.
        """
        self._check_open("insert")
        self._call_server("insert_at_once", self._own_inserter.pack(transitions))

    def inserter(self, explorer: int = -1) -> Inserter:
        """Make an inserter for other actors and tasks, or for the caller.

        Args:
            explorer: the field `explorer` of its transitions, unless they have one.

        Returns:
            An Inserter, which can be pickled.
        """
        self._check_open("inserter")
        return Inserter(self.actor, self.schema, explorer)

    def stats(self) -> dict[str, Any]:
        """Return the server's counters.

        Returns:
            A dict: stored, capacity, inserted, sampled (with prefetched rows), waiting_inserts, waiting_samples,
            ignored_priorities, version of the weights; transport, "shared" or "messages"; why, the reason for messages.
        """
        why = self._prefetcher.why
        return {**self._call_server("stats"), "transport": "messages" if why else "shared", "why": why}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all transitions to an .npz file without pickles; other calls to the server wait meanwhile.

        Args:
            path: the file, on the server's node, which is the caller's.
        """
        self._call_server("save", os.path.abspath(path))

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Replace the stored transitions by those of a file.

        Args:
            path: a file from `save`, or from `ReplayBuffer.save`.

        Raises:
            ValueError: the file is damaged, has another layout, or more transitions than fit. Nothing is changed.
        """
        self._prefetcher.restart(self._call_server("restore", os.path.abspath(path)))

    def get_attr(self, name: str) -> Any:
        """Read an attribute of the server.

        Args:
            name: a dotted name such as "buffer.inserted" or "limiter.samples_per_insert".

        Returns:
            The value.

        Raises:
            AttributeError: there is no such attribute.
            TypeError: it cannot be pickled.
        """
        return self.call(get_attr, name)

    def set_attr(self, name: str, value: Any) -> None:
        """Set an existing attribute of the server.

        Args:
            name: a dotted name.
            value: the value, which must be picklable.

        Raises:
            AttributeError: there is no such attribute.
        """
        self.call(link.set_attr, name, value)

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run `function(server, *args, **kwargs)` in the server's process.

        Args:
            function: a function whose first argument has the attributes `buffer` and `limiter`.
            *args: further arguments.
            **kwargs: keyword arguments.

        Returns:
            The result of the function.

        Raises:
            TypeError: the result cannot be pickled.
        """
        self._check_open(name_for(function))
        return loads(self._call_server("call", link.pickle_call(function, args, kwargs)))

    def stop(self) -> None:
        """End the server; its transitions are lost. Later calls do nothing."""
        if self.closed:
            return
        with HeldSignals():
            self.closed = True
            if self._finalizer.cancel():
                call_all(self._parts)

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def _check_open(self, what: str) -> None:
        if self.closed:
            raise ClosedError(what, of=type(self).__name__)

    def _check_connection(self) -> None:
        link.check_connection(self._session)

    def _check_explorers(self) -> None:
        """Raise what has stopped an explorer; a ReplayServer has none."""

    def _check_wait(self) -> None:
        """Raise if there is no use in waiting for a batch."""
        self._check_connection()

    def _call_server(self, method: str, *args: Any) -> Any:
        self._check_open(method)
        self._check_connection()
        return link.server_result(getattr(self.actor, method).remote(*args), self._check_connection)
