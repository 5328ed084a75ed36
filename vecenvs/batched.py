"""`Batched`: marks a function that makes one env which steps many envs at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

MODES = ("same_step", "next_step", "disabled")


class Batched:
    """A function that makes one batched env, as an entry of `env_fns`.

    All engines take a list of these, also mixed with functions that make a single env each. The envs are numbered
    through: the functions `[Batched(make, 4), make_one]` make the envs 0 to 3 and 4. A batched env has a worker of its
    own.

    Args:
        make: a function without arguments that returns a gymnasium.vector.VectorEnv, a VecEnv, or any object with
            `reset` and `step` over arrays or tensors (see docs/batched.md).
        num_envs: how many envs the batched env steps at once.
        autoreset: what it does at the end of an episode, "same_step", "next_step" or "disabled", where its metadata
            has no "autoreset_mode".

    Raises:
        TypeError: `make` is not a function, or `num_envs` not an int.
        ValueError: `num_envs` is less than 1, or `autoreset` is unknown.
    """

    def __init__(self, make: Callable[[], Any], num_envs: int, autoreset: str | None = None) -> None:
        if not callable(make):
            raise TypeError(f"Batched takes a function that makes a batched env (lambda: ...), not {make!r}")
        given: Any = num_envs
        if isinstance(given, bool) or not hasattr(given, "__index__"):
            raise TypeError(f"Batched: num_envs must be an int, not {given!r}")
        self.make = make
        self.num_envs: int = given.__index__()
        if self.num_envs < 1:
            raise ValueError(f"Batched: num_envs must be at least 1, not {num_envs}")
        if autoreset not in (None, *MODES):
            raise ValueError(f"Batched: autoreset {autoreset!r} is none of {', '.join(map(repr, MODES))}")
        self.autoreset = autoreset

    def __call__(self) -> Any:
        """Make the batched env."""
        return self.make()

    def __repr__(self) -> str:
        return f"Batched({self.make!r}, {self.num_envs})"


def width(env_fn: Any) -> int:
    """Return how many envs an env function makes."""
    return env_fn.num_envs if isinstance(env_fn, Batched) else 1
