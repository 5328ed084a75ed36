"""Pickling of what travels between processes: by name where that is possible, else by value."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import cloudpickle

from vecenvs.batched import width
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


class PickledFns:
    """The functions of one worker's envs, pickled by cloudpickle: an iterable that gives them once, and then is empty.

    They share in the worker what they share here: a large array, the classes of a script. `num_envs` envs are theirs.

    Raises:
        VecEnvError: a function cannot be pickled. The message names its env, and ends with `remedy`.
    """

    def __init__(self, env_fns: Sequence[Callable[[], Any]], first: int, remedy: str = "") -> None:
        file = io.BytesIO()
        pickler = cloudpickle.Pickler(file, protocol=5)  # which remembers what it has pickled before
        self.num_envs = 0
        for env_fn in env_fns:
            try:
                pickler.dump(env_fn)
            except Exception as exc:  # whatever a __reduce__ raises
                raise VecEnvError(
                    f"the env function of env {first + self.num_envs} cannot be pickled ({exc}): make everything it "
                    f"needs inside it{remedy}"
                ) from exc
            self.num_envs += width(env_fn)
        self._count = len(env_fns)
        self._data = file.getvalue()

    def __iter__(self) -> Iterator[Callable[[], Any]]:
        """Unpickle one function after another: what cannot be imported here is then an error of its env."""
        file, self._data, count, self._count = io.BytesIO(self._data), b"", self._count, 0
        unpickler = pickle.Unpickler(file)
        for _ in range(count):
            yield unpickler.load()
