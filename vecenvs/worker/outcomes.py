"""How a worker runs envs that wait: in one thread for each (`EnvThreads`), or in one event loop (`EnvTasks`).

Both are given jobs of envs. The jobs of one env are done in their order, those of different envs at the same time.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import inspect
import logging
import queue
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from vecenvs._native import forks
from vecenvs.errors import StepTimeout, VecEnvError

_GRACE = 1.0  # seconds for a coroutine to end that has been cancelled
_LAG = 0.05  # seconds by which a look at the clock may be late before the lag counts
_log = logging.getLogger("vecenvs")


def finish(value: Any) -> None:
    """Await what a function may have returned to be awaited, wherever that was."""
    if inspect.iscoroutine(value):
        thread = threading.Thread(target=_finish, args=(value,))  # this one may have a loop that runs
        thread.start()
        thread.join()


def _finish(coroutine: Any) -> None:
    with contextlib.suppress(Exception):
        asyncio.run(coroutine)


class Raised(NamedTuple):
    """The outcome of a job that has raised an exception."""

    exc: BaseException


def outcome_of(outcome: Any) -> Any:
    """Return what a job has returned, or raise what it has raised."""
    if type(outcome) is Raised:
        raise outcome.exc
    return outcome


class Job:
    """Work of one env. At its end, or that of its time, `deliver(job, outcome)` is called, once, from any thread.

    `limited` is what it is, for its time limit: "step", "reset", "close"; or "".
    """

    __slots__ = ("began", "deliver", "late", "limited", "local", "over", "work")

    def __init__(
        self, local: int, work: Callable[[], Any], deliver: Callable[[Job, Any], None], limited: str = ""
    ) -> None:
        self.local, self.work, self.deliver, self.limited = local, work, deliver, limited
        self.began = 0.0  # less what the clock has lost by then
        self.late = False  # whether it has been told to end
        self.over = False


class Runner(abc.ABC):
    """Runs the jobs of the envs of one worker. `flush` is called soon after jobs have been delivered.

    `limits` are the seconds that a "step" and a "reset" may take. The outcome of one that takes longer is a
    StepTimeout, and its env is in `abandoned` if it could not be stopped: another one has to take its place.
    """

    def __init__(self, first: int, limits: Mapping[str, float | None]) -> None:
        self.flush: Callable[[], object] = list  # does nothing
        self.abandoned: set[int] = set()
        self._first = first
        self._limits = {what: limit for what, limit in limits.items() if limit is not None}
        self._tick = min([0.1, *(limit / 8 for limit in self._limits.values())])
        self._timed: dict[Job, None] = {}  # jobs with a limit that have begun, by the time of that
        self._lost = 0.0  # seconds in which nothing could run, which count for no limit
        self._ending = threading.Lock()
        self._closed = False

    @abc.abstractmethod
    def begin(self, jobs: Iterable[Job]) -> None:
        """Begin jobs, each after those of its env that were begun before."""

    @abc.abstractmethod
    def alive(self) -> bool:
        """Tell whether jobs have been able to run since the last call."""

    @abc.abstractmethod
    def leave(self, seconds: float) -> None:
        """Begin no more jobs, and wait up to so many seconds for the end of what runs them."""

    def call(self, local: int, function: Callable[[], Any]) -> Any:
        """Run a function where the env's jobs are done; return what it returns."""
        ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.begin([Job(local, function, lambda _, outcome: ended.put(outcome))])
        return outcome_of(ended.get())

    def close(self, works: Mapping[int, Callable[[], Any]], seconds: float) -> list[tuple[int, BaseException]]:
        """Do the last work of envs and leave, once; return what that has raised. Work under way goes before it."""
        if self._closed:
            return []
        self._closed = True
        ended: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        deadline = time.monotonic() + seconds
        self.cancel()

        def deliver(job: Job, outcome: Any) -> None:
            ended.put((job.local, outcome))

        self.begin([Job(local, work, deliver, "close") for local, work in works.items()])
        found: list[tuple[int, BaseException]] = []
        with contextlib.suppress(queue.Empty):
            for _ in works:
                local, outcome = ended.get(timeout=max(deadline - time.monotonic(), 0.0))
                finish(outcome)  # a coroutine where none was to be
                if type(outcome) is Raised:
                    found.append((local, outcome.exc))
        self.leave(max(deadline - time.monotonic(), 0.1))
        return found

    @abc.abstractmethod
    def cancel(self) -> None:
        """Tell jobs to end that can be told."""

    def _begun(self, job: Job) -> None:
        job.began = time.monotonic() - self._lost
        if job.limited in self._limits:
            self._timed[job] = None

    def _end(self, job: Job, outcome: Any) -> bool:
        """Deliver the outcome of a job, unless one has been delivered before."""
        with self._ending:
            if job.over:
                return False
            job.over = True
        self._timed.pop(job, None)
        job.deliver(job, self._too_late(job) if job.late else outcome)
        return True

    def _too_late(self, job: Job) -> Raised:
        slot = self._first + job.local
        return Raised(StepTimeout([slot], self._limits[job.limited], job.limited, then=f"Env {slot} needs a reset"))

    def _late(self, scheduled: float) -> list[Job]:
        """Look at the clock, which was to happen at a time; return the jobs whose time is over."""
        now = time.monotonic()
        if now - scheduled > _LAG:
            self._lost += now - scheduled
        now -= self._lost
        return [job for job in [*self._timed] if not job.late and now - job.began >= self._limits[job.limited]]


