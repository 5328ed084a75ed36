"""Asking an actor and getting plain answers: Ray's errors turned into ours at the edge."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import cloudpickle

from vecenvs.backends.ray.actor import Home
from vecenvs.backends.ray.cluster import Connection, shorten
from vecenvs.backends.ray.foreign_process import ForeignProcess
from vecenvs.replay.errors import ServerDied

LOOK = 0.2  # seconds between looks at whether waiting still makes sense


def check_connection(connection: Connection) -> None:
    """Raise ServerDied if that Ray is gone: a call would start another one."""
    if not connection.alive():
        raise ServerDied("the connection to Ray has been closed")


def pickled_call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """Pickle a function of one more argument, which comes first: the object that it is called with over there."""
    data: bytes = cloudpickle.dumps(partial(_call, function, args, kwargs), protocol=5)
    return data


def _call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], owner: Any) -> Any:
    return function(owner, *args, **kwargs)


def answer_of(call: Any, timeout: float | None = None) -> Any:
    """Give a call's result, or raise what it raised, as it is. The death of its actor is Ray's RayActorError."""
    import ray

    try:
        return ray.get(call, timeout=timeout)
    except ray.exceptions.RayTaskError as exc:
        cause = getattr(exc, "cause", None)
        if isinstance(cause, Exception):
            raise cause from None
        raise


def answer_patiently(call: Any, check: Callable[[], None]) -> Any:
    """As `answer_of`, however long it takes; `check` is called five times a second and may raise."""
    import ray

    while True:
        try:
            return answer_of(call, LOOK)
        except ray.exceptions.GetTimeoutError:
            check()


@contextlib.contextmanager
def _of_server() -> Iterator[None]:
    """Turn the death of an asked actor, the server, into ServerDied."""
    import ray

    try:
        yield
    except (ray.exceptions.RayActorError, ray.exceptions.ObjectLostError) as exc:
        raise ServerDied(shorten(str(exc))) from None


def get(call: Any, timeout: float | None = None) -> Any:
    """As `answer_of`, for a call to the server."""
    with _of_server():
        return answer_of(call, timeout)


def get_patiently(call: Any, check: Callable[[], None]) -> Any:
    """As `answer_patiently`, for a call to the server."""
    with _of_server():
        return answer_patiently(call, check)


def watched(home: Home, node: str) -> ForeignProcess | None:
    """Watch an actor's process, if it runs on this `node`."""
    return ForeignProcess(home.pid) if home.node == node else None


def end(actor: Any, process: ForeignProcess | None, deadline: float, connection: Connection) -> None:
    """Wait until `deadline` for an actor's process to be gone, then kill it. Ray is told, if it is still that one."""
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
