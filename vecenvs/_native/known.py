"""Wrappers of envs whose `step` the compiled core does itself, without calls in Python.

The core does so only for objects of exactly such a class, and as long as the class's `step`, looked up at every step,
is the function that it was here: a patched one is called.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from gymnasium import Wrapper
from gymnasium.wrappers import OrderEnforcing, TimeLimit

TIME_LIMIT, ORDER_ENFORCING, MONITOR = range(3)  # as in core.c

# The names that the code of each `step` uses in those versions of Gymnasium whose `step` the core does.
_NAMES = {
    TimeLimit: {"env", "step", "_elapsed_steps", "_max_episode_steps"},
    OrderEnforcing: {"_has_reset", "ResetNeeded", "super", "step"},
    Wrapper: {"env", "step"},
}


def know_wrappers(core: ModuleType) -> None:
    """Tell the compiled core which of Gymnasium's wrappers it may do."""
    if _is_as_written(TimeLimit):
        core.know(TIME_LIMIT, TimeLimit)
    if _is_as_written(OrderEnforcing) and _is_as_written(Wrapper):
        core.know(ORDER_ENFORCING, OrderEnforcing, Wrapper)


def _is_as_written(cls: Any) -> bool:
    code = getattr(cls.step, "__code__", None)
    return code is not None and set(code.co_names) == _NAMES[cls] and cls.step.__module__ == cls.__module__
