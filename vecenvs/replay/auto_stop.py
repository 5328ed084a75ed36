"""Objects with `stop()`, which are stopped at the interpreter's exit or garbage collection if the caller does not."""

from __future__ import annotations

import abc
import atexit
import os
import warnings
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, TypeVar

from vecenvs.replay.errors import StoppedError

Self = TypeVar("Self", bound="Stoppable")
Parts = Sequence[Callable[[], None]]


class Stoppable(abc.ABC):
    """A context manager with `stop()`, after which `_check_open` raises StoppedError."""

    closed = True  # until it has started

    @abc.abstractmethod
    def stop(self) -> None:
        """End everything that this object has started. Later calls do nothing."""

    def _check_open(self, what: str) -> None:
        if self.closed:
            raise StoppedError(what)

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class AutoStop:
    """Stops `owner` at the interpreter's exit; calls `parts` in order if `owner` is garbage-collected before."""

    def __init__(self, owner: Stoppable, parts: Parts) -> None:
        self._finalizer = weakref.finalize(owner, _abandon, parts, os.getpid(), type(owner).__name__)
        self._finalizer.atexit = False  # _stop_all runs at exit
        atexit.unregister(_stop_all)
        atexit.register(_stop_all)  # registered again, to run before the hook by which Ray ends its actors
        _open.add(owner)
        self._owner = weakref.ref(owner)

    def cancel(self) -> None:
        """Leave the owner alone: it has been stopped, or belongs to an object that stops it."""
        self._finalizer.detach()
        owner = self._owner()
        if owner is not None:
            _open.discard(owner)


def call_all(parts: Parts) -> None:
    """Call all of them in order, even if one raises."""
    if parts:
        try:
            parts[0]()
        finally:
            call_all(parts[1:])


_open: weakref.WeakSet[Any] = weakref.WeakSet()


def _abandon(parts: Parts, pid: int, name: str) -> None:
    if pid == os.getpid():
        try:
            warnings.warn(f"{name} was not stopped: call stop() or use a with-statement", ResourceWarning, stacklevel=2)
        finally:  # a warning may be an error
            call_all(parts)


def _stop_all() -> None:
    call_all([owner.stop for owner in list(_open)])