class EnvThreads(Runner):
    """One thread for each env: it makes, resets, steps, calls and closes it."""

    def __init__(self, first: int, limits: Mapping[str, float | None]) -> None:
        super().__init__(first, limits)
        self._queues: dict[int, queue.SimpleQueue[Job | None]] = {}
        self._threads: list[threading.Thread] = []
        self._left = threading.Event()
        if self._limits:
            threading.Thread(target=self._watch, name="vecenvs-limits", daemon=True).start()

    def begin(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            self._queue_of(job.local).put(job)

    def alive(self) -> bool:
        return True

    def cancel(self) -> None:
        """Do nothing: no thread can be told to end."""

    def leave(self, seconds: float) -> None:
        self._left.set()
        deadline = time.monotonic() + seconds
        for jobs in self._queues.values():
            jobs.put(None)
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0.0))

    def _queue_of(self, local: int) -> queue.SimpleQueue[Job | None]:
        jobs = self._queues.get(local)
        if jobs is None:
            self._queues[local] = jobs = queue.SimpleQueue()
            name = f"vecenvs-env-{self._first + local}"
            thread = threading.Thread(target=self._serve, args=(jobs,), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        return jobs

    def _serve(self, jobs: queue.SimpleQueue[Job | None]) -> None:
        while (job := jobs.get()) is not None:
            self._begun(job)
            try:
                outcome = forks.run(job.work)
            except BaseException as exc:
                outcome = Raised(exc)
            going_on = self._end(job, outcome)
            del job, outcome  # else they would be kept until the next job
            if not going_on:
                return  # another thread has taken its place
            self.flush()

    def _watch(self) -> None:
        """Abandon threads whose envs take too long: others take their places."""
        while not self._left.is_set():
            scheduled = time.monotonic() + self._tick
            self._left.wait(self._tick)
            for job in self._late(scheduled):
                old = self._queues.pop(job.local)
                self.abandoned.add(job.local)
                while True:
                    with contextlib.suppress(queue.Empty):
                        self._queue_of(job.local).put(old.get_nowait())
                        continue
                    break
                job.late = True
                if not self._end(job, None):  # it has ended meanwhile
                    self._queue_of(job.local)
            self.flush()


class EnvTasks(Runner):
    """One event loop, in a thread of its own, in which the coroutines of all envs run."""

    def __init__(self, first: int, limits: Mapping[str, float | None]) -> None:
        super().__init__(first, limits)
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

    def begin(self, jobs: Iterable[Job]) -> None:
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
                    task.cancel()

        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(cancel)

    def leave(self, seconds: float) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(seconds)

    def _run(self) -> None:
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
        self._begun(job)
        self._tasks[job.local] = job, self._loop.create_task(self._carry_out(job))
        if self._limits and not self._ticking:
            self._ticking = True
            self._ticks += 1
            self._loop.call_later(self._tick, self._look, time.monotonic() + self._tick)

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

    def _look(self, scheduled: float) -> None:
        self._ticks += 1
        for job in self._late(scheduled):
            job.late = True
            self._tasks[job.local][1].cancel()
            self._loop.call_later(_GRACE, self._abandon, job)
        self._ticking = bool(self._timed)
        if self._ticking:
            self._loop.call_later(self._tick, self._look, time.monotonic() + self._tick)

    def _abandon(self, job: Job) -> None:
        """Go on without a coroutine that has gone on in spite of its cancellation."""
        if not job.over:
            self.abandoned.add(job.local)
            self._finish(job, None)
