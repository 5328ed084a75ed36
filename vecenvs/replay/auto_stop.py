"""How a Replay or a server ends that nobody stops: at the interpreter's exit, or when it is collected."""

from __future__ import annotations

import atexit
import os
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

Part = Callable[[], None]


class Ending:
    """Watches over `owner`, which has `stop()`; `parts` end what it started, in that order, without it."""

    def __init__(self, owner: Any, parts: Sequence[Part]) -> None:
        self._finalizer = weakref.finalize(owner, _abandon, parts, os.getpid(), type(owner).__name__)
        self._finalizer.atexit = False  # _stop_all does it then
        atexit.unregister(_stop_all)
        atexit.register(_stop_all)  # anew, so that it runs before the hook with which Ray ends the actors
        _open.add(owner)
        self._owner = weakref.ref(owner)

    def cancel(self) -> None:
        """Watch no longer: it has been stopped, or somebody else sees to that."""
        self._finalizer.detach()
        owner = self._owner()
        if owner is not None:
            _open.discard(owner)


def end_all(parts: Sequence[Part]) -> None:
    """Call all of them, whatever one raises."""
    if parts:
        try:
            parts[0]()
        finally:
            end_all(parts[1:])


_open: weakref.WeakSet[Any] = weakref.WeakSet()


def _abandon(parts: Sequence[Part], pid: int, name: str) -> None:
    if pid == os.getpid():
        try:
            warnings.warn(f"{name} was not stopped: call stop() or use a with-statement", ResourceWarning, stacklevel=2)
        finally:  # a warning may be an error
            end_all(parts)


def _stop_all() -> None:
    end_all([owner.stop for owner in list(_open)])
