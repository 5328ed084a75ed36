"""Close what was never closed (VecEnvs, Replays, their servers), at interpreter exit or garbage collection."""

from __future__ import annotations

import atexit
import os
import warnings
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing import util
from typing import Any

_FIRST = 100  # priority among multiprocessing's finalizers: envs may use its queues while they are closed

Part = Callable[[], object]


class Finalizer:
    """Watches one object until `cancel`. In a fork of the process that made the object only `on_fork` is called.

    `close` is the method of the owner's class that ends it, at interpreter exit. `parts` do the same without the owner,
    in their order, when it is garbage-collected, with a ResourceWarning if it `has_workers`.
    """

    def __init__(
        self,
        owner: Any,
        close: Callable[[Any], None],
        parts: Sequence[Part],
        on_fork: Callable[[Any], None] | None = None,
        has_workers: bool = True,
    ) -> None:
        self.close, self.on_fork = close, on_fork
        self._pid = os.getpid()
        self._owner = weakref.ref(owner)
        text = f"{type(owner).__name__} was not closed: call {close.__name__}() or use a with-statement"
        warned = [partial(warnings.warn, text, ResourceWarning, stacklevel=4)] * has_workers  # it may be an error
        self._finalizer = weakref.finalize(owner, self._abandon, [*warned, *parts], self._pid)
        self._finalizer.atexit = False  # _close_all closes it then, in the right order
        _open[owner] = self
        _register_in_child(self._pid)

    @property
    def forked(self) -> bool:
        """Whether this process is a fork of the one that made the object."""
        return self._pid != os.getpid()

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` has been called."""
        return not self._finalizer.alive

    def cancel(self) -> bool:
        """Stop watching; return whether this process made the object, and so may end what belongs to it."""
        _open.pop(self._owner(), None)  # first: a signal's handler may raise in between, and this is called again
        self._finalizer.detach()
        return not self.forked

    @staticmethod
    def _abandon(parts: Sequence[Part], pid: int) -> None:
        if pid == os.getpid():
            call_all(parts)


def call_all(parts: Sequence[Part]) -> None:
    """Call all of these, even if some raise."""
    if parts:
        try:
            parts[0]()
        finally:
            call_all(parts[1:])


_open: weakref.WeakKeyDictionary[Any, Finalizer] = weakref.WeakKeyDictionary()
_registered_in = 0  # the process in which multiprocessing calls _close_all


def _register_in_child(pid: int) -> None:
    """Have multiprocessing call `_close_all`, too: its children run no hooks of atexit, and wait for their children."""
    global _registered_in  # noqa: PLW0603
    if _registered_in != pid:
        util.Finalize(None, _close_all, exitpriority=_FIRST)
        _registered_in = pid


def _close_all() -> None:
    newest_first = reversed([*_open.items()])
    call_all([partial(finalizer.close, owner) for owner, finalizer in newest_first if not finalizer.forked])


def close_before_hooks() -> None:
    """Close everything before the hooks of atexit run that are registered by now: another library's, say."""
    atexit.unregister(_close_all)
    atexit.register(_close_all)


def _call_on_fork() -> None:
    for owner, finalizer in [*_open.items()]:
        if finalizer.on_fork is not None:
            finalizer.on_fork(owner)


close_before_hooks()  # multiprocessing's is one of them: it joins its children
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_call_on_fork)
