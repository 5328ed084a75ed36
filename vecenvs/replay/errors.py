"""Errors of distributed replay."""

from __future__ import annotations

import traceback
from typing import Any, NamedTuple

from vecenvs.errors import ClosedError, RemoteError, SpaceMismatch, VecEnvError
from vecenvs.transport.pickling import can_pickle, dumps, loads
from vecenvs.transport.protocol import safe_text


class ExplorerError(VecEnvError):
    """The env or the policy of an explorer raised. That explorer has stopped; the others continue.

    `__cause__` is the exception itself if it can be pickled, else a `RemoteError` with the text of its traceback.

    Attributes:
        index: the index of the explorer.
        remote_traceback: the traceback, as text, from the explorer's process.
    """

    def __init__(self, index: int, message: str, remote_traceback: str = "") -> None:
        super().__init__(message)
        self.index = index
        self.remote_traceback = remote_traceback

    def __str__(self) -> str:
        text = super().__str__()
        if self.remote_traceback:
            text += f"\n\nTraceback from explorer {self.index}:\n{self.remote_traceback.rstrip()}"
        return text


class ExplorerMismatch(SpaceMismatch):
    """An explorer has another observation or action space than explorer 0.

    Attributes:
        index: the index of the explorer.
    """

    def __init__(self, index: int, which: str, theirs: object, ours: object) -> None:
        VecEnvError.__init__(
            self,
            f"explorer {index} has {which} {theirs}, but explorer 0 has {ours}. All explorers of one Replay must "
            "agree: let make_vec wrap the envs so that they do",
        )
        self.index = index


class ExplorerDied(VecEnvError):
    """The process of an explorer has died after `max_restarts` replacements.

    Attributes:
        index: the index of the explorer.
    """

    def __init__(self, index: int, words: str, max_restarts: int) -> None:
        super().__init__(
            f"explorer {index} died ({words or 'Ray does not say why'}) and is not replaced: "
            f"max_restarts={max_restarts} replacements have been made. "
            "Find out what ends its process, or give a higher max_restarts"
        )
        self.index = index


class ServerDied(VecEnvError):
    """The server's process has died, and all stored transitions are lost."""

    def __init__(self, words: str) -> None:
        super().__init__(
            f"the replay server died ({words or 'Ray does not say why'}). What it stored is lost: stop(), and start "
            "again from the last save() with restore=..."
        )


class StoppedError(ClosedError):
    """The Replay or its server has been stopped."""

    def __init__(self, what: str) -> None:
        VecEnvError.__init__(
            self, f"{what} after stop(): what was stored is gone. Start a new one, with restore=... from a save()"
        )


class SampleTimeout(VecEnvError, TimeoutError):
    """There was no batch in time. A later `sample` still returns it."""

    def __init__(self, batch_size: int, seconds: float) -> None:
        super().__init__(
            f"no batch of {batch_size} within {seconds:g} s: fewer than min_size transitions are stored, or the rate "
            "limiter waits for more of them (see stats()). Call sample() again"
        )


class ExplorerFailure(NamedTuple):
    """An exception of an explorer, as it is sent to the learner; `pickled` is None if it cannot be pickled."""

    explorer: int
    summary: str
    traceback: str
    pickled: bytes | None

    @classmethod
    def capture(cls, index: int, doing: str, exc: BaseException) -> ExplorerFailure:
        """Describe the exception of explorer `index` in `doing`."""
        text = "".join(traceback.format_exception(type(exc), exc, exc.__traceback__))
        first_line = safe_text(exc).partition("\n")[0]
        summary = f"explorer {index} raised {type(exc).__name__} in {doing}: {first_line}"
        for candidate in (exc, exc.__cause__):  # the cause of an EnvError is the env's own exception
            if candidate is not None:
                candidate.__traceback__ = None
                if can_pickle(candidate):
                    return cls(index, summary, text, dumps(candidate))
        return cls(index, summary, text, None)

    def to_error(self) -> ExplorerError:
        """Return the error for the learner."""
        error = ExplorerError(self.explorer, self.summary, self.traceback)
        error.__cause__ = self._exception() or RemoteError(self.traceback)
        return error

    def _exception(self) -> BaseException | None:
        if self.pickled is None:
            return None
        try:
            found: Any = loads(self.pickled)
        except Exception:  # of a class that cannot be imported here
            return None
        return found if isinstance(found, BaseException) else None
