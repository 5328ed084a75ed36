"""Requests that workers reply to: functions to call on envs, seeds and options for the next reset."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vecenvs.arguments import deadline_of
from vecenvs.errors import AlreadySteppingError, NotSteppingError, StepTimeout, WorkerDied, describe_indices
from vecenvs.pool.commands import Commands
from vecenvs.pool.patience import IN_ON_RESTART
from vecenvs.pool.recovery import CALL_NUMBER
from vecenvs.pool.step_results import env_error
from vecenvs.pool.waiting import Waiting
from vecenvs.pool.workers import LIVENESS
from vecenvs.transport.protocol import Command, RemoteFailure, RowExtras, Slots


class RemoteCalls:
    """Sends requests and waits for the replies."""

    def __init__(self, commands: Commands, waiting: Waiting, shards: Sequence[range]) -> None:
        self._commands = commands
        self._waiting = waiting
        self._shards = shards
        self._numbers = itertools.count(CALL_NUMBER)  # of calls in on_restart

    @property
    def waiting(self) -> bool:
        """Whether a call has begun whose results have not been returned."""
        request = self._commands.request
        return request is not None and request.wanted is not None

    def forget(self) -> None:
        """Forget the call that has begun, if there is one: nothing waits for its replies, nor fails without them."""
        if self.waiting:
            self._commands.request = None

    def begin(self, slots: Slots, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Ask for a call of `function(env, *args, **kwargs)` on the envs of these slots."""
        groups: dict[int, list[int]] = {}
        for slot in slots:
            groups.setdefault(self._commands.owner[slot], []).append(slot)
        messages = {worker: (Command.CALL, (function, group, args, kwargs)) for worker, group in groups.items()}
        try:
            self._commands.send_request(messages, groups, slots)
        except BaseException:
            self.forget()
            raise

    def finish(self, timeout: float | None) -> list[Any]:
        """Return the results of the function, in the order of the slots.

        Raise StepTimeout after `timeout` seconds: call it again then. Raise EnvError if the function raised in an env.
        """
        request = self._commands.request
        if request is None or request.wanted is None:
            raise NotSteppingError("call_wait without a call_async before it, or after one that was interrupted")
        self._waiting.await_replies(request, deadline_of(timeout), timeout)
        self._commands.request = None
        return self._results(request.wanted, request.slots, request.replies)

    def call_new(self, slots: Slots, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Call a function on envs of the new worker that on_restart is called for. Nothing else is sent there yet."""
        assert self._commands.reviving is not None
        worker, transport = self._commands.reviving
        shard, number, limit = self._shards[worker], next(self._numbers), self._waiting.limit_of_calls
        if not {*slots} <= {*shard}:
            raise AlreadySteppingError(f"a call of envs {describe_indices(slots)} {IN_ON_RESTART}")
        transport.put(number, int(Command.CALL), (function, [*slots], *arguments))
        deadline, message = time.monotonic() + limit, None
        while message is None or message[0] != number:
            if message is not None:  # the reply to a first command
                transport.take()
            transport.send_rest()
            message = transport.get(LIVENESS)
            if message is None and transport.exit_status()[0]:
                raise WorkerDied(worker, shard, transport.exit_status()[1], transport.where, "replaced")
            if message is None and time.monotonic() >= deadline:
                raise StepTimeout(slots, limit, "call in on_restart")
        transport.take()
        return self._results(slots, {worker: slots}, {worker: message[2]})

    @staticmethod
    def _results(wanted: Slots, groups: Mapping[int, Sequence[int]], replies: Mapping[int, Any]) -> list[Any]:
        results: dict[int, Any] = {}
        for worker, group in groups.items():
            reply = replies[worker]
            if isinstance(reply, RemoteFailure):  # of the whole call
                reply = [reply._replace(slot=slot) for slot in group]
            results.update(zip(group, reply, strict=True))
        error = env_error(RowExtras(slot, {}, None, r) for slot, r in results.items() if isinstance(r, RemoteFailure))
        if error is not None:
            try:
                raise error
            finally:
                del error  # no cycle, over its traceback
        return [results[slot] for slot in wanted]

    def prepare(self, seeds: dict[int, Any], options: dict[int, Any]) -> None:
        """Send the envs the seeds and options for their next reset."""
        bodies = {
            worker: tuple({s: given[s] for s in shard if s in given} for given in (seeds, options))
            for worker, shard in enumerate(self._shards)
        }
        self.ask({worker: (Command.PREPARE, body) for worker, body in bodies.items()})

    def ask(self, messages: dict[int, tuple[Command, Any]]) -> None:
        """Send a message to each worker and wait until all have replied. Raise EnvError if one has failed."""
        request = self._commands.send_request(messages)
        self._waiting.await_replies(request)
        failures = [reply for _, reply in sorted(request.replies.items()) if isinstance(reply, RemoteFailure)]
        if failures:
            raise failures[0].to_error()
