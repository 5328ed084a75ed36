"""This project's errors as those that users of Gymnasium's AsyncVectorEnv catch."""

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
    """A `*_wait` took longer than its timeout. Nothing is lost: the same `*_wait` can be called again.

    It is Python's TimeoutError (what Gymnasium's text names), multiprocessing's (what it raises) and StepTimeout.
    """


class OutOfReachError(VecEnvError):
    """Gymnasium's vector env does not let its single envs be asked this, or has none. Nothing was sent."""


def raise_as_gymnasium(error: VecEnvError, name: str) -> NoReturn:
    """Raise what Gymnasium raises in such a case; `name` is the call that met the error: "step", "reset" or "call".

    For an exception of an env that is the exception itself, as it was raised there, from the EnvError which names the
    env and shows the traceback of its process. Errors that Gymnasium has no word for are raised as they are.
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
        theirs = error.__cause__
        if isinstance(theirs, ResetNeededError):
            raise ResetNeeded(str(theirs)) from error
        # One that no pickle takes is here as text only; a VecEnvError is what we say about the env.
        if theirs is not None and not isinstance(theirs, (RemoteError, VecEnvError)):
            error.__cause__ = None  # else each would be the other's cause
            raise theirs from error
    raise error


def pending_error(what: str, name: str) -> AlreadyPendingCallError:
    """Make the error of a call while another one waits for its `*_wait`."""
    return AlreadyPendingCallError(f"{what} while a call to {name}_async is pending: call {name}_wait first", name)
