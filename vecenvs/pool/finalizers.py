"""How a VecEnv ends that nobody closes: at the end of its process, or when it is collected."""

from __future__ import annotations

import atexit
import contextlib
import os
import warnings
import weakref
from multiprocessing import util
from typing import TYPE_CHECKING

from vecenvs.pool.workers import EXIT_GRACE, Workers

if TYPE_CHECKING:
    from vecenvs.vec_env import VecEnv

_FIRST = 100  # among multiprocessing's finalizers: envs may use its queues while they are closed


class Finalizer:
    """Watches over one VecEnv. A fork of the process that made it leaves the workers alone."""

    def __init__(self, vec: VecEnv, workers: Workers) -> None:
        self._pid = os.getpid()
        _open[vec] = workers
        self._finalizer = weakref.finalize(vec, _abandon, workers, self._pid, type(vec).__name__)
        self._finalizer.atexit = False  # _close_all does it then, in the right order
        _hook(self._pid)

    @property
    def forked(self) -> bool:
        """Whether this process is a fork of the one that made the VecEnv."""
        return self._pid != os.getpid()

    def end(self) -> bool:
        """Stop watching; tell whether this process is the one that may end the workers."""
        self._finalizer.detach()
        return not self.forked


_open: weakref.WeakKeyDictionary[VecEnv, Workers] = weakref.WeakKeyDictionary()
_hooked = 0  # the process in which multiprocessing has been told


def _hook(pid: int) -> None:
    """A child of multiprocessing calls no hooks of atexit: it waits for its own children, which would wait for it."""
    global _hooked  # noqa: PLW0603
    if _hooked != pid:
        util.Finalize(None, _close_all, exitpriority=_FIRST)
        _hooked = pid


def _abandon(workers: Workers, pid: int, name: str) -> None:
    if pid == os.getpid():
        try:
            warnings.warn(f"{name} was not closed: call close() or use a with-statement", ResourceWarning, stacklevel=2)
        finally:  # a warning may be an error
            workers.close(EXIT_GRACE)


@atexit.register
def _close_all() -> None:
    # multiprocessing joins its children at exit. Its hook is older than this one, so it runs later.
    with contextlib.ExitStack() as each:  # whatever one of them raises
        for vec in list(_open):
            each.callback(vec.close)


def _disown() -> None:
    """Take from a forked process what its parent steps in other processes: both would take each other's answers."""
    for vec, workers in list(_open.items()):
        vec.closed |= not workers.inline


os.register_at_fork(after_in_child=_disown)
