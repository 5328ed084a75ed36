"""Calls and attributes of the envs behind a Gymnasium view, and the state that all `*_async` methods share."""

from __future__ import annotations

from typing import Any, NoReturn

from gymnasium.error import ClosedEnvironmentError, NoAsyncCallError
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from vecenvs.env_calls import call_attr, check_name, render, set_wrapper_attr
from vecenvs.errors import StepTimeout, VecEnvError
from vecenvs.vec_env import VecEnv
from vecenvs.views.gymnasium.errors import pending_error, raise_as_gymnasium

RESERVED = ("reset", "step", "close")


class GymnasiumCalls(VectorEnv[Any, Any, NDArray[Any]]):
    """The part of GymnasiumView without rows: calls, attributes, rendering and closing.

    Args:
        vec: the VecEnv.
    """

    def __init__(self, vec: VecEnv) -> None:
        self.vec = vec
        self._pending: str | None = None  # "step", "reset" or "call" between its `*_async` and its `*_wait`

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call the method `name` of every env, or read the attribute `name` if it is not callable.

        Args:
            name: a method or attribute of the env or of one of its wrappers, the outermost first.
            *args: positional arguments of the method.
            **kwargs: keyword arguments of the method.

        Returns:
            A tuple of num_envs results.

        Raises:
            ValueError: `name` is "reset", "step" or "close", which the vector env's own methods do.
        """
        self.call_async(name, *args, **kwargs)
        return self.call_wait()

    def call_async(self, name: str, /, *args: Any, **kwargs: Any) -> None:
        """Start a `call`, with its arguments; `call_wait` returns its results.

        Raises:
            AlreadyPendingCallError: a step, reset or call has not been waited for.
        """
        self._check_free("call_async")
        check_name(name)
        if name in RESERVED:
            raise ValueError(f"call({name!r}): use the method {name}() of the vector env instead")
        try:
            self.vec.call_async(call_attr, None, name, args, kwargs)
        except VecEnvError as error:
            raise_as_gymnasium(error, "call")
        self._pending = "call"

    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """Wait for the results of `call_async`.

        Args:
            timeout: seconds to wait, or None for no limit.

        Returns:
            A tuple of num_envs results.

        Raises:
            CallTimeout: the results are not complete in time; a later `call_wait` returns them.
            NoAsyncCallError: there is no `call_async` to wait for.
        """
        if self._pending != "call":
            self._refuse_wait("call")
        try:
            results = self.vec.call_wait(timeout)
        except StepTimeout as error:
            raise_as_gymnasium(error, "call")
        except VecEnvError as error:
            self._pending = None
            raise_as_gymnasium(error, "call")
        self._pending = None
        return tuple(results)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Read an attribute of every env; a method is called without arguments, as in Gymnasium.

        Args:
            name: the attribute or method.

        Returns:
            A tuple of num_envs values.
        """
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of every env.

        Args:
            name: the attribute. It is set where it is found, else on the outermost wrapper.
            values: a list or tuple of num_envs values, or one value for all envs.

        Raises:
            ValueError: `values` is a list or tuple of another length.
        """
        self._check_free("set_attr")
        check_name(name)
        each = isinstance(values, (list, tuple))
        if each and len(values) != self.num_envs:
            raise ValueError(f"{len(values)} values for {self.num_envs} envs: give one each, or one for all of them")
        try:
            if not each:
                self.vec.call(set_wrapper_attr, None, name, values)
                return
            for i, value in enumerate(values):
                self.vec.call(set_wrapper_attr, i, name, value)
        except VecEnvError as error:
            raise_as_gymnasium(error, "set_attr")

    @property
    def envs(self) -> list[Any]:
        """The env objects, as in SyncVectorEnv; AttributeError if they are in other processes."""
        return self.vec.envs

    @envs.setter
    def envs(self, envs: list[Any]) -> None:
        self.vec.envs = envs

    @property  # type: ignore[misc]  # read-only, as in Gymnasium's own vector envs
    def np_random(self) -> Any:
        """A tuple of the envs' random generators."""
        return self.get_attr("np_random")

    @property
    def np_random_seed(self) -> Any:
        """A tuple of the seeds of the envs' random generators."""
        return self.get_attr("np_random_seed")

    def render(self) -> tuple[Any, ...]:
        """Return a tuple of what each env's `render` returns."""
        self._check_free("render")
        try:
            return tuple(self.vec.call(render, None))
        except VecEnvError as error:
            raise_as_gymnasium(error, "call")

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """Close the VecEnv within a bounded time. Gymnasium's `close` calls this.

        Args:
            timeout: no effect; Gymnasium's argument.
            terminate: no effect; Gymnasium's argument.
        """
        self.vec.close()

    def _check_free(self, what: str) -> None:
        if self._pending is not None:
            self._check_open(what)
            raise pending_error(what, self._pending)

    def _check_open(self, what: str) -> None:
        if self.closed or self.vec.closed:
            raise ClosedEnvironmentError(f"{what} on a closed vector env: make a new one")

    def _refuse_wait(self, name: str) -> NoReturn:
        self._check_open(f"{name}_wait")
        raise NoAsyncCallError(f"{name}_wait without a {name}_async before it", name)
