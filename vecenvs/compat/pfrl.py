"""The class of pfrl, which need not be installed: `from vecenvs.compat.pfrl import MultiprocessVectorEnv`."""

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
    """Raised by any use of a closed env. An AssertionError, too, as in pfrl."""


class MultiprocessVectorEnv(PfrlView):
    """Envs in processes, with pfrl's names and contract: see `PfrlView`.

    As in pfrl, an object that is garbage-collected is closed silently. Unlike there, `close` may be called again.

    Args:
        env_fns: functions that make a Gymnasium env each.
        time_limit: as in `vecenvs.views.as_pfrl`.
        **kwargs: the other arguments of `vecenvs.SubprocVecEnv`, but not `autoreset`. Without `num_workers` there is
            one process per usable core; results do not depend on it.
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
