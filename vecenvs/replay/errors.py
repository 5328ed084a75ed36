"""What can go wrong in distributed replay, besides what `vecenvs.errors` has."""

from __future__ import annotations

import traceback
from typing import Any, NamedTuple

import cloudpickle

from vecenvs.errors import ClosedError, RemoteError, SpaceMismatch, VecEnvError
from vecenvs.transport.protocol import dumps


class ExplorerError(VecEnvError):
    """The env or the policy of explorer `index` raised. That explorer has stopped, the others go on.

    `remote_traceback` is the traceback as text from where it runs; `__cause__` is what the env or the policy raised,
    where that can be pickled, else a `RemoteError` showing the text.
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
    """Explorer `index` has another observation or action space than explorer 0: one buffer holds one layout."""

    def __init__(self, index: int, which: str, theirs: object, ours: object) -> None:
        VecEnvError.__init__(
            self,
            f"explorer {index} has {which} {theirs}, but explorer 0 has {ours}. All explorers of one Replay must "
            "agree: let make_vec wrap the envs so that they do",
        )
        self.index = index


class ExplorerDied(VecEnvError):
    """The process of explorer `index` is gone, and `max_restarts` replacements have been made already."""

    def __init__(self, index: int, words: str, max_restarts: int) -> None:
        super().__init__(
            f"explorer {index} died ({words or 'Ray does not say why'}) and is not replaced: "
            f"max_restarts={max_restarts} replacements have been made. "
            "Find out what ends its process, or give a higher max_restarts"
        )
        self.index = index


class ServerDied(VecEnvError):
    """The process that holds the buffer is gone, and what it stored with it."""

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
    """No batch came in time. Nothing is lost: it still comes by a later `sample`."""

    def __init__(self, batch_size: int, seconds: float) -> None:
        super().__init__(
            f"no batch of {batch_size} within {seconds:g} s: fewer than min_size transitions are stored, or the rate "
            "limiter waits for more of them (stats() tells). Wait again"
        )


class ExplorerFailure(NamedTuple):
    """An exception of an explorer on its way to the learner. `pickled` is None if it does not survive pickling."""

    explorer: int
    summary: str
    traceback: str
    pickled: bytes | None

    @classmethod
    def capture(cls, index: int, doing: str, exc: BaseException) -> ExplorerFailure:
        """Describe what explorer `index` raised while `doing`."""
        text = "".join(traceback.format_exception(type(exc), exc, exc.__traceback__))
        first = str(exc).splitlines()[0] if str(exc) else ""
        summary = f"explorer {index} raised {type(exc).__name__} in {doing}: {first}"
        pickled = _pickled(exc)
        if pickled is None and exc.__cause__ is not None:  # an EnvError has the env's own exception there
            pickled = _pickled(exc.__cause__)
        return cls(index, summary, text, pickled)

    def to_error(self) -> ExplorerError:
        """Make the error that the learner gets."""
        error = ExplorerError(self.explorer, self.summary, self.traceback)
        error.__cause__ = self._exception() or RemoteError(self.traceback)
        return error

    def _exception(self) -> BaseException | None:
        if self.pickled is None:
            return None
        try:
            found: Any = cloudpickle.loads(self.pickled)
        except Exception:  # of a class that cannot be imported here
            return None
        return found if isinstance(found, BaseException) else None


def _pickled(exc: BaseException) -> bytes | None:
    """Pickle an exception, without its frames; None if it does not survive that."""
    exc.__traceback__ = None
    try:
        pickled = dumps(exc)
        cloudpickle.loads(pickled)
    except Exception:  # whatever a foreign __reduce__ raises
        return None
    return pickled
