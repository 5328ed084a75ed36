"""Calls to actors: plain results, and this project's errors in place of Ray's."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import cloudpickle

from vecenvs import env_calls
from vecenvs.backends.ray.actor import ActorLocation
from vecenvs.backends.ray.cluster import Connection, shorten
from vecenvs.backends.ray.foreign_process import ForeignProcess
from vecenvs.replay.errors import ServerDied

CHECK_INTERVAL = 0.2  # seconds of a wait between checks of whether it still makes sense


def check_connection(connection: Connection) -> None:
    """Raise ServerDied if the connection to Ray is gone: a call would start another Ray."""
    if not connection.alive():
        raise ServerDied("the connection to Ray has been closed")


def result_of(call: Any, check: Callable[[], None] | None = None) -> Any:
    """Return a call's result or raise its exception as it is; Ray's RayActorError if the actor has died.

    `check`, which may raise, is called five times a second during the wait.
    """
    import ray

    while True:
        try:
            return ray.get(call, timeout=None if check is None else CHECK_INTERVAL)
        except ray.exceptions.GetTimeoutError:
            if check is not None:
                check()
        except ray.exceptions.RayTaskError as exc:
            cause = getattr(exc, "cause", None)
            if isinstance(cause, Exception):
                raise cause from None
            raise


def server_result(call: Any, check: Callable[[], None] | None = None) -> Any:
    """Return `result_of` a call to the server; ServerDied if the server has died."""
    import ray

    try:
        return result_of(call, check)
    except (ray.exceptions.RayActorError, ray.exceptions.ObjectLostError) as exc:
        raise ServerDied(shorten(str(exc))) from None


def pickle_call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """Pickle `function` with all its arguments except the first, which is the object in the actor."""
    data: bytes = cloudpickle.dumps((function, args, kwargs), protocol=5)
    return data


def run_call(owner: Any, function: bytes) -> bytes:
    """Return the pickled result of a call by `pickle_call` with `owner`; TypeError if it cannot be pickled."""
    try:
        called, args, kwargs = cloudpickle.loads(function)
        result = called(owner, *args, **kwargs)
    except SystemExit as exc:  # it would end the actor
        raise RuntimeError(f"the call raised SystemExit({exc.code!r})") from exc
    try:
        data: bytes = cloudpickle.dumps(result, protocol=5)
    except Exception as exc:  # a __reduce__ may raise anything
        raise TypeError(
            f"the result is a {type(result).__name__}, which cannot leave its process ({type(exc).__name__}: {exc}): "
            "ask for parts of it, by get_attr('name.part') or a function that returns numbers, arrays or text"
        ) from None
    return data


def set_attr(owner: Any, name: str, value: Any) -> None:
    """Set an existing attribute: a misspelt name is an AttributeError."""
    env_calls.get_attr(owner, name)
    env_calls.set_attr(owner, name, value)


def watch_process(location: ActorLocation, node: str) -> ForeignProcess | None:
    """Return the actor's process if it runs on this `node`."""
    return ForeignProcess(location.pid) if location.node == node else None


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
