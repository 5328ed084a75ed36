"""What can go wrong, one class each. Every message names what, where (the env index) and the remedy."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vecenvs.vec_env import Batch


_ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # in what object's __repr__ gives


class VecEnvError(RuntimeError):
    """Base of every error that a VecEnv raises about itself, its envs or its workers. All of them can be pickled."""

    _given: tuple[object, ...] | None = None  # what __init__ was called with, where that is not the message

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self.args if self._given is None else self._given, self.__dict__


class EnvError(VecEnvError):
    """Code of one env raised. The VecEnv stays usable; the env's slot needs `reset([index])`.

    `index` is the global env index, `remote_traceback` the traceback as text from where the env lives.
    `__cause__` is the env's own exception where it can be pickled, else a `RemoteError` showing that text.
    `errors` holds one EnvError for each env that failed in the same call, this one first. After a lock-step
    `step`, `batch` holds the rows of the envs that did complete it, so that nothing is lost; otherwise None.
    """

    def __init__(self, index: int, message: str, remote_traceback: str = "") -> None:
        super().__init__(message)
        self.index = index
        self.remote_traceback = remote_traceback
        self.errors: tuple[EnvError, ...] = (self,)
        self.batch: Batch | None = None

    def __str__(self) -> str:
        text = super().__str__()
        others = [str(error.index) for error in self.errors[1:]]
        if others:
            text += f" (so did env {', '.join(others)}: see .errors)"
        if self.remote_traceback:
            text += f"\n\nTraceback from where env {self.index} lives:\n{self.remote_traceback.rstrip()}"
        return text

    def tell_reset(self, remedy: Callable[[int], str]) -> None:
        """Where envs must be reset first, say how by `remedy(index)`: in the words of the interface that was called.

        For interfaces that have no `reset([index])`. The traceback goes, which has our words and nobody else's code.
        """
        for error in self.errors:
            cause = error.__cause__
            if isinstance(cause, ResetNeededError):
                error.__cause__ = told = ResetNeededError(cause.why, remedy(error.index))
                error.args, error.remote_traceback = (str(told),), ""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.index, *self.args, self.remote_traceback), self.__dict__


class RepeatedEnvError(EnvError, ValueError):
    """An env function gave an env that another one had given already. A ValueError, as with Stable-Baselines3."""


class ResetNeededError(VecEnvError):
    """An env was stepped that must be reset first: it is new, has failed, or ended its episode under "disabled".

    `why` says so without the remedy.
    """

    def __init__(self, why: str, remedy: str) -> None:
        super().__init__(f"{why}: {remedy}")
        self._given = (why, remedy)
        self.why = why


class RemoteError(Exception):
    """Stands in as `__cause__` for an exception that could not be brought over from its worker."""


UNGUARDED = 113  # the exit code of a worker that found itself in a script without a guard
GUARD = (
    "with start methods spawn and forkserver each worker imports the script anew, so everything that the script does "
    "must stand below `if __name__ == '__main__':`"
)

# What follows from a worker's death, by how things stand.
_AFTER_DEATH = {
    "starting": ("Its envs have not been made: what the process has printed may tell why"),
    "lost": "Its envs are lost: close() this VecEnv and make a new one, or construct it with on_failure='restart'",
    "replaced": "Another worker takes its place, whose envs begin new episodes: what was asked may be asked again",
    "spent": "Its envs are lost, as all max_restarts have been used: find out what ends it, and make a new VecEnv",
}


class WorkerDied(VecEnvError):
    """The process that steps the envs `indices` is gone. The other workers' envs can still be used.

    `exitcode` is as in `subprocess`: negative for a signal, None if unknown; `signal` is that signal's number. `state`
    says how things stand: "starting" (there is no VecEnv yet), "lost", "replaced" (by on_failure="restart"), "spent"
    (so often that it is not replaced again).
    """

    def __init__(
        self, worker: int, indices: Sequence[int], exitcode: int | None = None, where: str = "", state: str = "lost"
    ) -> None:
        self._given = (worker, tuple(indices), exitcode, where, state)
        self.worker = worker
        self.where = where
        self.state = state
        self.indices = tuple(indices)
        self.exitcode = exitcode
        self.signal = -exitcode if exitcode is not None and exitcode < 0 else None
        whose = f"worker {worker}{where} with envs {describe_indices(self.indices)}"
        if state == "starting" and exitcode == UNGUARDED:
            super().__init__(
                f"the script has no guard: {GUARD}, or use start_method='fork' ({whose} has ended for that)"
            )
        else:
            super().__init__(f"{whose} died ({describe_exit(exitcode)}). {_AFTER_DEATH[state]}")

    def but(self, state: str) -> WorkerDied:
        """The same death in another state of things."""
        return WorkerDied(self.worker, self.indices, self.exitcode, self.where, state)


class StepTimeout(VecEnvError, TimeoutError):
    """The envs `indices` did not answer in time. Nothing is lost: their rows still come by a later wait."""

    def __init__(self, indices: Sequence[int], seconds: float, what: str = "step") -> None:
        self._given = (tuple(indices), seconds, what)
        self.indices = tuple(indices)
        self.seconds = seconds
        super().__init__(
            f"envs {describe_indices(self.indices)} did not finish their {what} within {seconds:g} s. "
            "Wait again for their rows, or close()"
        )


class StartTimeout(VecEnvError, TimeoutError):
    """A worker has not made the envs `indices` within `start_timeout` seconds."""

    def __init__(self, worker: int, indices: Sequence[int], seconds: float, where: str = "") -> None:
        self._given = (worker, tuple(indices), seconds, where)
        self.worker = worker
        self.indices = tuple(indices)
        self.seconds = seconds
        super().__init__(
            f"worker {worker}{where} did not start within {seconds:g} s: envs {describe_indices(self.indices)} have "
            "not been made. Give a longer start_timeout if they need it, or find out what they wait for"
        )


class AlreadySteppingError(VecEnvError):
    """A command was given for an env that has not answered its last one. Nothing was sent."""


class NotSteppingError(VecEnvError):
    """Results were asked for while no command is pending."""


class ClosedError(VecEnvError):
    """The VecEnv has been closed, or is that of the process which this one was forked from."""

    def __init__(self, what: str, forked: bool = False) -> None:
        self._given = (what, forked)
        which = "a VecEnv of the process that this one was forked from" if forked else "a closed VecEnv"
        super().__init__(f"{what} on {which}: make a new one")


class SpaceMismatch(VecEnvError):
    """Env `index` has another observation space, action space or render mode than env 0: a batch needs equal ones."""

    def __init__(self, index: int, which: str, theirs: object, ours: object, by_bounds: bool = False) -> None:
        self._given = (index, which, theirs, ours, by_bounds)
        self.index = index
        super().__init__(
            f"env {index} has {which} {theirs}, but env 0 has {ours}. All envs of one VecEnv must agree: "
            f"{_remedy(theirs, ours)}{_OTHER_BOUNDS if by_bounds else ''}"
        )


_OTHER_BOUNDS = ". Where only the bounds differ, observation_mode='different' takes them, with the space of env 0"


def _remedy(theirs: object, ours: object) -> str:
    if _ADDRESS.sub("", str(theirs)) == _ADDRESS.sub("", str(ours)):  # as far as one can see
        return "if these are the same, give the class of such a space an __eq__ that compares what makes them so"
    return "wrap the envs so that they do, or put them into a VecEnv of their own"


class BackendUnavailable(VecEnvError, ImportError):
    """What a backend needs is missing here. The message says what to install or do."""


def describe_indices(indices: Sequence[int]) -> str:
    """Write `[0, 1, 2, 3, 9]` as `0-3, 9`."""
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
    """Write an exit code as a person would: the signal's name if one ended the process."""
    if exitcode is None:
        return "exit code unknown"
    if exitcode >= 0:
        return f"exit code {exitcode}"
    try:
        return f"signal {-exitcode}, {signal.Signals(-exitcode).name}"
    except ValueError:
        return f"signal {-exitcode}"
