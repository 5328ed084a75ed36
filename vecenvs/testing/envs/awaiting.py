"""Envs whose methods are coroutines."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Iterable
from typing import Any


def awaiting(env_fns: Iterable[Any]) -> list[Any]:
    """Make env functions of envs whose methods are coroutines, each of which lets the others run before it begins.

    Args:
        env_fns: functions that make an env each.

    Returns:
        Functions that make the same envs, with other methods `reset`, `step` and `close`. What is no function is as it
        was.
    """
    return [functools.partial(_awaiting, fn) if callable(fn) else fn for fn in env_fns]


def _awaiting(env_fn: Callable[[], Any]) -> Any:
    env = env_fn()
    for name in ("reset", "step", "close"):
        with contextlib.suppress(AttributeError):  # what is no env is to be found out by others
            setattr(env, name, _coroutine(getattr(env, name)))
    return env


def _coroutine(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    async def later(*args: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(0)
        return method(*args, **kwargs)

    return later
