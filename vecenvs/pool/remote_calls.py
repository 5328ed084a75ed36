"""Functions called on envs, and what envs are to know at their next reset: requests that workers reply to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from vecenvs.arguments import deadline_of
from vecenvs.errors import NotSteppingError, StepTimeout
from vecenvs.pool.commands import Commands
from vecenvs.pool.rows import env_error
from vecenvs.transport.protocol import Command, RemoteFailure, RowExtras


class RemoteCalls:
    """At most one call of a function on envs is unanswered: that of `slots`."""

    def __init__(self, commands: Commands, shards: Sequence[range]) -> None:
        self.slots: list[int] | None = None
        self._commands = commands
        self._shards = shards

    def begin(
        self, slots: list[int], function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Have `function(env, *args, **kwargs)` run on the envs of these slots."""
        groups: dict[int, list[int]] = {}
        for slot in slots:
            groups.setdefault(self._commands.owner[slot], []).append(slot)
        messages = {worker: (Command.CALL, (function, group, args, kwargs)) for worker, group in groups.items()}
        self.slots = slots
        try:
            self._commands.ask(messages, groups)
        except Exception:
            self.slots = None
            raise

    def finish(self, timeout: float | None) -> list[Any]:
        """Return what the function has returned, in the order of the slots.

        StepTimeout after `timeout` seconds: then it can be asked for again. EnvError if the function raised somewhere.
        """
        slots, request = self.slots, self._commands.request
        if slots is None:
            raise NotSteppingError("call_wait without a call_async before it")
        if request is None:  # an exception came before it was noted
            self.slots = None
            raise NotSteppingError("call_wait after a call_async that was interrupted before anything was sent")
        try:
            self._commands.await_replies(request, deadline_of(timeout), timeout)
        except StepTimeout:
            raise
        except Exception:
            if self._commands.request is not request:  # its replies cannot come any more
                self.slots = None
            raise
        results: dict[int, Any] = {}
        for worker, group in request.slots.items():
            reply = request.replies[worker]
            if isinstance(reply, RemoteFailure):  # of the whole call
                reply = [reply._replace(slot=slot) for slot in group]
            results.update(zip(group, reply, strict=True))
        self.slots = None
        error = env_error(RowExtras(slot, {}, None, r) for slot, r in results.items() if isinstance(r, RemoteFailure))
        if error is not None:
            raise error
        return [results[slot] for slot in slots]

    def prepare(self, seeds: dict[int, Any], options: dict[int, Any]) -> None:
        """Give envs what their next reset is to get."""
        bodies = {
            worker: tuple({s: given[s] for s in shard if s in given} for given in (seeds, options))
            for worker, shard in enumerate(self._shards)
        }
        self.ask({worker: (Command.PREPARE, body) for worker, body in bodies.items()})

    def ask(self, messages: dict[int, tuple[Command, Any]]) -> None:
        """Send one request to each worker and wait until all have carried theirs out. EnvError if one has failed."""
        request = self._commands.ask(messages)
        self._commands.await_replies(request, None, None)
        failures = [reply for _, reply in sorted(request.replies.items()) if isinstance(reply, RemoteFailure)]
        if failures:
            raise failures[0].to_error()
