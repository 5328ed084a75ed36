"""`VecEnvWrapper` as in baselines and Stable-Baselines3: subclasses may define `reset(self)` and `step_wait(self)`.

The wrappers and views around such a class call it with all arguments of the contract (indices, seeds, a timeout).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from vecenvs.arguments import parse_indices
from vecenvs.errors import EnvError, VecEnvError
from vecenvs.vec_env import Batch, Indices, Options, Seeds, StepReturn
from vecenvs.wrappers import base
from vecenvs.wrappers.vec_rows import VecBatchWrapper


class VecEnvWrapper(base.VecEnvWrapper):
    """Pass every call on to `venv`, as the class of this name in `vecenvs.wrappers.base` does.

    A subclass may define `reset` and `step_wait` with the signatures of the contract, or with fewer parameters, as
    for baselines and SB3. The class gets methods with the contract's signatures in their place, which call these:

    * A seed and options that `reset` does not take are given to `venv.seed` and `venv.set_options` before it.
    * A reset of some of the envs, and a timeout of `step_wait`, raise VecEnvError if the method does not take them.
    * Rows that come by `recv` would bypass both methods. So `send`, `reset_async` and `recv` raise VecEnvError unless
      the subclass has a `recv` of its own.
    * The rows in the `batch` of an EnvError would bypass them, too, so it is None then.

    Args:
        venv: the VecEnv to wrap.
        observation_space: the space of one env's observations as this wrapper returns them; None for that of `venv`.
        action_space: the space of one env's actions as this wrapper takes them; None for that of `venv`.

    Raises:
        TypeError: `venv` is not a VecEnv.
    """

    # Whether a method of this class, or of a base between it and this one, lacks parameters of the contract.
    _has_narrow_methods: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Put methods with the contract's signatures in the place of narrower ones."""
        super().__init_subclass__(**kwargs)
        for name, widened in (("reset", _widened_reset), ("step_wait", _widened_step_wait)):
            method = vars(cls).get(name)
            if inspect.isfunction(method) and (wide := widened(method)) is not method:
                setattr(cls, name, wide)
                cls._has_narrow_methods = True

    def send(self, actions: Any, indices: Indices = None) -> None:
        self._check_recv("send")
        super().send(actions, indices)

    def reset_async(self, indices: Indices = None, *, seed: Seeds = None, options: Options = None) -> None:
        self._check_recv("reset_async")
        super().reset_async(indices, seed=seed, options=options)

    def recv(
        self, min_envs: int = 1, max_envs: int | None = None, timeout: float | None = None, indices: Indices = None
    ) -> Batch:
        self._check_recv("recv")
        return super().recv(min_envs, max_envs, timeout, indices)

    def _check_recv(self, what: str) -> None:
        """Raise VecEnvError if rows of `recv` would bypass the subclass's `step_wait` or `reset`."""
        cls = type(self)
        if cls._has_narrow_methods and cls.recv is VecEnvWrapper.recv:
            raise VecEnvError(
                f"{what}: {cls.__name__} has a step_wait or reset of its own, but no recv, which would return the "
                "rows: write one, or use step and reset"
            )


# The library's wrappers, whose methods take all arguments of the contract, count as instances: programs that unwrap a
# VecEnv ask `isinstance(vec, VecEnvWrapper)`.
VecEnvWrapper.register(VecBatchWrapper)  # type: ignore[type-abstract]


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
