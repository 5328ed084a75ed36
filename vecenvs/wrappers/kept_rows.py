"""Rows on their way through a layer around a VecEnv, in which the handler of a signal (Ctrl-C) may raise anywhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from vecenvs.arguments import parse_indices
from vecenvs.errors import AlreadySteppingError, EnvError, NotSteppingError
from vecenvs.vec_env import Indices
from vecenvs.worker.process import HeldSignals

Work = Callable[[Any, str, Indices], Any]


class KeptRows:
    """Keeps what a call has returned, or the EnvError that it has raised, until the layer's caller has it.

    It is true while it has rows of an interrupted call: those are what the next `take` returns.
    """

    def __init__(self) -> None:
        self._came: Sequence[Any] = ()  # one item: what the call has returned or raised
        self._by: tuple[str, Indices] = "", None  # the call and, of a reset, its indices
        self._ready: Any = None  # the same after the layer's work

    def __bool__(self) -> bool:
        return bool(self._came) or self._ready is not None

    def check_free(self, what: str) -> None:
        """Raise AlreadySteppingError if there are rows of an interrupted call."""
        if self:
            first = "step_wait" if self._by[0] == "step" else "recv"
            raise AlreadySteppingError(f"{what} while an interrupted call has not returned its rows: {first} first")

    def check_reset(self, indices: Indices, num_envs: int) -> None:
        """Forget what an interrupted reset of these envs, or some of them, has brought; else `check_free`."""
        call, before = self._by
        if self and call == "reset" and {*parse_indices(before, num_envs)} <= {*parse_indices(indices, num_envs)}:
            self.forget()
        self.check_free("reset")

    def take(self, get: Callable[[None], Any], work: Work, call: str, indices: Indices = None) -> Any:
        """Return the rows of an interrupted call, or those that `get` returns, after the layer's work on them.

        The handlers of signals are called after that work; within it only if the same signal comes once more.

        Args:
            get: returns the rows, given None.
            work: is given rows, or an EnvError, with the call that they came by and its indices; returns what is to be
                returned, or raised.
            call: "step", "recv" or "reset".
            indices: those of a reset.
        """
        if self._ready is None and not self._came:
            came: list[Any] = []
            self._came, self._by = came, (call, indices)
            try:
                came.extend(map(get, (None,)))  # no handler is called between the two
            except EnvError as error:
                came.append(error)
        elif call != "step" and self._by[0] == "step":
            self.check_free(call)
        elif call == "step" and self._by[0] != "step":
            raise NotSteppingError("step_wait while an interrupted call has not returned its rows: recv first")
        if self._ready is None:
            with HeldSignals(first_only=True):
                (value,), self._came = self._came, ()
                self._ready = work(value, *self._by)
        ready = self._ready
        failed = isinstance(ready, EnvError)
        self._ready = None  # nothing is called after this: a handler could be, too
        if failed:
            try:
                raise ready
            finally:
                del ready  # no cycle, over its traceback
        return ready

    def forget(self) -> None:
        """Hold no rows: a closed VecEnv may be kept."""
        self._came, self._ready = (), None
