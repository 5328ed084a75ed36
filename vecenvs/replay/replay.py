"""Distributed replay in one object: server, explorers, and batches for the learner."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from vecenvs.arguments import arguments_of, check_arguments, parse_int, parse_limit
from vecenvs.backends.ray.cluster import Session, check_init_kwargs, check_ray
from vecenvs.backends.ray.placement import Request, check_options
from vecenvs.pool.finalizers import Part, call_all
from vecenvs.replay import link
from vecenvs.replay.explorer import Policy
from vecenvs.replay.explorers import Explorers
from vecenvs.replay.server import ReplayServer
from vecenvs.replay.storage import import_cpprb
from vecenvs.vec_env import VecEnv


class Replay(ReplayServer):
    """`num_explorers` explorers which fill one buffer, and the batches drawn from it.

    Each explorer is a Ray actor with a VecEnv and a policy. It sends fragments of transitions, with at most two
    unanswered, and gets the newest weights with the answers. An explorer that dies is replaced. If its env or policy
    raises, it stops, and the next `sample` or `stats` raises the error. Like RayVecEnv, a Replay uses the Ray that is
    there, and starts one otherwise.

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
        **server: arguments of ReplayServer: batch_size, min_size, samples_per_insert, prioritized, alpha, beta,
            prefetch, restore, server_options.

    Raises:
        ValueError: an argument is out of range, or a space has a part without a fixed shape.
        BackendUnavailable: Ray or cpprb is not installed, or Ray cannot start an actor.
        ExplorerError: a VecEnv or a policy cannot be made, or the VecEnvs' spaces differ.
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
        session = Session(num_explorers + 1, ray_init_kwargs)  # Ray starts this many processes ahead
        parts: list[Part] = [session.release]
        try:
            options = {"num_cpus": 0 if session.own else 1, **(explorer_options or {})}
            request = Request(options, placement, session.node, waits, "explorer_options")
            functions = (make_vec, make_policy)
            self.explorers = Explorers(session, functions, num_explorers, request, arguments, seed, max_restarts)
            parts.insert(0, self.explorers.stop)
            super().__init__(
                *self.explorers.spaces,
                capacity,
                n_step=n_step,
                gamma=gamma,
                seed=seed,
                ready_timeout=ready_timeout,
                **server,
            )
        except BaseException:
            call_all(parts)
            raise
        self._parts[:] = [self.explorers.stop, *self._parts, session.release]
        self.num_explorers = num_explorers
        self._version = 0
        self._weights: Any = None
        self._publishing: Any = None
        try:
            self.explorers.begin(self.actor)
        except BaseException:
            self.stop()
            raise

    def publish(self, weights: Any) -> int:
        """Publish weights; explorers get them with the server's answers, usually one to two fragments later.

        Args:
            weights: anything that can be pickled; NumPy arrays are fastest. They may be changed after the call.

        Returns:
            The version of the weights, from 1 on.
        """
        import ray

        self._check_open("publish")
        self._check_connection()
        if self._publishing is not None:
            link.server_result(self._publishing, self._check_connection)
        self._version += 1
        self._weights = ray.put(weights)
        self._publishing = self.actor.publish.remote(self._version, [self._weights])
        return self._version

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
        self._check_explorers()
        return {**super().stats(), "replaced": self.explorers.replaced, "explorers": self.explorers.stats()}

    def stop(self) -> None:
        """End explorers and server within a bounded time, also after an error. Later calls do nothing."""
        self._weights = None
        super().stop()

    def _check_explorers(self) -> None:
        self.explorers.raise_error()

    def _check_wait(self) -> None:
        super()._check_wait()
        self.explorers.check()
