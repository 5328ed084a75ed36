"""Distributed replay in one object: server, explorers, and batches for the learner."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from vecenvs.arguments import arguments_of, check_arguments, parse_int, parse_limit
from vecenvs.backends.ray.cluster import Session, check_init_kwargs, check_ray
from vecenvs.backends.ray.placement import Request, check_options
from vecenvs.pool.finalizers import Finalizer, call_all
from vecenvs.replay import link
from vecenvs.replay.explorer import Policy
from vecenvs.replay.explorers import Explorers
from vecenvs.replay.server import ReplayServer
from vecenvs.replay.stoppable import Stoppable
from vecenvs.replay.storage import import_cpprb
from vecenvs.vec_env import VecEnv


class Replay(Stoppable):
    """`num_explorers` explorers which fill one buffer, and the batches drawn from it.

    Each explorer is a Ray actor with a VecEnv and a policy. It sends fragments of transitions, with at most two
    unanswered, and gets the newest weights after each. An explorer that dies is replaced. If its env or policy raises,
    it stops, and the next `sample` or `stats` raises the error. Like RayVecEnv, a Replay uses the Ray that is there,
    and starts one otherwise.

    Args:
        make_vec: `make_vec(explorer)` makes an explorer's VecEnv, in any autoreset mode. Functions may be closures. A
            SubprocVecEnv needs start_method="forkserver", because Ray does not support fork.
        make_policy: `make_policy(vec, explorer)` makes an explorer's `Policy`.
        num_explorers: the number of explorers.
        capacity: the number of transitions that the buffer holds.
        n_step: the number of steps in a transition.
        gamma: the discount per step, from 0 to 1.
        fragment_size: the number of transitions in a fragment, approximately.
        seed: seeds uniform draws, and the envs of each explorer and replacement differently.
        max_restarts: the number of replacements in all.
        ray_init_kwargs: arguments for `ray.init`, as for RayVecEnv.
        explorer_options: arguments for the explorers' `.options()`. num_cpus is 1 unless given, or 0 on a Ray started
            here.
        placement: the explorers' placement, as for RayVecEnv.
        ready_timeout: seconds for each actor to start; None means no limit.
        **server: arguments of ReplayServer: batch_size, min_size, samples_per_insert, tolerance, prioritized, alpha,
            beta, prefetch, restore, server_options.

    Raises:
        ValueError: an argument is out of range, or a space has a part without a fixed shape.
        BackendUnavailable: Ray or cpprb is not installed, or Ray cannot start an actor.
        ExplorerError: a VecEnv or a policy cannot be made.
        ExplorerMismatch: the VecEnvs' spaces differ.
    """

    def __init__(
        self,
        make_vec: Callable[[int], VecEnv],
        make_policy: Callable[[VecEnv, int], Policy],
        num_explorers: int,
        capacity: int,
        *,
        n_step: int = 1,
        gamma: float = 0.99,
        fragment_size: int = 256,
        seed: int | None = None,
        max_restarts: int = 10,
        ray_init_kwargs: Mapping[str, Any] | None = None,
        explorer_options: Mapping[str, Any] | None = None,
        placement: Any = None,
        ready_timeout: float | None = 60.0,
        **server: Any,
    ) -> None:
        check_ray()
        import_cpprb()
        known = arguments_of(Replay) | arguments_of(ReplayServer)
        check_arguments("Replay", server, [name for name in known if name not in ("observation_space", "action_space")])
        parse_int("num_explorers", num_explorers, 1)
        arguments = {"n_step": n_step, "gamma": gamma, "fragment_size": parse_int("fragment_size", fragment_size, 1)}
        parse_int("max_restarts", max_restarts, 0)
        waits = parse_limit(ready_timeout, "ready_timeout")
        check_init_kwargs(ray_init_kwargs)
        check_options(explorer_options, placement, "explorer_options")
        self._session = Session(num_explorers + 1, ray_init_kwargs)  # Ray starts this many processes ahead
        self._version = 0
        self._weights: Any = None
        self._publishing: Any = None
        parts: list[Any] = [self._session.release]
        try:
            options = {"num_cpus": 0 if self._session.own else 1, **(explorer_options or {})}
            request = Request(options, placement, self._session.node, waits, "explorer_options")
            functions = (make_vec, make_policy)
            self.explorers = Explorers(self._session, functions, num_explorers, request, arguments, seed, max_restarts)
            parts.insert(0, self.explorers.stop)
            self.server = ReplayServer(
                *self.explorers.spaces,
                capacity,
                n_step=n_step,
                gamma=gamma,
                seed=seed,
                ready_timeout=ready_timeout,
                **server,
            )
            parts.insert(1, self.server.stop)
            self.explorers.begin(self.server.actor)
        except BaseException:
            call_all(parts)
            raise
        self.server.finalizer.cancel()
        self._finalizer, self._parts = Finalizer(self, type(self).stop, parts), parts
        self.observation_space, self.action_space = self.explorers.spaces
        self.schema = self.server.schema
        self.num_explorers = num_explorers
        self.closed = False

    @property
    def beta(self) -> float:
        """The exponent of the weights in prioritised batches; a new value applies from the next call to the server."""
        return self.server.beta

    @beta.setter
    def beta(self, value: float) -> None:
        self.server.beta = value

    def sample(self, batch_size: int | None = None, timeout: float | None = None) -> dict[str, Any]:
        """Return a batch; wait for `min_size` and the rate limiter.

        Args:
            batch_size: the number of rows. A change discards the prefetched batches.
            timeout: seconds to wait, or None for no limit.

        Returns:
            A batch as described at ReplayBuffer. The arrays belong to the caller.

        Raises:
            ExplorerError: an env or policy has raised. Each error is raised once, and again if no explorer is left.
            ExplorerDied: an explorer has died after `max_restarts` replacements; likewise.
            SampleTimeout: there is no batch in time; a later `sample` still returns it.
            ValueError: `batch_size` is more than is stored, or more than capacity or tolerance allow.
            ServerDied: the server has died.
            ClosedError: the Replay has been stopped.
        """
        self._check_open("sample")
        self.explorers.raise_error()
        return self.server.sample_checking(batch_size, timeout, self._check)

    def update_priorities(self, indexes: Any, priorities: Any) -> None:
        """Set the priorities of sampled transitions; overwritten ones are ignored, and counted in the stats.

        This does not wait, except for the eighth update before.

        Args:
            indexes: the `indexes` of a batch, int64 (n,).
            priorities: n numbers from 0 on.

        Raises:
            ValueError: the buffer is not prioritised, or a priority is no number from 0 on.
        """
        self._check_open("update_priorities")
        self.server.update_priorities(indexes, priorities)

    def publish(self, weights: Any) -> int:
        """Publish weights; explorers get them after their current fragment.

        Args:
            weights: anything that can be pickled; NumPy arrays are fastest. They may be changed after the call.

        Returns:
            The version of the weights, from 1 on.
        """
        import ray

        self._check_open("publish")
        self.server.check()
        if self._publishing is not None:
            link.checked_server_result(self._publishing, self.server.check)
        self._version += 1
        self._weights = ray.put(weights)
        self._publishing = self.server.actor.publish.remote(self._version, [self._weights])
        return self._version

    def insert(self, transitions: Mapping[str, Any]) -> None:
        """Store transitions at once; the rate limiter counts them but does not delay them.

        Args:
            transitions: a dict of columns, structured as a batch. `explorer` is -1 unless given, `episode` 0.

        Raises:
            ValueError: a field is missing, unknown, or has another shape.
            TypeError: a field's dtype would lose values.
        """
        self._check_open("insert")
        self.server.insert(transitions)

    def stats(self) -> dict[str, Any]:
        """Return the counters of server and explorers.

        Returns:
            The dict of ReplayServer.stats; `replaced`, the number of replacements; and `explorers`, one dict each, up
            to a second old: index, steps, transitions, episodes, version, mean_return and mean_length over the last 100
            episodes, replaced, node, pid.

        Raises:
            ExplorerError: an env or policy has raised.
            ExplorerDied: an explorer has died after `max_restarts` replacements.
        """
        self._check_open("stats")
        self.explorers.raise_error()
        return {**self.server.stats(), "replaced": self.explorers.replaced, "explorers": self.explorers.stats()}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all transitions to an .npz file without pickles.

        Args:
            path: the file.
        """
        self._check_open("save")
        self.server.save(path)

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Replace the stored transitions by those of a file from `save`.

        Args:
            path: the file.

        Raises:
            ValueError: the file is damaged, has another layout, or more transitions than fit. Nothing is changed.
        """
        self._check_open("restore")
        self.server.restore(path)

    def stop(self) -> None:
        """End explorers and server within a bounded time, also after an error. Later calls do nothing."""
        if not self.closed:
            self.closed = True
            self._weights = None
            if self._finalizer.cancel():
                call_all(self._parts)

    def _check(self) -> None:
        self.server.check()
        self.explorers.check()
