"""`VecEnvWrapper`: a VecEnv around another one, the base of everything that changes what a VecEnv gives."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from vecenvs.arguments import check_vec_env, parse_indices
from vecenvs.errors import VecEnvError
from vecenvs.vec_env import Batch, Indices, Options, Seeds, StepReturn, VecEnv


class VecEnvWrapper(VecEnv):
    """Passes every call on to `venv`. Subclasses override what they change; nothing is forwarded by magic.

    A subclass that changes observations or rewards overrides `reset`, `step_wait` and `recv` alike. It may write them
    as for baselines and SB3, `reset(self)` and `step_wait(self)`: seeds and options given to such a `reset` go to
    `venv` before it; a reset of some envs, a timeout, and, as long as it has no `recv` of its own, that, `send` and
    `reset_async` are a VecEnvError. It may declare other spaces than those of `venv`.
    """

    # Whether methods of this class, or of one between it and this, were written for baselines or SB3.
    _for_others: ClassVar[bool] = False

    def __init__(
        self,
        venv: VecEnv,
        observation_space: spaces.Space[Any] | None = None,
        action_space: spaces.Space[Any] | None = None,
    ) -> None:
        check_vec_env(type(self).__name__, venv)
        self.venv = venv
        self.num_envs = venv.num_envs
        self.observation_space = venv.observation_space if observation_space is None else observation_space
        self.action_space = venv.action_space if action_space is None else action_space
        self.spec = venv.spec
        self.metadata = venv.metadata
        self.render_mode = venv.render_mode
        self.autoreset = venv.autoreset
        self.copy = venv.copy

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, widened in (("reset", _widened_reset), ("step_wait", _widened_step_wait)):
            method = vars(cls).get(name)
            if inspect.isfunction(method) and (wide := widened(method)) is not method:
                setattr(cls, name, wide)
                cls._for_others = True

    @property
    def closed(self) -> bool:  # type: ignore[override]
        return self.venv.closed

    @property
    def reset_infos(self) -> list[dict[str, Any]]:  # type: ignore[override]
        return self.venv.reset_infos

    @property
    def unwrapped(self) -> VecEnv:
        return self.venv.unwrapped

    @property
    def active(self) -> NDArray[np.bool_]:
        return self.venv.active

    @property
    def terminated(self) -> NDArray[np.bool_]:
        return self.venv.terminated

    @property
    def truncated(self) -> NDArray[np.bool_]:
        return self.venv.truncated

    @property
    def rewards64(self) -> NDArray[np.float64]:
        return self.venv.rewards64

    def info_array(self, name: str) -> NDArray[Any]:
        return self.venv.info_array(name)

    def reset(self, indices: Indices = None, *, seed: Seeds = None, options: Options = None) -> Any:
        return self.venv.reset(indices, seed=seed, options=options)

    def step_async(self, actions: Any) -> None:
        self.venv.step_async(actions)

    def step_wait(self, timeout: float | None = None) -> StepReturn:
        return self.venv.step_wait(timeout)

    def send(self, actions: Any, indices: Indices = None) -> None:
        self._check_recv("send")
        self.venv.send(actions, indices)

    def reset_async(self, indices: Indices = None, *, seed: Seeds = None, options: Options = None) -> None:
        self._check_recv("reset_async")
        self.venv.reset_async(indices, seed=seed, options=options)

    def _check_recv(self, what: str) -> None:
        """Refuse what would give rows by `recv` that go past what `step_wait` and `reset` do."""
        cls = type(self)
        if cls._for_others and cls.recv is VecEnvWrapper.recv:
            raise VecEnvError(
                f"{what}: {cls.__name__} has a step_wait or reset of its own, but no recv, by which the rows would "
                "come: write one, or use step and reset"
            )

    def recv(self, min_envs: int = 1, max_envs: int | None = None, timeout: float | None = None) -> Batch:
        self._check_recv("recv")
        return self.venv.recv(min_envs, max_envs, timeout)

    def seed(self, seed: Seeds = None) -> list[int | None]:
        return self.venv.seed(seed)

    def set_options(self, options: Options = None) -> None:
        self.venv.set_options(options)

    def call(self, function: Callable[..., Any], indices: Indices, *args: Any, **kwargs: Any) -> list[Any]:
        return self.venv.call(function, indices, *args, **kwargs)

    def call_async(self, function: Callable[..., Any], indices: Indices, *args: Any, **kwargs: Any) -> None:
        self.venv.call_async(function, indices, *args, **kwargs)

    def call_wait(self, timeout: float | None = None) -> list[Any]:
        return self.venv.call_wait(timeout)

    def _envs_here(self) -> list[Any]:
        return self.venv.envs

    # A VecEnv may have ways of its own to these, without `call`: over a Gymnasium vector env there is no other.

    def get_attr(self, name: str, indices: Indices = None) -> list[Any]:
        return self.venv.get_attr(name, indices)

    def set_attr(self, name: str, value: Any, indices: Indices = None) -> None:
        self.venv.set_attr(name, value, indices)

    def has_attr(self, name: str) -> bool:
        return self.venv.has_attr(name)

    def env_method(self, name: str, *args: Any, indices: Indices = None, **kwargs: Any) -> list[Any]:
        return self.venv.env_method(name, *args, indices=indices, **kwargs)

    def env_is_wrapped(self, wrapper_class: type, indices: Indices = None) -> list[bool]:
        return self.venv.env_is_wrapped(wrapper_class, indices)

    def get_images(self, indices: Indices = None) -> list[Any]:
        return self.venv.get_images(indices)

    def stats(self) -> dict[str, Any]:
        return self.venv.stats()

    def close(self) -> None:
        self.venv.close()


# Whoever calls a VecEnv (views, the wrappers around it) may use all arguments of the contract. Methods written for
# baselines or SB3, where they have none, are called with what they take, by name.


def _widened_reset(method: Callable[..., Any]) -> Callable[..., Any]:
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
        return method(self, **{name: given[name] for name in taken if given[name] is not None})

    return reset


def _widened_step_wait(method: Callable[..., Any]) -> Callable[..., Any]:
    if "timeout" in inspect.signature(method).parameters:
        return method
    taken = _taken(method, ("timeout",))

    @functools.wraps(method)
    def step_wait(self: VecEnvWrapper, timeout: float | None = None) -> StepReturn:
        if timeout is not None and not taken:
            raise VecEnvError(
                f"{type(self).__name__}.step_wait takes no timeout: write it as step_wait(self, timeout=None)"
            )
        result: StepReturn = method(self) if timeout is None else method(self, timeout=timeout)
        return result

    return step_wait


def _taken(method: Callable[..., Any], names: tuple[str, ...]) -> tuple[str, ...]:
    """Say which of these arguments the method takes by name."""
    parameters = inspect.signature(method).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return names
    return tuple(name for name in names if name in parameters)
