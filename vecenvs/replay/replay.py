"""The one object of distributed replay: it starts server and explorers, feeds the learner, and ends everything."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, TypeVar

from vecenvs.arguments import arguments_of, check_arguments, parse_int, parse_limit
from vecenvs.backends.ray.cluster import Session, check_init_kwargs, check_ray
from vecenvs.backends.ray.placement import Request, check_options
from vecenvs.replay import link
from vecenvs.replay.ending import Ending, end_all
from vecenvs.replay.errors import StoppedError
from vecenvs.replay.explorer import Policy
from vecenvs.replay.explorers import Explorers
from vecenvs.replay.server import ReplayServer
from vecenvs.replay.storage import import_cpprb
from vecenvs.vec_env import VecEnv

Self = TypeVar("Self", bound="Replay")


class Replay:
    """`num_explorers` explorers that fill one buffer of `capacity` transitions, and the batches drawn from it.

    Each explorer is a Ray actor. It makes its VecEnv by `make_vec(explorer)`, any VecEnv in any autoreset mode, and its
    policy by `make_policy(vec, explorer)`: see `Policy`. The functions are pickled by value where need be, so closures
    are fine. Ray does not support fork in its workers: a SubprocVecEnv there takes start_method="forkserver".

    Explorers send fragments of about `fragment_size` transitions, at most two unanswered, and pull weights after each.
    One that dies is replaced, up to `max_restarts` times in all; one whose env or policy raises stops, and the error
    reaches the learner by the next `sample` or `stats`. `seed` seeds the envs, each explorer and replacement another
    way, and uniform draws.

    What concerns the server (`batch_size`, `min_size`, `samples_per_insert`, `tolerance`, `prioritized`, `alpha`,
    `beta`, `n_step`, `gamma`, `prefetch`, `restore`, `server_options`) is ReplayServer's. Ray is used as by RayVecEnv;
    `explorer_options` go to the actors' `.options()` (num_cpus is 1 unless given, 0 on a Ray started here), `placement`
    is theirs.
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
        self.closed = True  # until everything stands
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
        self._session = Session(num_explorers + 1, ray_init_kwargs)  # so many processes Ray has ready then
        self._version = 0
        self._weights: Any = None
        self._publishing: Any = None
        parts: list[Any] = [self._session.release]
        try:
            options = {"num_cpus": 0 if self._session.own else 1, **(explorer_options or {})}
            request = Request(options, placement, self._session.node, waits, "explorer_options")
            functions = (make_vec, make_policy)
            self.explorers = Explorers(
                self._session,
                functions,
                num_explorers,
                request,
                arguments,
                seed,
                max_restarts,
            )
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
            end_all(parts)
            raise
        self.server.ending.cancel()
        self._ending, self._parts = Ending(self, parts), parts
        self.observation_space, self.action_space = self.explorers.spaces
        self.schema = self.server.schema
        self.num_explorers = num_explorers
        self.closed = False

    @property
    def beta(self) -> float:
        """The exponent of the weights, prioritised. Setting it takes effect with the next call to the server."""
        return self.server.beta

    @beta.setter
    def beta(self, value: float) -> None:
        self.server.beta = value

    def sample(self, batch_size: int | None = None, timeout: float | None = None) -> dict[str, Any]:
        """Give a batch, as ReplayServer.sample. Raises what an explorer raised (ExplorerError) or died of
        (ExplorerDied), once each; and again, in place of waiting for good, when none of them explores any longer.
        """
        self._check_open("sample")
        self.explorers.raise_trouble()
        return self.server.sample_checking(batch_size, timeout, self._check)

    def update_priorities(self, indexes: Any, priorities: Any) -> None:
        """As ReplayServer.update_priorities."""
        self._check_open("update_priorities")
        self.server.update_priorities(indexes, priorities)

    def publish(self, weights: Any) -> int:
        """Offer weights to the explorers, who pull them after their current fragment; give their version, from 1 on.

        Anything that pickles; numpy arrays travel best. What is published may be changed right afterwards.
        """
        import ray

        self._check_open("publish")
        self.server.check()
        if self._publishing is not None:
            link.get_patiently(self._publishing, self.server.check)
        self._version += 1
        self._weights = ray.put(weights)
        self._publishing = self.server.actor.publish.remote(self._version, [self._weights])
        return self._version

    def insert(self, transitions: Mapping[str, Any]) -> None:
        """As ReplayServer.insert: transitions of the caller's own."""
        self._check_open("insert")
        self.server.insert(transitions)

    def stats(self) -> dict[str, Any]:
        """Give the server's stats; `replaced`: how many explorers were; and `explorers`, a dict each, up to a second
        old: index, steps, transitions, episodes, version, mean_return and mean_length over the last 100 episodes,
        replaced, node, pid. Raises as `sample` what explorers raised or died of.
        """
        self._check_open("stats")
        self.explorers.raise_trouble()
        return {**self.server.stats(), "replaced": self.explorers.replaced, "explorers": self.explorers.stats()}

    def save(self, path: str | os.PathLike[str]) -> None:
        """As ReplayServer.save."""
        self._check_open("save")
        self.server.save(path)

    def restore(self, path: str | os.PathLike[str]) -> None:
        """As ReplayServer.restore."""
        self._check_open("restore")
        self.server.restore(path)

    def stop(self) -> None:
        """End explorers and server, within a bounded time and whatever has happened. Repeatable."""
        if not self.closed:
            self.closed = True
            self._ending.cancel()
            self._weights = None
            end_all(self._parts)

    def _check(self) -> None:
        self.server.check()
        self.explorers.check()

    def _check_open(self, what: str) -> None:
        if self.closed:
            raise StoppedError(what)

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
