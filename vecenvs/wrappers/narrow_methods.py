"""Wrappers written for baselines or Stable-Baselines3, which define `reset(self)` and `step_wait(self)`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from vecenvs.arguments import parse_indices
from vecenvs.errors import EnvError, VecEnvError
from vecenvs.vec_env import Indices, Options, Seeds, StepReturn

if TYPE_CHECKING:
    from vecenvs.wrappers.base import VecEnvWrapper


def widen(cls: type) -> bool:
    """Put methods with the contract's signatures in the place of narrower ones; return whether there were any."""
    found = False
    for name, widened in (("reset", _widened_reset), ("step_wait", _widened_step_wait)):
        method = vars(cls).get(name)
        if inspect.isfunction(method) and (wide := widened(method)) is not method:
            setattr(cls, name, wide)
            found = True
    return found


def _widened_reset(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a `reset` with the contract's signature that calls `method`; `method` itself if it has this signature."""
    names = ("indices", "seed", "options")
    taken = _taken(method, names)
    if taken == names == tuple(inspect.signature(method).parameters)[1:4]:
        return method

    @functools.wraps(method)
    def reset(self: VecEnvWrapper, indices: Indices = None, *, seed: Seeds = None, options: Options = None) -> Any:
        given: dict[str, Any] = {"indices": indices, "seed": seed, "options": options}
        if "indices" not in taken and parse_indices(indices, self.num_envs) != list(range(self.num_envs)):
            raise VecEnvError(
                f"{type(self).__name__}.reset resets all envs at once: to reset some, write it as "
                "reset(self, indices=None, *, seed=None, options=None)"
            )
        if seed is not None and "seed" not in taken:
            self.venv.seed(seed)
        if options is not None and "options" not in taken:
            self.venv.set_options(options)
        with _rows_dropped():
            return method(self, **{name: given[name] for name in taken if given[name] is not None})

    return reset


def _widened_step_wait(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a `step_wait` with the contract's signature that calls `method`; `method` itself if it takes a timeout."""
    if "timeout" in inspect.signature(method).parameters:
        return method
    taken = _taken(method, ("timeout",))

    @functools.wraps(method)
    def step_wait(self: VecEnvWrapper, timeout: float | None = None) -> StepReturn:
        if timeout is not None and not taken:
            raise VecEnvError(
                f"{type(self).__name__}.step_wait takes no timeout: write it as step_wait(self, timeout=None)"
            )
        with _rows_dropped():
            result: StepReturn = method(self) if timeout is None else method(self, timeout=timeout)
        return result

    return step_wait


@contextmanager
def _rows_dropped() -> Iterator[None]:
    """Drop the rows of an EnvError: those of the others, which the method would have changed."""
    try:
        yield
    except EnvError as error:
        error.batch = None
        raise


def _taken(method: Callable[..., Any], names: tuple[str, ...]) -> tuple[str, ...]:
    """Return those of `names` that the method takes as keyword arguments."""
    parameters = inspect.signature(method).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return names
    return tuple(name for name in names if name in parameters)
