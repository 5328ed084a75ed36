"""pfrl's class over the core, without pfrl: `from vecenvs.compat.pfrl import MultiprocessVectorEnv`."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

from vecenvs.arguments import arguments_of, check_arguments
from vecenvs.backends.subproc import SubprocVecEnv
from vecenvs.errors import ClosedError
from vecenvs.pool.pool_vec_env import EnvFn
from vecenvs.views.pfrl import PfrlView, register


class VectorEnvClosedError(ClosedError, AssertionError):
    """The env has been closed: pfrl's own class raises AssertionError."""


class MultiprocessVectorEnv(PfrlView):
    """Envs in processes of their own, in pfrl's names and contract: see `PfrlView`.

    `env_fns` make Gymnasium envs. The processes are one per usable core, or what the keyword arguments of SubprocVecEnv
    say (`num_workers=len(env_fns)` gives each env its own); results do not depend on it. As in pfrl, what is collected
    without having been closed is closed then, silently; unlike there, a second `close` does nothing.
    """

    def __init__(self, env_fns: Iterable[EnvFn], *, time_limit: str = "done", **kwargs: Any) -> None:
        known = [name for name in ("time_limit", *arguments_of(SubprocVecEnv)) if name != "autoreset"]
        check_arguments(type(self).__name__, kwargs, known)
        register()
        super().__init__(SubprocVecEnv(env_fns, autoreset="same_step", **kwargs), time_limit=time_limit)
        self._finalizer = weakref.finalize(self, self.vec.close)

    def _check_open(self, what: str) -> None:
        if self.vec.closed:
            raise VectorEnvClosedError(what)
