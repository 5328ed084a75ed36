"""Which worker this is: `this_worker` tells envs, env functions and initializers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from vecenvs.errors import VecEnvError


@dataclass(frozen=True)
class ThisWorker:
    """A worker, as `this_worker` tells it."""

    index: int  # its number among the VecEnv's workers, from 0
    num_workers: int
    slots: range  # the indices of its envs
    env_index: int | None  # of the env that is being made
    node: str  # the name of its machine
    index_on_node: int  # its number among this VecEnv's workers on that machine, from 0


told: ThisWorker | None = None  # the worker whose envs run now
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
    if told is None:
        raise VecEnvError(
            "this_worker() is for env functions, initializers and envs, which a VecEnv's worker runs: call it there; "
            "envs in the calling process have to call it while they are made, too"
        )
    return told


@contextmanager
def acting(worker: ThisWorker | None, making: int | None = None) -> Iterator[None]:
    """Let `this_worker` tell of a worker, and of the env that it makes."""
    global told  # noqa: PLW0603
    before, told = told, None if worker is None else replace(worker, env_index=making)
    try:
        yield
    finally:
        told = before
