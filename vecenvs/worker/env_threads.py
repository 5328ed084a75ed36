"""Envs that wait, in one thread for each."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Iterable

from vecenvs import identity
from vecenvs._native import forks
from vecenvs.worker.outcomes import Job, Raised, Runner
from vecenvs.worker.process import HeldSignals
from vecenvs.worker.rules import TimeLimits, WorkShare


class EnvThreads(Runner):
    """One thread for each env: it makes, resets, steps, calls and closes it."""

    def __init__(self, first: int, limits: TimeLimits, work: WorkShare) -> None:
        super().__init__(first, limits, work)
        self._queues: dict[int, queue.SimpleQueue[Job | None]] = {}
        self._threads: list[threading.Thread] = []
        self._left = threading.Event()
        if self._limits:
            threading.Thread(target=self._watch, name="vecenvs-limits", daemon=True).start()

    def _begin(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            self._queue_of(job.local).put(job)

    def __contains__(self, local: int) -> bool:
        """Tell whether an env has a thread, as it has once a job of it was begun."""
        return local in self._queues

    def alive(self) -> bool:
        return True

    def cancel(self) -> None:
        """Do nothing: no thread can be told to end."""

    def exchange(self, one: int, other: int) -> None:
        """Take note that two envs have changed places: each stays in its thread."""
        queues = self._queue_of(one), self._queue_of(other)
        self._queues[other], self._queues[one] = queues

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
            jobs = queue.SimpleQueue()
            name = f"vecenvs-env-{self._first + local}"
            thread = threading.Thread(target=self._serve, args=(jobs,), name=name, daemon=True)
            with HeldSignals():  # what a handler raises in `start` leaves a thread that cannot be used
                thread.start()
                self._threads.append(thread)
                self._queues[local] = jobs
        return jobs

    def _serve(self, jobs: queue.SimpleQueue[Job | None]) -> None:
        identity.adopt(self._who)
        while (job := jobs.get()) is not None:
            if job.over:  # begun twice, as an exception came in between
                continue
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
            self._left.wait(self._tick)
            for job in self._late():
                if not self._claim(job):  # it has ended meanwhile
                    continue
                old = self._queues.pop(job.local)
                self.abandoned.add(job.local)
                self.hanging += 1
                with contextlib.suppress(queue.Empty):
                    while True:
                        self._queue_of(job.local).put(old.get_nowait())
                job.deliver(job, self._too_late(job))
            self.flush()
