"""How a worker runs envs that wait: in one thread for each (`env_threads`), or in one event loop (`env_tasks`).

Both are given jobs of envs. The jobs of one env are done in their order, those of different envs at the same time.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import contextvars
import inspect
import math
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from vecenvs import identity
from vecenvs.errors import StepTimeout
from vecenvs.worker.rules import TimeLimits, WorkShare

_LAG = 0.05  # seconds by which a look at the clock may be late before the lag counts


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

    __slots__ = ("admitted", "began", "deliver", "late", "limited", "local", "over", "work")

    def __init__(
        self, local: int, work: Callable[[], Any], deliver: Callable[[Job, Any], None], limited: str = ""
    ) -> None:
        self.local, self.work, self.deliver, self.limited = local, work, deliver, limited
        self.began = 0.0  # less what the clock has lost by then
        self.late = False  # whether it has been told to end
        self.over = False
        self.admitted = False  # whether it counts for a limit of work


class Overtaken(BaseException):
    """Ends a job whose time is over when its env returns after all: another job of the env may have begun."""


_current: contextvars.ContextVar[tuple[Runner, Job] | None] = contextvars.ContextVar("job", default=None)


def check_time() -> None:
    """Raise Overtaken if the time of the job that runs here is over, or its env is to be closed.

    It has to leave all that is its env's as it is.
    """
    if (found := _current.get()) and (found[0].closed or found[1].late or found[1].over):
        raise Overtaken


def begin_reset() -> None:
    """Give the job that runs here the time limit of a reset from now on, if it is a step; see `check_time`."""
    check_time()
    if found := _current.get():
        found[0].turn(found[1])


class Runner(abc.ABC):
    """Runs the jobs of the envs of one worker. `flush` is called soon after jobs have been delivered.

    `limits` are the seconds that a "step" and a "reset" may take. The outcome of one that takes longer is a
    StepTimeout, and its env is in `abandoned` if it could not be stopped: another one has to take its place.
    With a limit of `work` steps and resets wait until they may begin, in their order; their time begins after that.
    """

    def __init__(self, first: int, limits: TimeLimits, work: WorkShare) -> None:
        self.flush: Callable[[], object] = list  # does nothing
        self.abandoned: set[int] = set()
        self.hanging = 0  # abandoned envs that go on
        self._first = first
        self._who = identity.current()
        self._limits = {what: limit for what, limit in limits._asdict().items() if limit < math.inf}
        self._tick = min([0.1, *(limit / 8 for limit in self._limits.values())])
        self._timed: dict[Job, None] = {}  # jobs with a limit that have begun, by the time of that
        self._lost = 0.0  # seconds in which nothing could run, which count for no limit
        self._looked = time.monotonic()  # when that was found last
        self._ending = threading.Lock()
        self.closed = False
        self._work = work
        self._room = threading.Semaphore(0 if work.at_once == math.inf else int(work.at_once))
        self._queue: queue.SimpleQueue[Job | None] | None = None  # of jobs that wait until they may begin
        if min(work) < math.inf:
            self._queue = queue.SimpleQueue()
            threading.Thread(target=self._admit, args=(self._queue,), name="vecenvs-work", daemon=True).start()

    def begin(self, jobs: Iterable[Job]) -> None:
        """Begin jobs, each after those of its env that were begun before."""
        if self._queue is None:
            self._begin(jobs)
            return
        for job in jobs:
            if job.limited in ("step", "reset"):
                self._queue.put(job)
            else:
                self._begin([job])

    def _admit(self, jobs: queue.SimpleQueue[Job | None]) -> None:
        """Begin jobs as the limit of work allows."""
        due = 0.0
        while (job := jobs.get()) is not None:
            if self._work.at_once < math.inf:
                self._room.acquire()
            now = time.monotonic()
            time.sleep(max(due - now, 0.0))
            due = max(due, now) + 1.0 / self._work.per_second
            if self.closed:
                return
            job.admitted = True
            self._begin([job])

    @abc.abstractmethod
    def _begin(self, jobs: Iterable[Job]) -> None:
        """Begin jobs at once."""

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
        if self.closed:
            return []
        self.closed = True
        if self._queue is not None:
            self._queue.put(None)
            self._room.release()
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
        job.began = -self._lost + time.monotonic()  # in this order: time that is lost in between adds to the limit
        _current.set(None if job.limited == "close" else (self, job))
        if job.limited in self._limits:
            self._timed[job] = None

    def turn(self, job: Job) -> None:
        """Let the time of a step that goes on with a reset begin anew."""
        with self._ending:
            if job.limited == "step" and not job.late and not job.over:
                self._timed.pop(job, None)
                job.limited = "reset"
                self._begun(job)

    def _claim(self, job: Job) -> bool:
        """Return whether this is the first one to end the job."""
        with self._ending:
            first, job.over = not job.over, True
        self._timed.pop(job, None)
        if first and job.admitted:
            self._room.release()
        return first

    def _end(self, job: Job, outcome: Any) -> bool:
        """Deliver the outcome of a job, unless one has been delivered before."""
        first = self._claim(job)
        if first:
            _current.set(None)  # the time of the job counts for nothing that follows
            job.deliver(job, self._too_late(job) if job.late else outcome)
        else:
            self.hanging -= 1
        return first

    def _too_late(self, job: Job) -> Raised:
        slot = self._first + job.local
        return Raised(StepTimeout([slot], self._limits[job.limited], job.limited, then=f"Env {slot} needs a reset"))

    def _late(self) -> list[Job]:
        """Look at the clock, a tick after the last time; return the jobs whose time is over, each of them once."""
        now, before = time.monotonic(), self._looked
        self._looked = now
        if now - before - self._tick > _LAG:
            self._lost += now - before - self._tick
        now -= self._lost
        found = []
        with self._ending:
            for job in [*self._timed]:
                if not (job.late or job.over) and now - job.began >= self._limits[job.limited]:
                    job.late = True
                    found.append(job)
        return found
