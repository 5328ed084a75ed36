"""Resets in async mode, which run while the worker's other envs are stepped."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Generic, TypeVar

from vecenvs.worker.env_shard import FirstRow
from vecenvs.worker.env_threads import EnvThreads
from vecenvs.worker.outcomes import Job, outcome_of
from vecenvs.worker.process import HeldSignals

Row = TypeVar("Row")


class FirstRows(Generic[Row]):
    """First rows of episodes: each is sent once, when it is there and a command has asked for it, in either order.

    `send(number, local, row)` gets the number of that command, the env and its row. `under_way` has the resets whose
    rows were not sent. `begin(local, reset)` begins an env's reset, or that one if an exception has kept it from that.
    In the caller's process (not `remote`) a handler of a signal may raise, and the program goes on.
    """

    def __init__(
        self, send: Callable[[int, int, Row], None], begin: Callable[[int, Any], None] | None = None, *, remote: bool
    ) -> None:
        self._held = contextlib.nullcontext if remote else HeldSignals
        self.under_way: dict[int, Any] = {}
        self._send = send
        self._begin = begin
        self._lock = threading.Lock()
        self._rows: dict[int, Row] = {}
        self._asked: dict[int, int] = {}  # env -> number of the command

    def put(self, local: int, row: Row) -> None:
        """Take the first row of an env."""
        self._rows[local] = row
        self._answer(local)

    def ask(self, local: int, number: int) -> None:
        """Send the env's first row as the answer to command `number`, once there is one."""
        reset, ready = self.under_way.get(local), local in self._rows  # before the row can be sent
        self._asked[local] = number
        self._go_on(local, reset, ready=ready)

    def ask_again(self, local: int) -> bool:
        """Go on with an `ask` that an exception has ended. Return False if it had not begun."""
        reset, ready = self.under_way.get(local), local in self._rows
        if local not in self._asked:
            return False
        self._go_on(local, reset, ready=ready)
        return True

    def drop(self, some: Iterable[int]) -> None:
        """Forget the first rows of these envs, and who asks for them: others follow."""
        if self.under_way or self._rows or self._asked:
            for local in some:
                for kept in (self.under_way, self._rows, self._asked):
                    kept.pop(local, None)

    def begin(self, local: int, reset: Any = None) -> None:
        """Begin the reset of one env, or `reset` if that has not begun."""
        if self._begin is not None:
            self._begin(local, reset)

    def _go_on(self, local: int, reset: Any, *, ready: bool) -> None:
        if not ready:  # begun by a worker that this one replaces, perhaps, or not at all
            self.begin(local, reset)
        self._answer(local)

    def _answer(self, local: int) -> None:
        if local not in self._rows or local not in self._asked:
            return
        with self._held():  # what is taken out here is sent, or nobody has it
            with self._lock:
                if local not in self._rows or local not in self._asked:
                    return
                row, number = self._rows.pop(local), self._asked.pop(local)
                self.under_way.pop(local, None)
            self._send(number, local, row)


class AsyncResets(FirstRows[FirstRow]):
    """Calls `reset(local)` for envs whose episodes have ended, in the envs' `threads` if there are any.

    `reset` returns what writes the first row. An env which is still in its reset when the worker closes is closed after
    that, by `close(local)`, in its thread.
    """

    under_way: dict[int, Job]

    def __init__(
        self,
        reset: Callable[[int], FirstRow],
        send: Callable[[int, int, FirstRow], None],
        close: Callable[[int], object],
        threads: EnvThreads | None,
        *,
        remote: bool,
    ) -> None:
        super().__init__(send, remote=remote)
        self._reset, self._close = reset, close
        self._threads = threads

    def begin(self, local: int, reset: Job | None = None) -> None:
        """Begin the reset of one env. Called again, after an exception, it does not begin another one."""
        if self._threads is None:
            self.put(local, self._reset(local))
            return
        if reset is None:
            reset = self.under_way.setdefault(local, Job(local, partial(self._reset, local), self._deliver))
        self._threads.begin([reset])

    def drop(self, some: Iterable[int]) -> None:
        """Wait for the end of these envs' resets, if some are under way, and forget their first rows."""
        for local in some if self.under_way else ():
            if self._threads is not None and local in self.under_way and local in self._threads:
                self._threads.call(local, list)  # after what it does now
        super().drop(some)

    def leave(self, grace: float) -> set[int]:
        """Wait up to `grace` seconds for the resets; return the envs that are left to be closed by their threads."""
        threads, deadline = self._threads, time.monotonic() + grace
        if threads is None:
            return set()
        left = {local for local, job in self.under_way.items() if not job.over and local in threads}
        ended: queue.SimpleQueue[int] = queue.SimpleQueue()
        threads.begin([Job(local, list, lambda job, _: ended.put(job.local)) for local in left])
        with contextlib.suppress(queue.Empty):
            while left:
                left.discard(ended.get(timeout=max(deadline - time.monotonic(), 0.0)))
        threads.begin([Job(local, partial(self._close, local), lambda *_: None) for local in left])
        threads.leave(0.0 if left else max(deadline - time.monotonic(), 0.0))
        return left

    def _deliver(self, job: Job, outcome: object) -> None:
        self.put(job.local, outcome_of(outcome))
