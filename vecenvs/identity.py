"""Which worker this is: `this_worker` tells envs, env functions and initializers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from vecenvs.errors import VecEnvError

T = TypeVar("T")


@dataclass(frozen=True)
class ThisWorker:
    """A worker, as `this_worker` tells it."""

    index: int  # its number among the VecEnv's workers, from 0
    num_workers: int
    slots: range  # the indices of its envs
    env_index: int | None  # of the env that is being made
    node: str  # the name of its machine
    index_on_node: int  # its number among this VecEnv's workers on that machine, from 0


class _Here(threading.local):
    worker: ThisWorker | None = None  # whose envs run in this thread now


_here = _Here()
_process: ThisWorker | None = None  # the worker that this process is
calls = 0  # of this_worker


def this_worker() -> ThisWorker:
    """Tell which worker of its VecEnv this is, in an env function, an `initializer` or an env.

    Returns:
        The worker: index, num_workers, slots, env_index, node and index_on_node.

    Raises:
        VecEnvError: no worker runs an env here. Of envs in the calling process only those may ask later on which have
            asked while they were made.
    """
    global calls  # noqa: PLW0603
    calls += 1
    if (found := current()) is None:
        raise VecEnvError(
            "this_worker() is for env functions, initializers and envs, which a VecEnv's worker runs: call it there; "
            "envs in the calling process have to call it while they are made, too"
        )
    return found


def current() -> ThisWorker | None:
    """Return the worker whose envs run here, if there is one."""
    return _here.worker or _process


def become(worker: ThisWorker) -> None:
    """Let this process be a worker."""
    global _process
    _here.worker, _process = None, worker


def adopt(worker: ThisWorker | None) -> None:
    """Let this thread run the envs of a worker."""
    _here.worker = worker


def acted(worker: ThisWorker | None, making: int | None, function: Callable[..., T], *args: object) -> T:
    """Call a function during which `this_worker` tells of a worker, and of the env that it makes."""
    before, now = _here.worker, worker and replace(worker, env_index=making)
    try:
        _here.worker = now
        return function(*args)
    finally:
        _here.worker = before  # nothing is called before this: the handler of a signal may raise when a call ends
