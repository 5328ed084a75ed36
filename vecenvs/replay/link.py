"""Calls to actors: plain results, and this project's errors in place of Ray's."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from vecenvs.backends.ray.actor import Home
from vecenvs.backends.ray.cluster import Connection, shorten
from vecenvs.backends.ray.foreign_process import ForeignProcess
from vecenvs.replay.errors import ServerDied

CHECK_INTERVAL = 0.2  # seconds of a wait between checks of whether it still makes sense


def check_connection(connection: Connection) -> None:
    """Raise ServerDied if the connection to Ray is gone: a call would start another Ray."""
    if not connection.alive():
        raise ServerDied("the connection to Ray has been closed")


def result_of(call: Any, timeout: float | None = None) -> Any:
    """Return a call's result or raise its exception as it is; Ray's RayActorError if the actor has died."""
    import ray

    try:
        return ray.get(call, timeout=timeout)
    except ray.exceptions.RayTaskError as exc:
        cause = getattr(exc, "cause", None)
        if isinstance(cause, Exception):
            raise cause from None
        raise


def checked_result_of(call: Any, check: Callable[[], None]) -> Any:
    """Wait without limit for `result_of(call)`; call `check`, which may raise, five times a second."""
    import ray

    while True:
        try:
            return result_of(call, CHECK_INTERVAL)
        except ray.exceptions.GetTimeoutError:
            check()


@contextlib.contextmanager
def _server_errors() -> Iterator[None]:
    """Raise ServerDied in place of Ray's errors for a dead actor."""
    import ray

    try:
        yield
    except (ray.exceptions.RayActorError, ray.exceptions.ObjectLostError) as exc:
        raise ServerDied(shorten(str(exc))) from None


def server_result(call: Any, timeout: float | None = None) -> Any:
    """Return `result_of` a call to the server; ServerDied if the server has died."""
    with _server_errors():
        return result_of(call, timeout)


def checked_server_result(call: Any, check: Callable[[], None]) -> Any:
    """Return `checked_result_of` a call to the server; ServerDied if the server has died."""
    with _server_errors():
        return checked_result_of(call, check)


def watch_process(home: Home, node: str) -> ForeignProcess | None:
    """Return the actor's process if it runs on this `node`."""
    return ForeignProcess(home.pid) if home.node == node else None


def end_actor(actor: Any, process: ForeignProcess | None, deadline: float, connection: Connection) -> None:
    """Wait until `deadline` for an actor's process to end, then kill it: by Ray if still connected, and by signal."""
    import ray

    if process is not None:
        process.wait(deadline - time.monotonic())
    if connection.alive():
        ray.kill(actor)
    if process is not None:
        if not process.wait(1.0):
            process.kill()
            process.wait(1.0)
        process.close()
