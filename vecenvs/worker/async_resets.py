"""Resets in async mode, which run while the worker's other envs are stepped."""

from __future__ import annotations

import _thread
import threading
import time
from collections.abc import Callable, Iterable

from vecenvs.worker.env_shard import FirstRow


class AsyncResets:
    """Runs `reset(local)` for envs whose episodes have ended, each in a thread of its own if `threads` is true.

    `reset` returns what writes the first row. That is sent, by `send(number, local, first_row)`, when the reset has
    ended and command `number` has asked for it, in either order. An env which is still in its reset when the worker
    closes is closed by that reset's thread, by `close(local)`.
    """

    def __init__(
        self,
        reset: Callable[[int], FirstRow],
        send: Callable[[int, int, FirstRow], None],
        close: Callable[[int], object],
        *,
        threads: bool,
    ) -> None:
        self._reset = reset
        self._send = send
        self._close = close
        self._use_threads = threads
        self._lock = threading.Lock()
        self._first_rows: dict[int, FirstRow] = {}
        self._asked: dict[int, int] = {}  # env -> number of the command that asks for its first row
        self._threads: dict[int, _ResetThread] = {}  # of resets whose first row has not been sent
        self._left: set[int] = set()  # envs to be closed by the thread of their reset

    def begin(self, local: int) -> None:
        """Begin the reset of one env. Called again, after an exception, it does not begin another one."""
        if not self._use_threads:
            self._run(local)
            return
        self._threads.setdefault(local, _ResetThread(self._run, local)).begin()

    def ask(self, local: int, number: int) -> None:
        """Send the env's first row as the answer to command `number`, once there is one."""
        thread = self._threads.get(local)
        begun = local in self._first_rows if thread is None else thread.begun
        self._asked[local] = number
        if not begun:  # by a worker that this one replaces, or because an exception came before
            self.begin(local)
        self._answer(local)

    def ask_again(self, local: int) -> bool:
        """Go on with an `ask` that an exception has ended. Return False if it had not begun."""
        with self._lock:
            if local not in self._asked:
                return False
            thread = self._threads.get(local)
            begun = local in self._first_rows or (thread is not None and thread.begun)
        if not begun:
            self.begin(local)
        self._answer(local)
        return True

    def drop(self, some: Iterable[int]) -> None:
        """Wait for the end of these envs' resets, if some are under way, and drop their first rows: others follow."""
        if not (self._threads or self._asked or self._first_rows):
            return
        for local in some:
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
            running = {local for local, thread in self._threads.items() if thread.begun}
            self._left = running - self._first_rows.keys()
        return self._left

    def _run(self, local: int) -> None:
        first_row = self._reset(local)
        with self._lock:
            self._first_rows[local] = first_row
            left = local in self._left
        if left:
            self._close(local)
        else:
            self._answer(local)

    def _answer(self, local: int) -> None:
        with self._lock:
            if local not in self._first_rows or local not in self._asked:
                return
            first_row, number = self._first_rows.pop(local), self._asked.pop(local)
            self._threads.pop(local, None)
        self._send(number, local, first_row)


class _ResetThread:
    """A daemon thread that runs `work(local)` once.

    The handler of a signal may raise at any bytecode. Within `threading.Thread.start` that leaves a thread that can
    neither be started again nor be joined. So the thread is started, and this is recorded, by one call into C.
    """

    def __init__(self, work: Callable[[int], object], local: int) -> None:
        self._work = work
        self._local = local
        self._begun: list[int] = []
        self._ended = False
        self._running = _thread.allocate_lock()
        self._running.acquire()

    @property
    def begun(self) -> bool:
        """Whether the thread has been started."""
        return bool(self._begun)

    def begin(self) -> None:
        """Start the thread if that has not been done."""
        if not self._begun:
            self._begun.extend(map(_thread.start_new_thread, (self._run,), ((),)))

    def join(self, timeout: float = -1) -> None:
        """Wait for the end of the thread, up to `timeout` seconds if that is not -1."""
        if self._begun and not self._ended and self._running.acquire(timeout=timeout):
            self._running.release()

    def _run(self) -> None:
        try:
            self._work(self._local)
        finally:
            self._ended = True
            self._running.release()
