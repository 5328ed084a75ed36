"""Envs that wait, as coroutines in one event loop."""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterable
from typing import Any

from vecenvs import identity
from vecenvs._native import forks
from vecenvs.errors import VecEnvError
from vecenvs.worker.outcomes import Job, Raised, Runner
from vecenvs.worker.rules import TimeLimits, WorkShare

_GRACE = 1.0  # seconds for a coroutine to end that has been cancelled
_log = logging.getLogger("vecenvs")


class EnvTasks(Runner):
    """One event loop, in a thread of its own, in which the coroutines of all envs run."""

    def __init__(self, first: int, limits: TimeLimits, work: WorkShare) -> None:
        super().__init__(first, limits, work)
        self._loop = asyncio.new_event_loop()
        self._coming: deque[Job] = deque()
        self._called = False  # whether the loop has been called for these
        self._tasks: dict[int, tuple[Job, asyncio.Task[None]]] = {}  # by env
        self._waiting: dict[int, deque[Job]] = {}  # by env: jobs that follow
        self._flushes = False  # whether `flush` is about to be called
        self._ticks = self._seen = 0
        self._told = -1  # the tick after which the loop was said to be kept from going on
        self._ticking = False
        self._thread = threading.Thread(target=self._run, name="vecenvs-loop", daemon=True)
        self._thread.start()

    def _begin(self, jobs: Iterable[Job]) -> None:
        self._coming.extend(jobs)
        if not self._called and not self._loop.is_closed():
            self._called = True
            self._loop.call_soon_threadsafe(self._begin_all)

    def alive(self) -> bool:
        seen, self._seen = self._seen, self._ticks
        if self._ticks != seen or not self._ticking or self._told == seen:
            return self._told != seen
        frames = sys._current_frames()  # noqa: SLF001  the only way to another thread's
        stack = traceback.extract_stack(frames.get(self._thread.ident or 0))
        if stack[-1].filename.endswith("selectors.py"):  # it waits, or has had no time to do more
            return True
        outside = [each for each in stack if "asyncio" not in each.filename and each.filename != __file__]
        where = f"{outside[-1].filename}:{outside[-1].lineno} ({outside[-1].line})" if outside else "unknown code"
        self._told = seen
        _log.warning(
            "no env of this worker can run, as one keeps the event loop from it, at %s: await what waits there, or use "
            "concurrency='threads'", where,
        )  # fmt: skip
        return False

    def cancel(self) -> None:
        def cancel() -> None:
            for local, jobs in self._waiting.items():
                self._waiting[local] = deque(job for job in jobs if job.limited == "close")
            for job, task in self._tasks.values():
                if job.limited != "close":
                    self._loop.call_soon(task.cancel)  # after it has begun: else it would never come to `_finish`

        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(cancel)

    def leave(self, seconds: float) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(seconds)

    def _run(self) -> None:
        identity.adopt(self._who)
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            self._loop.set_exception_handler(lambda *_: None)  # of coroutines that go on for ever
            for _, task in self._tasks.values():
                task.cancel()
            self._loop.run_until_complete(asyncio.sleep(0))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            asyncio.set_event_loop(None)
            self._loop.close()

    # In the loop

    def _begin_all(self) -> None:
        self._called = False
        while self._coming:
            job = self._coming.popleft()
            if job.local in self._tasks:
                self._waiting.setdefault(job.local, deque()).append(job)
            else:
                self._start(job)

    def _start(self, job: Job) -> None:
        if self._limits and not self._ticking:
            self._ticking = True
            self._ticks += 1
            self._looked = time.monotonic()
            self._loop.call_later(self._tick, self._look)
        self._begun(job)
        self._tasks[job.local] = job, self._loop.create_task(self._carry_out(job))

    async def _carry_out(self, job: Job) -> None:
        before = forks.count
        try:
            outcome = job.work()
            if inspect.isawaitable(outcome):
                outcome = await outcome
            forks.leave(before, None)
        except asyncio.CancelledError as exc:  # which is no Exception
            outcome = Raised(VecEnvError(f"env {self._first + job.local}: its coroutine was cancelled"))
            outcome.exc.__cause__ = exc
        except BaseException as exc:
            forks.leave(before, exc)
            outcome = Raised(exc)
        self._finish(job, outcome)

    def _finish(self, job: Job, outcome: Any) -> None:
        if not self._end(job, outcome):
            return
        del self._tasks[job.local]
        if not self._flushes:
            self._flushes = True
            self._loop.call_soon(self._flush)
        if waiting := self._waiting.get(job.local):
            self._start(waiting.popleft())

    def _flush(self) -> None:
        self._flushes = False
        self.flush()

    def _look(self) -> None:
        self._ticks += 1
        for job in self._late():
            self._tasks[job.local][1].cancel()
            self._loop.call_later(_GRACE, self._abandon, job)
        self._ticking = bool(self._timed)
        if self._ticking:
            self._loop.call_later(self._tick, self._look)

    def _abandon(self, job: Job) -> None:
        """Go on without a coroutine that has gone on in spite of its cancellation."""
        if not job.over:
            self.abandoned.add(job.local)
            self.hanging += 1
            self._finish(job, None)
