"""`VecEnvWrapper`: a VecEnv around another one, the base of all that change what a VecEnv returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from vecenvs.arguments import check_vec_env
from vecenvs.batch.lazy_infos import Infos
from vecenvs.errors import VecEnvError
from vecenvs.state.env_state import EnvState
from vecenvs.vec_env import Batch, Indices, Options, Seeds, StepReturn, VecEnv
from vecenvs.wrappers.narrow_methods import widen


class VecEnvWrapper(VecEnv):
    """Pass every call on to `venv`. Subclasses override the methods whose results they change.

    Rows come by `reset`, `step_wait` and `recv`, so a subclass that changes observations, rewards or infos overrides
    all three; `VecRowsWrapper` has one method for it. Attributes of `venv` that are not in the contract are read from
    `venv` itself. (The wrappers of baselines and SB3 forward them by `__getattr__`.)

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

    Attributes:
        venv: the wrapped VecEnv.

    Raises:
        TypeError: `venv` is not a VecEnv, or returns tensors where this wrapper needs arrays.
    """

    _takes_arrays = False  # whether it computes with the arrays of rows
    _is_narrow: ClassVar[bool] = False  # whether it, or a base of it, defines methods with fewer parameters

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._is_narrow |= widen(cls)

    def __init__(
        self,
        venv: VecEnv,
        observation_space: spaces.Space[Any] | None = None,
        action_space: spaces.Space[Any] | None = None,
    ) -> None:
        check_vec_env(type(self).__name__, venv, tensors=not self._takes_arrays)
        self.venv = venv
        self.num_envs = venv.num_envs
        self.observation_space = venv.observation_space if observation_space is None else observation_space
        self.action_space = venv.action_space if action_space is None else action_space
        self.spec = venv.spec
        self.metadata = venv.metadata
        self.render_mode = venv.render_mode
        self.autoreset = venv.autoreset
        self.copy = venv.copy

    @property
    def closed(self) -> bool:  # type: ignore[override]
        """Whether `venv` is closed."""
        return self.venv.closed

    @property
    def reset_infos(self) -> Infos:  # type: ignore[override]
        """The info of each env's last reset, autoresets included."""
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

    def recv(
        self, min_envs: int = 1, max_envs: int | None = None, timeout: float | None = None, indices: Indices = None
    ) -> Batch:
        self._check_recv("recv")
        return self.venv.recv(min_envs, max_envs, timeout, indices)

    async def await_rows(self, min_envs: int = 1, timeout: float | None = None, indices: Indices = None) -> None:
        await self.venv.await_rows(min_envs, timeout, indices)

    def _check_recv(self, what: str) -> None:
        """Raise VecEnvError if rows of `recv` would bypass the subclass's `step_wait` or `reset`."""
        cls = type(self)
        if cls._is_narrow and cls.recv is VecEnvWrapper.recv:
            raise VecEnvError(
                f"{what}: {cls.__name__} has a step_wait or reset of its own, but no recv, which would return the "
                "rows: write one, or use step and reset"
            )

    def get_state(self, indices: Indices = None, *, verify: bool = False) -> list[EnvState]:
        return self.venv.get_state(indices, verify=verify)

    def set_state(self, states: EnvState | Sequence[EnvState], indices: Indices = None) -> Any:
        cls = type(self)
        if cls._is_narrow:
            raise VecEnvError(f"set_state would bypass the reset of {cls.__name__}: ask its venv")
        return self.venv.set_state(states, indices)

    def groups(self, count: int) -> list[NDArray[np.int64]]:
        return self.venv.groups(count)

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

    # Passed on one by one, not through `call`: batched envs answer some of these without it.

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

    def __repr__(self) -> str:
        return f"<{type(self).__name__} around {self.venv!r}>"

    def stats(self) -> dict[str, Any]:
        return self.venv.stats()

    def close(self) -> None:
        self._close_window()
        self.venv.close()
