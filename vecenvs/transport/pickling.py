"""Pickling of what travels between processes: by name where that is possible, else by value."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle

from vecenvs.batched import Batched, width
from vecenvs.errors import VecEnvError

loads: Callable[[Any], Any] = pickle.loads


def dumps(value: object) -> bytes:
    """Pickle by name where any process can import it, else by value (cloudpickle).

    What `__main__` defines goes by value, since a worker on an MPI rank or in a Ray actor has another `__main__`.
    """
    try:
        data = pickle.dumps(value, protocol=5)
    except Exception:  # PicklingError, TypeError, AttributeError, or what a __reduce__ raises
        data = b"__main__"
    if b"__main__" in data:
        data = cloudpickle.dumps(value, protocol=5)
    return data


def can_pickle(value: object) -> bool:
    """Tell whether a value can be pickled by `dumps`, and unpickled."""
    try:
        loads(dumps(value))
    except Exception:  # whatever a __reduce__ raises
        return False
    return True


def pickle_env_fns(env_fns: Sequence[Callable[[], Any]], first: int, remedy: str = "") -> list[Any]:
    """Pickle the functions of the envs `first`, `first + 1`, ... by cloudpickle. A Batched keeps bytes as its function.

    Raises:
        VecEnvError: a function cannot be pickled. The message names its env, and ends with `remedy`.
    """
    pickled: list[Any] = []
    slot = first
    for env_fn in env_fns:
        try:
            if isinstance(env_fn, Batched):
                pickled.append(env_fn.of(cloudpickle.dumps(env_fn.make, protocol=5)))
            else:
                pickled.append(cloudpickle.dumps(env_fn, protocol=5))
        except Exception as exc:  # whatever a __reduce__ raises
            raise VecEnvError(
                f"the env function of env {slot} cannot be pickled ({exc}): make everything it needs inside it{remedy}"
            ) from exc
        slot += width(env_fn)
    return pickled
