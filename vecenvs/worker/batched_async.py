"""Gymnasium's AsyncVectorEnv as the batched env of a worker. It loses the process of an env that raises."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from gymnasium.vector import AsyncVectorEnv
from numpy.typing import NDArray

from vecenvs.batch.info_batches import Columns
from vecenvs.errors import VecEnvError, describe_indices
from vecenvs.transport.protocol import safe_text
from vecenvs.worker.batched_host import GymnasiumHost, Step
from vecenvs.worker.host_parts import HostCall

_RESERVED = ("reset", "step", "close")  # methods that its processes call for these names only by commands of their own


class AsyncVectorEnvHost(GymnasiumHost):
    """An AsyncVectorEnv, perhaps with wrappers around it. It reaches its envs by name, and calls all of them or none.

    An exception in one of its envs ends that env's process. After that, and after a Ctrl-C while it waits, it can only
    be closed, as `broken` says.
    """

    def __init__(self, env: Any, num_envs: int, autoreset: str | None = None) -> None:
        super().__init__(env, num_envs, autoreset)
        self._async: AsyncVectorEnv[Any, Any] = env.unwrapped
        self._torn = False  # whether it would wait for answers that have been read, or do not come
        self.takes_masks = True

    def step(self, actions: Any) -> Step:
        return self._guarded(super().step, actions)  # type: ignore[no-any-return]

    def reset(self, mask: NDArray[np.bool_] | None, seeds: Sequence[int | None], options: Any) -> tuple[Any, Columns]:
        return self._guarded(super().reset, mask, seeds, options)  # type: ignore[no-any-return]

    def read_all(self, name: str) -> Any:
        self._check_all_have(name)
        return self._asked(self._async.call, name)

    def write(self, call: HostCall, index: int, name: str, value: Any) -> None:
        self._check_whole(call, f"set {name}")
        self._check_name(name)
        values = [value] * self.num_envs
        call.item(index, ("write", name), lambda: self._asked(self._async.set_attr, name, values) or values)

    def invoke(self, call: HostCall, index: int, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        self._check_whole(call, f"call {name}")
        self._check_all_have(name)
        return call.item(index, ("call", name), partial(self._asked, self._async.call, name, *args, **kwargs))

    def render_all(self) -> Sequence[Any]:
        return self._asked(super().render_all)  # type: ignore[no-any-return]

    def close(self) -> None:
        self.env.close(**({"terminate": True} if self._torn else {}))

    # Checks of names which would end all processes

    def _check_all_have(self, name: str) -> None:
        self._check_name(name)
        for index, has in enumerate(self._asked(self._async.call, "has_wrapper_attr", name)):
            if not has:
                raise AttributeError(f"env {index} of the batched env has no attribute {name!r}, nor has a wrapper")

    def _check_name(self, name: str) -> None:
        if "." in name:
            raise self._out_of_reach(f"follow the dotted name {name!r}")
        if name in _RESERVED:
            raise self._out_of_reach(f"call {name!r} of single envs")

    def _check_whole(self, call: HostCall, what: str) -> None:
        if not call.whole:
            raise self._out_of_reach(f"{what} of some envs only")

    def _out_of_reach(self, what: str) -> VecEnvError:
        return VecEnvError(f"AsyncVectorEnv cannot {what}: make the envs by SubprocVecEnv if you need that")

    # Processes that end

    def _asked(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return what a function of the vector env returns. VecEnvError if that has cost it a process."""
        try:
            return self._guarded(function, *args, **kwargs)
        except Exception as exc:
            if self.broken:
                raise VecEnvError(self.broken) from exc
            raise

    def _guarded(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function of the vector env; note what an exception has cost."""
        if self.broken:
            raise VecEnvError(self.broken)
        try:
            return function(*args, **kwargs)
        except BaseException as exc:
            self._note(exc)
            raise

    def _note(self, exc: BaseException) -> None:
        pipes: list[Any] = self._async.parent_pipes
        ended = [index for index, pipe in enumerate(pipes) if pipe is None]  # by itself, of envs that have raised
        self._torn = isinstance(exc, (EOFError, ConnectionError)) or not isinstance(exc, Exception)
        if not (ended or self._torn):
            return
        whose = f"env {describe_indices(ended)}" if ended else "one of its envs"
        self.broken = (
            f"this AsyncVectorEnv has lost the process of {whose} ({type(exc).__name__}: {safe_text(exc)}), as it does "
            "if an env raises, and can only be closed: make a new one, or use SubprocVecEnv, whose envs can be reset "
            "after that"
        )
        if self._torn:
            for process in self._async.processes:
                process.terminate()
            for index, pipe in enumerate(pipes):
                if pipe is not None:
                    pipe.close()
                    pipes[index] = None
