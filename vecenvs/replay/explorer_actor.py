"""What runs inside an explorer's actor: an Explorer, on the process's main thread, in slices of a tenth of a second.

At the end of a slice the actor calls itself for the next one. So whatever else it is asked comes between two slices,
envs and policy live on one thread, and the learner's process has no part in it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import cloudpickle

from vecenvs.backends.ray.actor import Home
from vecenvs.replay.attributes import apply, read, write
from vecenvs.replay.errors import ExplorerFailure, ServerDied
from vecenvs.replay.explorer import Explorer, blank_stats
from vecenvs.replay.inserter import Inserter
from vecenvs.replay.schema import Rows
from vecenvs.vec_env import VecEnv
from vecenvs.worker.env_shard import ENV_ERRORS
from vecenvs.worker.process import limit_threads

SLICE = 0.1  # seconds


class Report(NamedTuple):
    """How an explorer is. `failure` is why it has stopped, if it has."""

    stats: dict[str, Any]
    failure: ExplorerFailure | None


class ExplorerActor:
    """Explorer number `index`, the `generation`-th of that number."""

    def __init__(self, index: int, generation: int) -> None:
        self._index = index
        self._generation = generation
        self._explorer: Explorer | None = None
        self._vec: VecEnv | None = None
        self._inserter: Inserter | None = None
        self._fragment: Rows | None = None  # it waits for the server to let it in
        self._failure: ExplorerFailure | None = None
        self._over = False
        self._me: Any = None

    def home(self) -> Home:
        """Tell where this is. The first answer says that the actor has been placed and runs."""
        import ray

        return Home(ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address(), os.getpid())

    def make(
        self, functions: bytes, paths: Sequence[str], arguments: dict[str, Any]
    ) -> tuple[Any, Any] | ExplorerFailure:
        """Make VecEnv and policy by the pickled pair of functions; give the spaces.

        `paths` are where the caller's imports look: they come last here. `arguments` are Explorer's.
        """
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the caller's, who stops its explorers
        sys.path.extend(path for path in paths if path not in sys.path)
        limit_threads()
        doing = "make_vec"
        try:
            make_vec, make_policy = cloudpickle.loads(functions)
            self._vec = make_vec(self._index)
            if not isinstance(self._vec, VecEnv):
                raise TypeError(f"make_vec gave a {type(self._vec).__name__}: it must return a VecEnv")
            doing = "make_policy"
            policy = make_policy(self._vec, self._index)
            doing = "its VecEnv and policy"
            first = self._generation << 32
            self._explorer = Explorer(self._vec, policy, self._index, first_episode=first, **arguments)
        except ENV_ERRORS as exc:
            self._fail(doing, exc)
            return self._failure  # type: ignore[return-value]
        return self._vec.observation_space, self._vec.action_space

    def begin(self, server: Any) -> None:
        """Explore from now on, and send what is found to the server's actor."""
        import ray

        self._inserter = Inserter(server, self._made().schema, self._index)
        self._me = ray.get_runtime_context().current_actor
        self._me.explore.remote()

    def explore(self) -> None:
        """Explore for a slice of time, and ask for the next one."""
        if self._over:
            return
        try:
            self._slice(self._made(), time.monotonic() + SLICE)
        except ServerDied:  # the learner has noticed or will
            self._over = True
        except ENV_ERRORS as exc:
            self._fail("its VecEnv or policy", exc)
        else:
            self._me.explore.remote()

    def report(self) -> Report:
        """Tell how it goes."""
        return Report(self._made().stats() if self._explorer is not None else blank_stats(self._index), self._failure)

    def get_attr(self, name: str) -> Any:
        """Read an attribute of the Explorer; dotted names are followed."""
        return read(self._made(), name)

    def set_attr(self, name: str, value: Any) -> None:
        """Write an attribute of the Explorer; dotted names are followed."""
        write(self._made(), name, value)

    def call(self, function: bytes) -> Any:
        """Run a pickled function on the Explorer; give what it returns."""
        return apply(self._made(), function)

    def finish(self) -> None:
        """Stop, and close the envs."""
        self._over = True
        vec, self._vec = self._vec, None
        if vec is not None:
            vec.close()

    def _slice(self, explorer: Explorer, end: float) -> None:
        inserter = self._inserter
        if inserter is None:
            raise RuntimeError("explore() before begin()")
        while True:
            if self._fragment is not None:
                if not inserter.has_room(max(end - time.monotonic(), 0.0)):
                    return
                inserter.send(self._fragment)
                self._fragment = None
                self._renew(explorer, inserter)
            if time.monotonic() >= end:
                return
            explorer.step()
            if explorer.ready:
                self._fragment = explorer.take()

    def _renew(self, explorer: Explorer, inserter: Inserter) -> None:
        """Pull the weights, if the server has told of new ones."""
        weights = inserter.take_weights()
        if weights is not None:
            import ray

            explorer.set_weights(ray.get(weights), inserter.version)

    def _fail(self, doing: str, exc: BaseException) -> None:
        self._over = True
        self._failure = ExplorerFailure.capture(self._index, doing, exc)
        with contextlib.suppress(*ENV_ERRORS):  # it has failed already
            self.finish()

    def _made(self) -> Explorer:
        if self._explorer is None:
            raise RuntimeError(f"explorer {self._index} could not be made")
        return self._explorer
