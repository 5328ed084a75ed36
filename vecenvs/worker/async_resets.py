"""Resets in async mode, which run while the worker's other envs are stepped."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from vecenvs.worker.env_shard import ResetOutcome


class AsyncResets:
    """Runs `reset(local)` for envs whose episodes have ended, each in a thread of its own if `threads` is true.

    A first row is sent, by `send(number, local, outcome)`, when the reset has ended and command `number` has asked for
    it, in either order. An env which is still in its reset when the worker closes is closed by that reset's thread, by
    `close(local)`.
    """

    def __init__(
        self,
        reset: Callable[[int], ResetOutcome],
        send: Callable[[int, int, ResetOutcome], None],
        close: Callable[[int], object],
        *,
        threads: bool,
    ) -> None:
        self._reset = reset
        self._send = send
        self._close = close
        self._use_threads = threads
        self._lock = threading.Lock()
        self._first_rows: dict[int, ResetOutcome] = {}
        self._asked: dict[int, int] = {}  # env -> number of the command that asks for its first row
        self._threads: dict[int, threading.Thread] = {}  # of resets whose first row has not been sent
        self._left: set[int] = set()  # envs to be closed by the thread of their reset

    def begin(self, local: int) -> None:
        """Begin the reset of one env. Called again, after an exception, it does not begin another one."""
        if not self._use_threads:
            self._run(local)
            return
        thread = self._threads.setdefault(local, threading.Thread(target=self._run, args=(local,), daemon=True))
        if thread.ident is None:
            thread.start()

    def ask(self, local: int, number: int) -> None:
        """Send the env's first row as the answer to command `number`, once there is one."""
        begun = local in self._threads or local in self._first_rows
        self._asked[local] = number
        if not begun:  # the reset was begun by a worker that this one replaces
            self.begin(local)
        self._answer(local)

    def drop(self, local: int) -> None:
        """Wait for the end of the env's reset, if one is under way, and drop its first row: another reset follows."""
        thread = self._threads.get(local)
        if thread is not None:
            thread.join()
        self._threads.pop(local, None)
        self._asked.pop(local, None)
        self._first_rows.pop(local, None)

    def leave(self, grace: float) -> set[int]:
        """Wait up to `grace` seconds for the resets; return the envs whose threads are left to close them."""
        deadline = time.monotonic() + grace
        for thread in list(self._threads.values()):
            thread.join(max(deadline - time.monotonic(), 0.0))
        with self._lock:
            self._left = {local for local in self._threads if local not in self._first_rows}
        return self._left

    def _run(self, local: int) -> None:
        outcome = self._reset(local)
        with self._lock:
            self._first_rows[local] = outcome
            left = local in self._left
        if left:
            self._close(local)
        else:
            self._answer(local)

    def _answer(self, local: int) -> None:
        with self._lock:
            if local not in self._first_rows or local not in self._asked:
                return
            outcome, number = self._first_rows.pop(local), self._asked.pop(local)
            self._threads.pop(local, None)
        self._send(number, local, outcome)
