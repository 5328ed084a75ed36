"""The actor that runs an Explorer, on its process's main thread, in slices of a tenth of a second.

At the end of a slice the actor calls itself for the next one. So other calls run between two slices, envs and policy
stay on one thread, and exploring does not depend on the learner's process.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import cloudpickle

from vecenvs.backends.ray.actor import ActorLocation, here
from vecenvs.replay.errors import ServerDied
from vecenvs.replay.explorer import Explorer, blank_stats
from vecenvs.replay.inserter import Inserter
from vecenvs.replay.link import run_call
from vecenvs.replay.schema import Rows
from vecenvs.transport.protocol import RemoteFailure, safe_text
from vecenvs.vec_env import VecEnv
from vecenvs.worker.env_errors import ENV_ERRORS
from vecenvs.worker.process import limit_threads

SLICE = 0.1  # seconds


class ExplorerReport(NamedTuple):
    """An explorer's stats, and the exception that has stopped it, if any."""

    stats: dict[str, Any]
    failure: RemoteFailure | None


class ExplorerActor:
    """Explorer `index`; `generation` counts its replacements."""

    def __init__(self, index: int, generation: int) -> None:
        self._index = index
        self._generation = generation
        self._explorer: Explorer | None = None
        self._vec: VecEnv | None = None
        self._inserter: Inserter | None = None
        self._fragment: Rows | None = None  # not sent yet, as the server has not accepted the ones before
        self._failure: RemoteFailure | None = None
        self._stopped = False
        self._own_handle: Any = None

    def location(self) -> ActorLocation:
        """Return where the actor runs. The first answer means that Ray has started it."""
        return here()

    def make(
        self, functions: bytes, paths: Sequence[str], arguments: dict[str, Any]
    ) -> tuple[Any, Any] | RemoteFailure:
        """Make VecEnv and policy by a pickled pair of functions, and an Explorer; return the spaces, or what failed."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # after Ctrl-C the caller stops its explorers
        sys.path.extend(path for path in paths if path not in sys.path)
        limit_threads()
        doing = "make_vec"
        try:
            make_vec, make_policy = cloudpickle.loads(functions)
            self._vec = make_vec(self._index)
            if not isinstance(self._vec, VecEnv):
                raise TypeError(f"make_vec returned a {type(self._vec).__name__}: it must return a VecEnv")
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
        """Start exploring; send transitions to the server's actor."""
        import ray

        self._inserter = Inserter(server, self._require_explorer().schema, self._index)
        self._own_handle = ray.get_runtime_context().current_actor
        self._own_handle.explore.remote()

    def explore(self) -> None:
        """Explore for one slice, then call this method again through Ray."""
        if self._stopped:
            return
        try:
            self._explore_until(self._require_explorer(), time.monotonic() + SLICE)
        except ServerDied:  # the learner raises it
            self._stopped = True
        except ENV_ERRORS as exc:
            self._fail("its VecEnv or policy", exc)
        else:
            self._own_handle.explore.remote()

    def report(self) -> ExplorerReport:
        """Return stats and failure."""
        stats = self._explorer.stats() if self._explorer is not None else blank_stats(self._index)
        return ExplorerReport(stats, self._failure)

    def call(self, function: bytes) -> bytes:
        """Run a pickled call with the explorer."""
        return run_call(self._require_explorer(), function)

    def close(self) -> None:
        """Stop exploring and close the envs."""
        self._stopped = True
        vec, self._vec = self._vec, None
        if vec is not None:
            vec.close()

    def _explore_until(self, explorer: Explorer, end: float) -> None:
        inserter = self._inserter
        if inserter is None:
            raise RuntimeError("explore() before begin()")
        while True:
            if self._fragment is not None:
                if not inserter.has_room(max(end - time.monotonic(), 0.0)):
                    return
                inserter.send(self._fragment)
                self._fragment = None
                self._pull_weights(explorer, inserter)
            if time.monotonic() >= end:
                return
            explorer.step()
            if explorer.ready:
                self._fragment = explorer.take()

    def _pull_weights(self, explorer: Explorer, inserter: Inserter) -> None:
        """Get the newest weights if the server has announced any."""
        weights = inserter.take_weights()
        if weights is not None:
            import ray

            explorer.set_weights(ray.get(weights), inserter.version)

    def _fail(self, doing: str, exc: BaseException) -> None:
        self._stopped = True
        told = f"explorer {self._index} raised {type(exc).__name__} in {doing}: {safe_text(exc).partition(chr(10))[0]}"
        self._failure = RemoteFailure.capture(self._index, doing, exc, portable=True)._replace(summary=told)
        with contextlib.suppress(*ENV_ERRORS):  # the first failure is reported
            self.close()

    def _require_explorer(self) -> Explorer:
        if self._explorer is None:
            raise RuntimeError(f"explorer {self._index} could not be made")
        return self._explorer
