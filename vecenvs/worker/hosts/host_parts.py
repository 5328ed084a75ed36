"""What stands for single envs in calls, where a batched env has no objects for them, or keeps them elsewhere."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from vecenvs import env_calls
from vecenvs.env_calls import name_for
from vecenvs.errors import VecEnvError
from vecenvs.vec_env import VecEnv

if TYPE_CHECKING:
    from vecenvs.worker.hosts.batched_host import BatchedHost


class EnvProxy(abc.ABC):
    """One env of a batched env, on which a function is to be run."""

    @abc.abstractmethod
    def run(self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Return `function(env, *args, **kwargs)`."""


class HostCall:
    """One call of a function for some envs of a host, which is asked once for what all its envs have."""

    def __init__(self, host: BatchedHost) -> None:
        self.host = host
        self._left: dict[tuple[str, str], dict[int, Any]] = {}

    def parts(self, indices: Iterable[int]) -> list[HostPart]:
        """Return what stands for these envs."""
        return [HostPart(self, index) for index in indices]

    def item(self, index: int, key: tuple[str, str], all_items: Callable[[], Iterable[Any]]) -> Any:
        """Return env `index`'s one of `all_items()`. Each is returned once; after that they are made again."""
        left = self._left.get(key)
        if left is None or index not in left:
            self._left[key] = left = dict(enumerate(all_items()))
        return left.pop(index)


class HostPart(EnvProxy):
    """Env `index` of a host without single envs: it can be asked by name."""

    def __init__(self, call: HostCall, index: int) -> None:
        self._call = call
        self._host = call.host
        self._index = index

    def run(self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        by_name = _BY_NAME.get(function)
        if by_name is None:
            raise VecEnvError(
                f"{type(self._host.env).__name__} steps all its envs at once: there is no env {self._index} on which "
                f"to run {name_for(function)}. get_attr, set_attr and env_method ask by name; single envs, made by "
                "DummyVecEnv or SubprocVecEnv, take any function"
            )
        return by_name(self, *args, **kwargs)

    def get_attr(self, name: str) -> Any:
        return self._call.item(self._index, ("read", name), partial(self._host.read_all, name))

    def set_attr(self, name: str, value: Any, outermost: bool = False) -> None:
        self._host.write(self._index, name, value)

    def has_attr(self, name: str) -> bool:
        try:
            self.get_attr(name)
        except AttributeError:
            return False
        return True

    def env_method(self, name: str, *args: Any, **kwargs: Any) -> Any:
        env_calls.get_attr(self._host.env, name)  # AttributeError if there is none
        raise VecEnvError(
            f"{type(self._host.env).__name__} steps all its envs at once: there is no env {self._index} of which to "
            f"call {name!r}"
        )

    def call_attr(self, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        found = None if args or kwargs else self.get_attr(name)
        return self.env_method(name, *args, **kwargs) if args or kwargs or callable(found) else found

    set_wrapper_attr = set_attr

    def env_is_wrapped(self, names: Sequence[tuple[str, str]]) -> bool:
        return self._host.is_wrapped(names)

    def render(self) -> Any:
        return self._call.item(self._index, ("render", ""), self._host.render_all)

    def mark_as_reset(self) -> None:
        """Do nothing: the batched env still needs a reset."""

    def file_lengths(self) -> dict[str, int]:
        """Return none: Monitors are around single envs."""
        return {}

    def cut_files(self, lengths: dict[str, int]) -> None:
        """Do nothing, as for `file_lengths`."""


_BY_NAME: dict[Callable[..., Any], Callable[..., Any]] = {
    getattr(env_calls, name): getattr(HostPart, name)
    for name in (
        "get_attr", "set_attr", "has_attr", "env_method", "call_attr", "set_wrapper_attr", "env_is_wrapped", "render",
        "mark_as_reset", "file_lengths", "cut_files",
    )
}  # fmt: skip


class VecEnvPart(EnvProxy):
    """Env `index` of a VecEnv of this library."""

    def __init__(self, vec: VecEnv, index: int) -> None:
        self._vec = vec
        self._index = index

    def run(self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        return self._vec.call(function, [self._index], *args, **kwargs)[0]


def run_on(env: Any, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Return `function(env, *args, **kwargs)`, also of an env that is part of a batched one."""
    return env.run(function, args, kwargs) if isinstance(env, EnvProxy) else function(env, *args, **kwargs)
