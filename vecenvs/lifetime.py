"""How a VecEnv ends that nobody closes: at the interpreter's exit, or when it is collected."""

from __future__ import annotations

import atexit
import os
import warnings
import weakref
from typing import TYPE_CHECKING

from vecenvs.crew import EXIT_GRACE, Crew

if TYPE_CHECKING:
    from vecenvs.vec_env import VecEnv


class Lifetime:
    """Watches over one VecEnv. A fork of the process that made it leaves the workers alone."""

    def __init__(self, vec: VecEnv, crew: Crew) -> None:
        self._pid = os.getpid()
        _open.add(vec)
        self._finalizer = weakref.finalize(vec, _abandon, crew, self._pid, type(vec).__name__)
        self._finalizer.atexit = False  # _close_all does it then, in the right order

    def end(self) -> bool:
        """Stop watching; tell whether this process is the one that may end the workers."""
        self._finalizer.detach()
        return self._pid == os.getpid()


_open: weakref.WeakSet[VecEnv] = weakref.WeakSet()


def _abandon(crew: Crew, pid: int, name: str) -> None:
    if pid == os.getpid():
        warnings.warn(f"{name} was not closed: call close() or use a with-statement", ResourceWarning, stacklevel=2)
        crew.close(EXIT_GRACE)


@atexit.register
def _close_all() -> None:
    # multiprocessing joins its children at exit. Its hook is older than this one, so it runs later.
    for vec in list(_open):
        vec.close()
