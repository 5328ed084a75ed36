"""Asking an actor and getting plain answers: Ray's errors turned into ours at the edge."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import cloudpickle

from vecenvs.backends.ray_actor import Home
from vecenvs.backends.ray_cluster import shorten
from vecenvs.backends.ray_exit import ForeignProcess
from vecenvs.errors import BackendUnavailable
from vecenvs.replay.errors import ServerDied

LOOK = 0.2  # seconds between looks at whether waiting still makes sense


def import_paths() -> list[str]:
    """Where the caller's imports look, for actors to look there too."""
    return [os.path.abspath(path) for path in sys.path if "site-packages" not in path]


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


def get(call: Any, timeout: float | None = None) -> Any:
    """As `answer_of`, for a call to the server: its death is ServerDied."""
    import ray

    try:
        return answer_of(call, timeout)
    except (ray.exceptions.RayActorError, ray.exceptions.ObjectLostError) as exc:
        raise ServerDied(shorten(str(exc))) from None


def get_patiently(call: Any, check: Callable[[], None]) -> Any:
    """As `get`, however long it takes; `check` is called five times a second and may raise."""
    import ray

    while True:
        try:
            return get(call, LOOK)
        except ray.exceptions.GetTimeoutError:
            check()


def wait_placed(calls: dict[str, Any], options: dict[str, Any], seconds: float) -> dict[str, Home]:
    """Wait until the actors behind these `home` calls run. BackendUnavailable says what the others wait for."""
    import ray

    names = {call: name for name, call in calls.items()}
    ready, missing = ray.wait(list(names), num_returns=len(names), timeout=seconds)
    homes = {}
    for call in ready:
        try:
            homes[names[call]] = answer_of(call)
        except ray.exceptions.ActorUnschedulableError:  # so much not even its whole node has
            missing.append(call)
        except ray.exceptions.RayActorError as exc:
            raise BackendUnavailable(f"{names[call]} did not start: {shorten(str(exc))}") from None
    if missing:
        needs = {key: options[key] for key in ("num_cpus", "num_gpus", "resources") if options.get(key)}
        raise BackendUnavailable(
            f"Ray has found no place for {', '.join(sorted(names[call] for call in missing))} within {seconds:g} s. "
            f"Each needs {needs or 'nothing in particular'}; of its {ray.cluster_resources()} there are "
            f"{ray.available_resources()} free. Ask for less (num_cpus in explorer_options or server_options), take "
            "fewer explorers, or give a longer ready_timeout where nodes are still being added"
        )
    return homes


def watched(home: Home, node: str) -> ForeignProcess | None:
    """Watch an actor's process, if it runs on this `node`."""
    return ForeignProcess(home.pid) if home.node == node else None


def end(actor: Any, process: ForeignProcess | None, deadline: float) -> None:
    """Wait until `deadline` for an actor's process to be gone, then kill it. Ray is told in either case."""
    import ray

    if process is not None:
        process.wait(deadline - time.monotonic())
    if ray.is_initialized():
        ray.kill(actor)
    if process is not None:
        if not process.wait(1.0):
            process.kill()
            process.wait(1.0)
        process.close()
