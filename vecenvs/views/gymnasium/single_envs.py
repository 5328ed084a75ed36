"""Attributes and calls of the single envs in a Gymnasium vector env, as far as it gives access to them."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv
from numpy.typing import NDArray

from vecenvs.arguments import check_function, parse_indices, parse_timeout
from vecenvs.env_calls import check_name, name_for
from vecenvs.errors import EnvError, NotSteppingError, VecEnvError, describe_indices
from vecenvs.transport.protocol import safe_text
from vecenvs.vec_env import Indices, VecEnv, described
from vecenvs.views.gymnasium.calls import RESERVED, GymnasiumCalls
from vecenvs.views.gymnasium.errors import OutOfReachError

AnyVectorEnv = VectorEnv[Any, Any, Any]


class SingleEnvAccess(VecEnv):
    """The part of GymnasiumVecEnv that accesses single envs.

    A SyncVectorEnv and a view by `as_gymnasium` allow everything. An AsyncVectorEnv takes names but no functions, and
    always calls all its envs. A natively batched env has no single envs. Whatever is not possible raises
    OutOfReachError.
    """

    vector_env: AnyVectorEnv
    _call_results: list[Any] | None = None  # of a call_async whose call_wait has not been called
    _broken: VecEnvError | None = None  # why the vector env can only be closed
    _must_terminate = False  # whether the vector env waits for the answer of a dead worker

    def __repr__(self) -> str:
        return described(self)

    def call(self, function: Callable[..., Any], indices: Indices, *args: Any, **kwargs: Any) -> list[Any]:
        check_function(function)
        what = name_for(function)
        slots = parse_indices(indices, self.num_envs)
        self._check_free(what, slots)
        bare = self.vector_env.unwrapped
        if isinstance(bare, GymnasiumCalls):
            return bare.vec.call(function, slots, *args, **kwargs)
        if isinstance(bare, SyncVectorEnv):
            return [function(bare.envs[slot], *args, **kwargs) for slot in slots]
        raise self._out_of_reach(f"run {what} on single envs")

    def call_async(self, function: Callable[..., Any], indices: Indices, *args: Any, **kwargs: Any) -> None:
        self._call_results = self.call(function, indices, *args, **kwargs)

    def call_wait(self, timeout: float | None = None) -> list[Any]:
        self._check_open("call_wait")
        parse_timeout(timeout)
        if self._call_results is None:
            raise NotSteppingError("call_wait without a call_async before it")
        results, self._call_results = self._call_results, None
        return results

    def info_array(self, name: str) -> NDArray[Any]:
        check_name(name)
        bare = self.vector_env.unwrapped
        if isinstance(bare, GymnasiumCalls):
            return bare.vec.info_array(name)
        raise self._out_of_reach(f"read {name} of single envs along with each step")

    def _envs_here(self) -> list[Any]:
        bare = self.vector_env.unwrapped
        if isinstance(bare, (SyncVectorEnv, GymnasiumCalls)):
            return bare.envs
        raise AttributeError(str(self._out_of_reach("hand out its single envs")))

    def get_attr(self, name: str, indices: Indices = None) -> list[Any]:
        if not self._takes_names_only:
            return super().get_attr(name, indices)
        return self._call_by_name(indices, name)

    def has_attr(self, name: str) -> bool:
        if not self._takes_names_only:
            return super().has_attr(name)
        self._check_free(name, range(self.num_envs))
        return all(self._which_have(name))

    def env_method(self, name: str, *args: Any, indices: Indices = None, **kwargs: Any) -> list[Any]:
        if not self._takes_names_only:
            return super().env_method(name, *args, indices=indices, **kwargs)
        if len(parse_indices(indices, self.num_envs)) < self.num_envs:
            raise self._out_of_reach(f"call {name} on some envs only")
        return self._call_by_name(indices, name, *args, **kwargs)

    def set_attr(self, name: str, value: Any, indices: Indices = None) -> None:
        if not self._takes_names_only:
            super().set_attr(name, value, indices)
            return
        if len(parse_indices(indices, self.num_envs)) < self.num_envs:
            raise self._out_of_reach(f"set {name} of some envs only")
        self._check_free("set_attr", range(self.num_envs))
        self._check_name(name)
        self._call_vector_env(self._async_vector_env().set_attr, name, [value] * self.num_envs)

    def env_is_wrapped(self, wrapper_class: type, indices: Indices = None) -> list[bool]:
        if self._has_single_envs:
            return super().env_is_wrapped(wrapper_class, indices)
        return [False for _ in parse_indices(indices, self.num_envs)]  # without single envs, none is wrapped

    def get_images(self, indices: Indices = None) -> list[Any]:
        if self.render_mode not in ("rgb_array", "human"):
            raise VecEnvError(
                f"envs with render_mode={self.render_mode!r} make no images: make them with render_mode='rgb_array'"
            )
        slots = parse_indices(indices, self.num_envs)
        self._check_free("render", slots)
        frames = self._call_vector_env(self.vector_env.render)  # vector envs render all envs or none
        return [None if frames is None else frames[slot] for slot in slots]

    @property
    def _takes_names_only(self) -> bool:
        return isinstance(self.vector_env.unwrapped, AsyncVectorEnv)

    @property
    def _has_single_envs(self) -> bool:
        return isinstance(self.vector_env.unwrapped, (AsyncVectorEnv, SyncVectorEnv, GymnasiumCalls))

    def _async_vector_env(self) -> AsyncVectorEnv[Any, Any]:
        bare = self.vector_env.unwrapped
        if not isinstance(bare, AsyncVectorEnv):
            raise self._out_of_reach("access single envs by name")
        return bare

    def _call_by_name(self, indices: Indices, name: str, *args: Any, **kwargs: Any) -> list[Any]:
        slots: Sequence[int] = parse_indices(indices, self.num_envs)
        self._check_free(name, slots)
        for slot, has in enumerate(self._which_have(name)):
            if not has:
                missing = f"env {slot} has no attribute {name!r}, nor has a wrapper of it"
                raise EnvError(slot, missing) from AttributeError(missing)
        results = self._call_vector_env(self._async_vector_env().call, name, *args, **kwargs)
        return [results[slot] for slot in slots]

    def _which_have(self, name: str) -> list[bool]:
        """Return for each env whether it has the attribute: an access to a missing one would end all workers."""
        self._check_name(name)
        return list(self._call_vector_env(self._async_vector_env().call, "has_wrapper_attr", name))

    def _check_name(self, name: str) -> None:
        check_name(name)
        if "." in name:
            raise self._out_of_reach(f"follow the dotted name {name!r}")
        if name in RESERVED:
            raise self._out_of_reach(f"hand out the method {name!r} of single envs")

    def _call_vector_env(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a method of the vector env; find out which workers an exception has cost."""
        try:
            return method(*args, **kwargs)
        except BaseException as exc:
            self._reraise(exc)

    def _reraise(self, exc: BaseException) -> NoReturn:
        """Raise the vector env's exception; refuse later calls if an AsyncVectorEnv has lost workers by it."""
        bare = self.vector_env.unwrapped
        if isinstance(bare, AsyncVectorEnv) and self._broken is None:
            pipes: list[Any] = bare.parent_pipes
            gone = [i for i, pipe in enumerate(pipes) if pipe is None]  # workers that it has ended itself
            died = isinstance(exc, (EOFError, ConnectionError)) and not gone
            if gone or died:
                which = f"env {describe_indices(gone)}" if gone else "one of its envs"
                self._broken = VecEnvError(
                    f"this AsyncVectorEnv has lost the worker of {which} ({type(exc).__name__}: {safe_text(exc)}), as "
                    "it does if an env raises, and can only be closed: make a new one, or use SubprocVecEnv, whose "
                    "envs can be reset after that"
                )
            if died:  # `close` would wait for an answer
                self._must_terminate = True
                _end_workers(bare)
        if self._broken is not None:
            raise exc from self._broken
        raise exc

    def _out_of_reach(self, what: str) -> OutOfReachError:
        kind = type(self.vector_env.unwrapped).__name__
        remedy = "make the envs by DummyVecEnv or SubprocVecEnv if you need that"
        return OutOfReachError(f"{kind} cannot {what}: {remedy}")

    @abc.abstractmethod
    def _check_idle(self, what: str) -> None:
        """Raise ClosedError or AlreadySteppingError if anything is pending."""

    @abc.abstractmethod
    def _check_free(self, what: str, slots: Sequence[int]) -> None:
        """Raise ClosedError or AlreadySteppingError if something is pending for these envs."""

    @abc.abstractmethod
    def _check_open(self, what: str) -> None:
        """Raise ClosedError after close()."""


def _end_workers(vector_env: AsyncVectorEnv[Any, Any]) -> None:
    """Terminate all workers, and mark them as Gymnasium marks the ones that it has ended."""
    for process in vector_env.processes:
        process.terminate()
    pipes: list[Any] = vector_env.parent_pipes
    for i, pipe in enumerate(pipes):
        pipe.close()
        pipes[i] = None
