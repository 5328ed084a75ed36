"""What a Replay and a ReplayServer have in common: they can be stopped."""

from __future__ import annotations

import abc
from types import TracebackType
from typing import TypeVar

from vecenvs.replay.errors import StoppedError

Self = TypeVar("Self", bound="Stoppable")


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
