"""The exceptions, one class for each thing that can go wrong. Messages say what failed, for which env, and a remedy."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vecenvs.batch.batch import Batch


_ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # in the repr of an object whose class has no __repr__


class VecEnvError(RuntimeError):
    """The base of every error that a VecEnv raises about itself, its envs or its workers. All can be pickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.args), self.__dict__


def _restore(cls: type[VecEnvError], args: tuple[object, ...]) -> VecEnvError:
    """Return a pickled error again, without `__init__`: its class may take other arguments than the message."""
    error: VecEnvError = (OSError if issubclass(cls, OSError) else cls).__new__(cls)  # a timeout has OSError's layout
    error.args = args
    return error


class EnvError(VecEnvError):
    """Raised by a call whose command made an env raise. The VecEnv stays usable; the env needs `reset([index])`.

    `__cause__` is the env's own exception if it can be pickled, else a RemoteError with its text.

    Attributes:
        index: the index of the env.
        remote_traceback: the traceback, as text, from the process where the env lives.
        errors: one EnvError for each env that failed in the same call, this one first.
        batch: the rows of the envs that did not fail, after a `step`, `reset` or `recv(indices=...)`; else None.
        record: the file that `python -m vecenvs rerun` runs the episode again from, if the VecEnv has `record`.
    """

    def __init__(self, index: int, message: str, remote_traceback: str = "") -> None:
        super().__init__(message)
        self.index = index
        self.remote_traceback = remote_traceback
        self.batch: Batch | None = None
        self.record = ""
        self._others: tuple[EnvError, ...] = ()

    @property
    def errors(self) -> tuple[EnvError, ...]:
        return (self, *self._others)  # kept, it would be a cycle, in which the traceback holds memory

    @errors.setter
    def errors(self, errors: Sequence[EnvError]) -> None:
        self._others = tuple(errors[1:])

    def __str__(self) -> str:
        text = super().__str__()
        others = [error.index for error in self._others]
        if others:
            text += f" (so did {'env' if len(others) == 1 else 'envs'} {describe_indices(others)}: see .errors)"
        if self.remote_traceback:
            text += f"\n\nTraceback from where env {self.index} lives:\n{self.remote_traceback.rstrip()}"
        return text

    def tell_record(self, path: str) -> None:
        """Add the file that the episode can be run again from.

        Args:
            path: the file.
        """
        self.record = path
        self.args = (f"{self.args[0]}. {RERUN} {path}",)

    def tell_reset(self, remedy: Callable[[int], str]) -> None:
        """Replace the advice to call `reset([index])` by `remedy(index)`, where an env must be reset first.

        For interfaces that have no such `reset`. The traceback, which shows this library's code only, is removed.

        Args:
            remedy: a function of an env's index that returns the advice.
        """
        for error in self.errors:
            cause = error.__cause__
            if isinstance(cause, ResetNeededError):
                error.__cause__ = told = ResetNeededError(cause.why, remedy(error.index))
                error.args, error.remote_traceback = (str(told),), ""


class RepeatedEnvError(EnvError, ValueError):
    """Raised when an env function returns an env that another one has returned. A ValueError, as in SB3."""


class ResetNeededError(VecEnvError):
    """Raised by a step of an env that must be reset first: it is new, has failed, or has ended under "disabled".

    Callers find it as the `__cause__` of an EnvError.

    Attributes:
        why: the reason, without the remedy.
    """

    def __init__(self, why: str, remedy: str) -> None:
        super().__init__(f"{why}: {remedy}")
        self.why = why


class RemoteError(Exception):
    """The `__cause__` of an EnvError whose env raised an exception that could not be pickled."""


UNGUARDED = 113  # the exit code of a worker whose script has no guard
GUARD = (
    "with start methods spawn and forkserver each worker imports the script anew, so everything that the script does "
    "must stand below `if __name__ == '__main__':`"
)

# What a worker's death means, by the `state` of WorkerDied.
_AFTER_DEATH = {
    "starting": "Its envs have not been made: the output of the process may say why",
    "lost": "Its envs are lost: close() this VecEnv and make a new one, or construct it with on_failure='restart'",
    "replaced": "Another worker takes its place, whose envs begin new episodes: the call may be repeated",
    "spent": "Its envs are lost, because max_restarts have been used: find out what ends it, and make a new VecEnv",
}


RERUN = "Run its episode again: python -m vecenvs rerun"
_NO_MEMORY = ". If nothing else sent that signal, the memory was used up: take fewer workers, or fewer envs"


