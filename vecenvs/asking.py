"""Questions to the envs, and what they are to know at their next reset: requests that workers answer with a reply."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from vecenvs.arguments import deadline_of
from vecenvs.errors import NotSteppingError, StepTimeout, WorkerDied
from vecenvs.ledger import Ledger
from vecenvs.protocol import Command, Extra, Failure
from vecenvs.rows import env_error


class Call(NamedTuple):
    """An unanswered call: its slots in order, those of each worker, who has still to answer, the replies so far."""

    slots: list[int]
    groups: dict[int, list[int]]
    waiting: dict[int, None]
    replies: dict[int, Any]


class Asking:
    """At most one call of a function on envs is unanswered: `call`."""

    def __init__(self, ledger: Ledger, shards: Sequence[range]) -> None:
        self.call: Call | None = None
        self._ledger = ledger
        self._shards = shards

    def begin(
        self, slots: list[int], function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Have `function(env, *args, **kwargs)` run on the envs of these slots."""
        groups: dict[int, list[int]] = {}
        for slot in slots:
            groups.setdefault(self._ledger.owner[slot], []).append(slot)
        self._ledger.request({w: (Command.CALL, (function, group, args, kwargs)) for w, group in groups.items()})
        self.call = Call(slots, groups, dict.fromkeys(groups), {})

    def finish(self, timeout: float | None) -> list[Any]:
        """Give what the function returned, in the order of the slots.

        StepTimeout after `timeout` seconds: then it can be asked for again. EnvError if the function raised somewhere.
        """
        if self.call is None:
            raise NotSteppingError("call_wait without a call_async before it")
        slots, groups, waiting, replies = self.call
        deadline = deadline_of(timeout)
        while waiting:
            worker = next(iter(waiting))
            try:
                reply = self._ledger.reply(worker, deadline)
            except Exception as exc:
                if isinstance(exc, WorkerDied) or worker in self._ledger.dead:  # it cannot come any more
                    self.call = None
                raise
            if reply is None:
                raise StepTimeout([slot for late in waiting for slot in groups[late]], timeout or 0.0, "call")
            replies[worker] = reply
            del waiting[worker]
        self.call = None
        results: dict[int, Any] = {}
        for worker, group in groups.items():
            reply = replies[worker]
            if isinstance(reply, Failure):  # of the whole call
                reply = [reply._replace(slot=slot) for slot in group]
            results.update(zip(group, reply, strict=True))
        error = env_error(Extra(slot, {}, None, r) for slot, r in results.items() if isinstance(r, Failure))
        if error is not None:
            raise error
        return [results[slot] for slot in slots]

    def forget(self) -> None:
        """Wait no longer for the call's results, if there is one. Envs that are at it finish it first."""
        self.call = None

    def prepare(self, seeds: dict[int, Any], options: dict[int, Any]) -> None:
        """Give envs what their next reset is to get."""
        bodies = {
            worker: tuple({s: given[s] for s in shard if s in given} for given in (seeds, options))
            for worker, shard in enumerate(self._shards)
        }
        self.ask({worker: (Command.PREPARE, body) for worker, body in bodies.items()})

    def ask(self, requests: dict[int, tuple[Command, Any]]) -> None:
        """Send one request to each worker and wait until all have carried theirs out. EnvError if one has failed."""
        ledger = self._ledger
        ledger.request(requests)
        replies = [ledger.reply(worker) for worker in requests]
        failures = [reply for reply in replies if isinstance(reply, Failure)]
        if failures:
            raise failures[0].to_error()
