"""Errors of distributed replay."""

from __future__ import annotations

from vecenvs.errors import RemoteError, VecEnvError
from vecenvs.transport.protocol import RemoteFailure


class ExplorerError(VecEnvError):
    """The env or the policy of an explorer raised, or its spaces are not those of explorer 0.

    That explorer has stopped; the others continue.

    `__cause__` is the exception itself if it can be pickled, else a `RemoteError` with the text of its traceback.

    Attributes:
        index: the index of the explorer.
        remote_traceback: the traceback, as text, from the explorer's process.
    """

    def __init__(self, index: int, message: str, remote_traceback: str = "") -> None:
        super().__init__(message)
        self.index = index
        self.remote_traceback = remote_traceback

    @classmethod
    def of(cls, failure: RemoteFailure) -> ExplorerError:
        """Return the error to raise of a failure, whose slot is the explorer's index."""
        error = cls(failure.slot, failure.summary, failure.traceback)
        error.__cause__ = RemoteError(failure.traceback) if failure.exception is None else failure.exception
        return error

    def __str__(self) -> str:
        text = super().__str__()
        if self.remote_traceback:
            text += f"\n\nTraceback from explorer {self.index}:\n{self.remote_traceback.rstrip()}"
        return text


class ExplorerDied(VecEnvError):
    """The process of an explorer has died while it started, or after `max_restarts` replacements.

    Attributes:
        index: the index of the explorer.
    """

    def __init__(self, index: int, words: str, max_restarts: int | None) -> None:
        why, remedy = f"max_restarts={max_restarts} replacements have been made", ", or give a higher max_restarts"
        if max_restarts is None:
            why, remedy = "explorers are replaced once all have started", ""
        super().__init__(
            f"explorer {index} died ({words or 'Ray does not say why'}) and is not replaced: {why}. "
            f"Find out what ends its process{remedy}"
        )
        self.index = index


class ServerDied(VecEnvError):
    """The server's process has died, and all stored transitions are lost."""

    def __init__(self, words: str) -> None:
        super().__init__(
            f"the replay server died ({words or 'Ray does not say why'}). What it stored is lost: stop(), and start "
            "again from the last save() with restore=..."
        )


class SampleTimeout(VecEnvError, TimeoutError):
    """There was no batch in time. A later `sample` still returns it."""

    def __init__(self, batch_size: int, seconds: float) -> None:
        super().__init__(
            f"no batch of {batch_size} within {seconds:g} s: fewer than min_size transitions are stored, or the rate "
            "limiter waits for more of them (see stats()). Call sample() again"
        )