class WorkerDied(VecEnvError):
    """Raised when the process that steps the envs `indices` has ended. The other workers' envs can still be used.

    Attributes:
        worker: the number of the worker.
        indices: its envs.
        exitcode: its exit code as in `subprocess`: negative for a signal, None if unknown.
        signal: the number of the signal that ended it, or None.
        where: the place of the worker, such as its host, as the message has it; "" on this machine.
        state: "starting" (the VecEnv is not made yet), "lost", "replaced" (with on_failure="restart"), or "spent" (it
            is not replaced, because `max_restarts` have been used).
        printed: the last lines that it has printed or logged, where the VecEnv has a `log_dir`; else "".
        records: the files that `python -m vecenvs rerun` runs its episodes again from, if the VecEnv has `record`.
    """

    def __init__(
        self,
        worker: int,
        indices: Sequence[int],
        exitcode: int | None = None,
        where: str = "",
        state: str = "lost",
        printed: str = "",
    ) -> None:
        self.worker = worker
        self.where = where
        self.state = state
        self.printed = printed
        self.indices = tuple(indices)
        self.exitcode = exitcode
        self.records: tuple[str, ...] = ()
        self.signal = -exitcode if exitcode is not None and exitcode < 0 else None
        whose = f"worker {worker}{where} with envs {describe_indices(self.indices)}"
        if state == "starting" and exitcode == UNGUARDED:
            super().__init__(
                f"the script has no guard: {GUARD}, or use start_method='fork' ({whose} has ended for that)"
            )
        else:
            memory = _NO_MEMORY if self.signal == 9 else ""
            last = printed and f". It printed last:\n{printed}"
            super().__init__(f"{whose} died ({describe_exit(exitcode)}). {_AFTER_DEATH[state]}{memory}{last}")

    def but(self, state: str) -> WorkerDied:
        """Return the same error with another state.

        Args:
            state: the `state` of the new error.

        Returns:
            The new error.
        """
        return WorkerDied(self.worker, self.indices, self.exitcode, self.where, state, self.printed)

    def tell_records(self, paths: Sequence[str]) -> None:
        """Add the files that its episodes can be run again from.

        Args:
            paths: the files.
        """
        self.records = tuple(paths)
        more = f" (and {len(paths) - 1} more: see .records)" if len(paths) > 1 else ""
        self.args = (f"{self.args[0]}. {RERUN} {paths[0]}{more}",)


WAIT_AGAIN = "Wait again for their rows, or close()"


class StepTimeout(VecEnvError, TimeoutError):
    """Raised when envs did not answer in time. Nothing is lost: a later wait returns their rows.

    Attributes:
        indices: the envs.
        seconds: the time limit.
    """

    def __init__(
        self, indices: Sequence[int], seconds: float, what: str = "step", cause: str = "", then: str = WAIT_AGAIN
    ) -> None:
        self.indices = tuple(indices)
        self.seconds = seconds
        super().__init__(
            f"envs {describe_indices(self.indices)} did not finish their {what} within {seconds:g} s. {then}{cause}"
        )


class StartTimeout(VecEnvError, TimeoutError):
    """Raised when a worker has not made its envs within `start_timeout` seconds, or not ended their first reset.

    Attributes:
        worker: the number of the worker.
        indices: its envs.
        seconds: the time limit.
    """

    def __init__(
        self, worker: int, indices: Sequence[int], seconds: float, where: str = "", what: str = "made"
    ) -> None:
        self.worker = worker
        self.indices = tuple(indices)
        self.seconds = seconds
        super().__init__(
            f"worker {worker}{where} did not start within {seconds:g} s: envs {describe_indices(self.indices)} have "
            f"not been {what}. Give a longer start_timeout if they need it, or find out what they wait for. Envs that "
            "use JAX, CUDA or threads do so for ever in a fork of a process that has used these, too: "
            "start_method='forkserver'"
        )


class AlreadySteppingError(VecEnvError):
    """Raised by a command for an env that has not answered its last one. Nothing was sent."""


class NotSteppingError(VecEnvError):
    """Raised by a wait for results when no command was sent."""


class ClosedError(VecEnvError):
    """Raised by any use of a closed VecEnv, or of one that belongs to the process which this one was forked from."""

    def __init__(self, what: str, forked: bool = False, of: str = "VecEnv") -> None:
        which = f"a {of} of the process that this one was forked from" if forked else f"a closed {of}"
        super().__init__(f"{what} on {which}: make a new one")


class StateError(EnvError):
    """Raised when the state of an env cannot be read, saved or set. The message says what prevents it, and where."""


class SpaceMismatch(VecEnvError):
    """Raised when the envs of one VecEnv have different spaces or render modes: a batch needs equal ones.

    Attributes:
        index: the first env whose space or mode differs from that of env 0.
    """

    def __init__(self, index: int, which: str, theirs: object, ours: object, by_bounds: bool = False) -> None:
        self.index = index
        super().__init__(
            f"env {index} has {which} {theirs}, but env 0 has {ours}. All envs of one VecEnv must agree: "
            f"{_remedy(theirs, ours)}{_OTHER_BOUNDS if by_bounds else ''}"
        )


_OTHER_BOUNDS = ". Where only the bounds differ, observation_mode='different' takes them, with the space of env 0"


def _remedy(theirs: object, ours: object) -> str:
    if _ADDRESS.sub("", str(theirs)) == _ADDRESS.sub("", str(ours)):  # they look the same
        return "if these spaces are equal, define an __eq__ in their class that says so"
    return "wrap the envs so that they do, or put them into several VecEnvs"


class BackendUnavailable(VecEnvError, ImportError):
    """Raised when a library or program that a backend needs is missing. The message says what to install or do."""


def describe_indices(indices: Sequence[int]) -> str:
    """Return env indices as text.

    Args:
        indices: the indices, in any order.

    Returns:
        The text: "0-3, 9" for [0, 1, 2, 3, 9].
    """
    parts: list[str] = []
    run: list[int] = []
    ends: list[int | None] = [*sorted(indices), None]
    for index in ends:
        if run and index is not None and index == run[-1] + 1:
            run.append(index)
            continue
        if run:
            parts.append(f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)))
        run = [] if index is None else [index]
    return ", ".join(parts)


def describe_exit(exitcode: int | None) -> str:
    """Return an exit code as text.

    Args:
        exitcode: the exit code as in `subprocess`: negative for a signal, None if unknown.

    Returns:
        The text, with the name of the signal if a signal ended the process.
    """
    if exitcode is None:
        return "exit code unknown"
    if exitcode >= 0:
        return f"exit code {exitcode}"
    try:
        return f"signal {-exitcode}, {signal.Signals(-exitcode).name}"
    except ValueError:
        return f"signal {-exitcode}"
