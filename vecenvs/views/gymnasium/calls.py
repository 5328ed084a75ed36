"""Asking the envs behind a Gymnasium view: call, get_attr, set_attr, and the state that every `*_async` shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from gymnasium.error import ClosedEnvironmentError, NoAsyncCallError
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from vecenvs.env_calls import check_name
from vecenvs.errors import StepTimeout, VecEnvError
from vecenvs.vec_env import VecEnv
from vecenvs.views.gymnasium.errors import pending_error, raise_as_gymnasium

RESERVED = ("reset", "step", "close")


class EnvCalls(VectorEnv[Any, Any, NDArray[Any]]):
    """The part of the view that has nothing to do with rows."""

    def __init__(self, vec: VecEnv) -> None:
        self.vec = vec
        self._pending: str | None = None  # "step", "reset" or "call" between its `*_async` and its `*_wait`

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call the method `name` of every env; where it is no method, read it.

        ValueError for "reset", "step" and "close": called past the vector env, its rows would no longer be the envs'.
        """
        self.call_async(name, *args, **kwargs)
        return self.call_wait()

    def call_async(self, name: str, /, *args: Any, **kwargs: Any) -> None:
        """Start what `call` does and return."""
        self._check_free("call_async")
        check_name(name)
        if name in RESERVED:
            raise ValueError(f"call({name!r}): use the method {name}() of the vector env instead")
        try:
            self.vec.call_async(call_attribute, None, name, args, kwargs)
        except VecEnvError as error:
            raise_as_gymnasium(error, "call")
        self._pending = "call"

    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """Finish the call. CallTimeout after `timeout` seconds; a later `call_wait` then gets the results."""
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
        """Read an attribute of every env. As in Gymnasium this is `call(name)`: a method is called."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Write an attribute of every env: `values` is a list or tuple of one each, or one value for all."""
        self._check_free("set_attr")
        check_name(name)
        each = isinstance(values, (list, tuple))
        if each and len(values) != self.num_envs:
            raise ValueError(f"{len(values)} values for {self.num_envs} envs: give one each, or one for all of them")
        try:
            if not each:
                self.vec.call(set_attribute, None, name, values)
                return
            for i, value in enumerate(values):
                self.vec.call(set_attribute, i, name, value)
        except VecEnvError as error:
            raise_as_gymnasium(error, "set_attr")

    @property
    def envs(self) -> list[Any]:
        """The envs themselves, as SyncVectorEnv has them; AttributeError where they are in other processes."""
        return self.vec.envs

    @envs.setter
    def envs(self, envs: list[Any]) -> None:
        self.vec.envs = envs

    @property  # type: ignore[misc]  # read-only, as in Gymnasium's own vector envs
    def np_random(self) -> Any:
        """The random generators of the envs: a tuple of one each."""
        return self.get_attr("np_random")

    @property
    def np_random_seed(self) -> Any:
        """The seeds of these generators: a tuple of one each."""
        return self.get_attr("np_random_seed")

    def render(self) -> tuple[Any, ...]:
        """Render every env: a tuple of what they give."""
        return self.call("render")

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """Close the VecEnv, which is bounded in time whatever its workers do; both arguments are Gymnasium's."""
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


def call_attribute(env: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call the attribute of the outermost layer that has it; read it if it is not callable."""
    attribute = env.get_wrapper_attr(name)
    return attribute(*args, **kwargs) if callable(attribute) else attribute


def set_attribute(env: Any, name: str, value: Any) -> None:
    """Write the attribute where it is found; the outermost wrapper gets it if nothing has it."""
    env.set_wrapper_attr(name, value)
