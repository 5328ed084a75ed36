"""Translate this project's errors into those that users of Gymnasium's AsyncVectorEnv catch."""

from __future__ import annotations

import multiprocessing
from typing import NoReturn

from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError, ResetNeeded

from vecenvs.errors import (
    AlreadySteppingError,
    ClosedError,
    EnvError,
    NotSteppingError,
    RemoteError,
    ResetNeededError,
    StepTimeout,
    VecEnvError,
)


class CallTimeout(StepTimeout, multiprocessing.TimeoutError):
    """A `*_wait` exceeded its timeout; a second call of the same `*_wait` gets the result.

    A subclass of Python's TimeoutError, which Gymnasium documents, and of multiprocessing's, which Gymnasium raises.
    """


def raise_as_gymnasium(error: VecEnvError, name: str) -> NoReturn:
    """Raise Gymnasium's counterpart of `error`; `name` is the call that failed: "step", "reset" or "call".

    An EnvError becomes the env's own exception, raised from the EnvError, which names the env and shows the traceback
    of its process. Errors without a counterpart are raised as they are.
    """
    if isinstance(error, StepTimeout):
        raise CallTimeout(error.indices, error.seconds, name) from error
    if isinstance(error, ClosedError):
        raise ClosedEnvironmentError(str(error)) from error
    if isinstance(error, AlreadySteppingError):
        raise AlreadyPendingCallError(str(error), name) from error
    if isinstance(error, NotSteppingError):
        raise NoAsyncCallError(str(error), name) from error
    if isinstance(error, EnvError):
        original = error.__cause__
        if isinstance(original, ResetNeededError):
            raise ResetNeeded(str(original)) from error
        # A RemoteError replaces an exception that cannot be pickled; a VecEnvError does not come from the env's code.
        if original is not None and not isinstance(original, (RemoteError, VecEnvError)):
            error.__cause__ = None  # else each would be the other's cause
            raise original from error
    raise error


def pending_error(what: str, name: str) -> AlreadyPendingCallError:
    """Return the error of a call `what` during an unfinished `name`_async."""
    return AlreadyPendingCallError(f"{what} while a call to {name}_async is pending: call {name}_wait first", name)
