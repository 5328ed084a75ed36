"""The worker of envs that wait: it begins what commands say, and answers as envs come to the end of it."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from vecenvs.batch.batch_columns import BatchColumns
from vecenvs.errors import VecEnvError
from vecenvs.transport.protocol import (
    Answer,
    Command,
    RemoteFailure,
    Slots,
    address,
    rows_of,
    shifted,
    slots_of,
)
from vecenvs.transport.reset_arguments import NONE_GIVEN
from vecenvs.worker.async_resets import FirstRows
from vecenvs.worker.calls import EnvCall, close_in, result_of, works_of
from vecenvs.worker.env_errors import ENV_ERRORS, Remake, Unmade, made_in_time
from vecenvs.worker.env_shard import EnvShard
from vecenvs.worker.env_tasks import EnvTasks
from vecenvs.worker.env_threads import EnvThreads
from vecenvs.worker.load import Load, resident_bytes
from vecenvs.worker.outcomes import Job, Runner, check_time, outcome_of
from vecenvs.worker.rules import Rules
from vecenvs.worker.worker import Answering, Worker

HANGING = 75  # the exit code of a worker of which too many envs hang
_log = logging.getLogger("vecenvs")

Take = Callable[[dict[int, Any]], None]  # is given outcomes, by env, that have come together


def make_runner(first: int, rules: Rules) -> Runner | None:
    """Return what runs a worker's envs, with `concurrency`."""
    kinds: dict[str | None, type[Runner]] = {"threads": EnvThreads, "asyncio": EnvTasks}
    kind = kinds.get(rules.concurrency)
    return None if kind is None else kind(first, rules.limits, rules.work)


def make_worker(
    envs: list[Any], first: int, batch: BatchColumns, rules: Rules, answer: Answering, *,
    remote: bool, remake: Remake | None, runner: Runner | None,
) -> Worker:  # fmt: skip
    """Return the worker of these envs, which its `runner` runs, if there is one."""
    if runner is None or remake is None:
        return Worker(envs, first, batch, rules, answer, remote=remote, remake=remake)
    return WaitingWorker(envs, first, batch, rules, answer, remote=remote, remake=remake, runner=runner)


class WaitingWorker(Worker):
    """Begins the jobs of its envs, which `runner` runs. The thread that ends one writes the rows that are there.

    Commands are handled in one thread. Whatever touches the columns, the infos and the answers holds `_writing`.
    """

    env_shard: EnvShard

    def __init__(
        self, envs: list[Any], first: int, batch: BatchColumns, rules: Rules, answer: Answering, *,
        runner: Runner, remake: Remake, remote: bool,
    ) -> None:  # fmt: skip
        super().__init__(envs, first, batch, rules, answer, remote=remote, remake=remake)
        self._threads = True
        self._remake = remake
        self._runner = runner
        self._restarts = rules.restarts
        self._most_hanging = max(1, len(envs) // 4)
        self._late = 0  # envs whose episodes have ended since they were too late
        self._under_way: dict[Job, None] = {}
        self._writing = threading.Lock()
        self._ended: deque[tuple[Take, int, Any]] = deque()  # outcomes that have not been written
        # Outcomes of async resets, and their seconds.
        self._resets = FirstRows(self._write_first, self._begin_reset, remote=remote)
        runner.flush = self._flush
        if self.env_shard.spares is not None and isinstance(runner, EnvThreads):
            self.env_shard.spares.use_runner(runner)

    def handle(self, number: int, tag: int, body: Any) -> bool:
        if tag & 0xFF == Command.CLOSE:
            return super().handle(number, tag, body)
        with self._writing:
            going = super().handle(number, tag, body)
        self._flush()
        return going

    def _load(self, now: float) -> Load:
        return Load(None, None, resident_bytes())

    def proceed(self) -> None:
        """Begin all of `subset`."""
        assert self.subset is not None
        (number, kind, slots, given), self.subset = self.subset, None
        some = shifted(slots, -self._first)
        if type(given) is RemoteFailure:  # it could not be unpickled
            self._refuse_some(number, slots, given._replace(summary=f"env {slots[0]}: {given.summary}"))
        elif kind == Command.AWAIT_RESET:
            for local in some:
                self._resets.ask(local, number)
        elif kind == Command.RESET:
            self._resets.drop(some)
            works = self.env_shard.work(some, given or NONE_GIVEN)
            self._begin(some, works, partial(self._take_rows, number, "reset", time.monotonic()), "reset")
        else:
            if given is not None:
                self._batch.actions.take_objects(rows_of(slots), given)
            take = partial(self._take_rows, number, "step", time.monotonic())
            self._begin(some, self.env_shard.work(some, None), take)

    def run_deferred(self) -> None:
        """Raise, in the main thread, what an env has raised that ends programs, such as a Ctrl-C."""
        deferred = self.env_shard.deferred
        for each in [*deferred] if threading.current_thread() is threading.main_thread() else ():
            if isinstance(each, BaseException):
                deferred.remove(each)
                raise each

    def _on_step(self, number: int, objects: Any) -> None:
        everyone = self.env_shard.all
        if objects is not None:
            self._batch.actions.take_objects(slice(self._first, self._first + len(everyone)), objects)
        self._begin(
            everyone, self.env_shard.work(everyone, None), partial(self._take_step, number, time.monotonic(), {})
        )

    def _on_call(self, number: int, body: EnvCall) -> None:
        some = [slot - self._first for slot in body[1]]
        take = partial(self._take_results, number, body, {})
        self._begin(some, dict(zip(some, works_of(self.env_shard, self._first, body), strict=True)), take, "")

    # Jobs

    def _begin(self, some: Slots, works: dict[int, Callable[[], Any]], take: Take, limited: str = "step") -> None:
        """Begin the work of some envs. `take` gets the outcomes as they come."""

        def deliver(job: Job, outcome: Any) -> None:
            self._under_way.pop(job, None)
            if self._closed:
                return
            if job.late:
                self._leave_hanging()
            work = works[job.local]
            if job.late and job.limited != limited:  # a step that had turned to a reset
                work = self.env_shard.reset_again(job.local, work)
            if not (job.late and self._goes_on(job.local, job.limited, outcome.exc, work, take)):
                self._ended.append((take, job.local, outcome))

        jobs = [Job(local, self._with_env(local, works[local]), deliver, limited) for local in some]
        self._under_way.update(dict.fromkeys(jobs))
        self._runner.begin(jobs)

    def _goes_on(self, local: int, doing: str, exc: BaseException, work: Callable[[], Any], take: Take) -> bool:
        """After a step that was too late end the env's episode and begin the next one; repeat a reset; if wanted."""
        errors = self.env_shard.errors
        if errors is None:
            if self._late >= self._restarts:
                return False
            self._late += 1
            then = "its episode ends here" if doing == "step" else "it is reset once more"
            self._report_error(self._late, f"{exc}: {then} (restart {self._late} of {self._restarts})")
        try:
            if doing == "step":
                work = self.env_shard.cut_short(local, exc)
            elif errors is not None:
                errors.happened(local, "reset", exc)
        except ENV_ERRORS:  # too many of them
            return False
        self._begin([local], {local: work}, take, "reset")
        return True

    def _leave_hanging(self) -> None:
        """End this process, which another one replaces, if too many of its envs hang and there are restarts."""
        if self._remote and self._restarts and self._runner.hanging > self._most_hanging:
            _log.warning("%d calls of this worker's envs hang, and cannot be ended: it ends", self._runner.hanging)
            os._exit(HANGING)

    def _with_env(self, local: int, work: Callable[[], Any]) -> Callable[[], Any]:
        """Return work of an env, before which another one is made if that one goes on by itself."""
        if local not in self._runner.abandoned:
            return work

        def work_on_new() -> Any:
            envs = self.env_shard.envs
            check_time()
            if self._runner.hanging > self._most_hanging:
                self._leave_hanging()
                here = "" if self._remote else "; this one is the calling process"
                raise VecEnvError(
                    f"env {self._first + local} hangs, and {self._runner.hanging} calls of its worker's {len(envs)} "
                    "envs do: no more are made anew. Such a worker process is replaced with on_failure='restart'" + here
                )
            envs[local] = made_in_time(partial(self._remake, local, Unmade(envs[local])))
            self._runner.abandoned.discard(local)
            self._report_error(0, "", self._first + local)
            if self.env_shard.errors is not None:
                self.env_shard.errors.broken.discard(local)
            return work()

        return work_on_new

    def _flush(self) -> None:
        """Write the rows of all envs that have come to the end of their jobs, and answer.

        One thread does so for all: one that comes meanwhile leaves its outcome to that.
        """
        while self._ended and not self._closed and self._writing.acquire(False):
            try:
                self._write()
            except OSError:  # the caller is gone, as the thread that waits for commands will find out
                return
            finally:
                self._writing.release()

    def _write(self) -> None:
        by_command: dict[Take, dict[int, Any]] = {}
        while self._ended:
            take, local, outcome = self._ended.popleft()
            by_command.setdefault(take, {})[local] = outcome
        for take, outcomes in by_command.items():
            take(outcomes)

    def _take_rows(self, number: int, doing: str, began: float, outcomes: dict[int, Any]) -> None:
        some = slots_of(sorted(outcomes))
        self._write_latency(some, time.monotonic() - began)
        body = self.env_shard.write(some, [outcomes[local] for local in some], doing)
        self._send(number, *address(Answer.SOME_ROWS, shifted(some, self._first), body))
        self._begin_resets(some)

    def _take_step(self, number: int, began: float, so_far: dict[int, Any], outcomes: dict[int, Any]) -> None:
        so_far.update(outcomes)
        self._write_latency(slots_of(sorted(outcomes)), time.monotonic() - began)
        env_shard = self.env_shard
        if len(so_far) < len(env_shard.all):
            return
        body = env_shard.write(env_shard.all, [so_far[local] for local in env_shard.all], "step")
        plain = not env_shard.flags.some and (body is None or not (body.extras or body.objects))
        self._send(number, int(Answer.PLAIN_ROWS if plain else Answer.ROWS), body)
        self._begin_resets(env_shard.all)

    def _write_latency(self, some: Slots, seconds: float) -> None:
        self._batch.latency[rows_of(shifted(some, self._first))] = seconds

    def _take_results(self, number: int, call: EnvCall, so_far: dict[int, Any], outcomes: dict[int, Any]) -> None:
        so_far.update(outcomes)
        if len(so_far) < len(call[1]):
            return
        results = []
        for slot in call[1]:
            local = slot - self._first
            returned = partial(outcome_of, so_far[local])
            results.append(result_of(self.env_shard, local, slot, call, returned, remote=self._remote))
        self._reply_results(number, call, results)

    def _is_busy(self) -> bool:
        return bool(self._under_way)

    def _progress(self) -> object:
        return object() if self._runner.alive() else None

    # Async resets

    def _begin_resets(self, some: Slots) -> None:
        """Begin the next episodes of those of these envs whose rows have told the end of the last one."""
        deferred = self.env_shard.deferred
        for local in [each for each in deferred if isinstance(each, int) and each in some]:
            deferred.remove(local)
            self._begin_reset(local)

    def _begin_reset(self, local: int, under_way: Take | None = None) -> None:
        """Begin the next episode of an env whose last one has ended, if that is not `under_way`."""
        if under_way is not None:
            return
        began = time.monotonic()

        def take(outcomes: dict[int, Any]) -> None:
            if wanted():
                self._resets.put(local, (outcomes[local], time.monotonic() - began))

        def wanted() -> bool:
            return self._resets.under_way.get(local) is take  # neither a reset nor a failure has come since

        self._resets.under_way[local] = take
        self._begin([local], {local: self.env_shard.begin_episode(local, wanted)}, take, "reset")

    def _write_first(self, number: int, local: int, found: tuple[Any, float]) -> None:
        outcome, seconds = found
        self._write_latency([local], seconds)
        self._send_first_row(number, local, self.env_shard.first_row(local, partial(outcome_of, outcome)))

    # The end

    def close(self, grace: float) -> list[RemoteFailure]:
        if self._closed:
            return []
        self._closed = True
        self.env_shard.close_spares(grace)
        return close_in(self._runner, self.env_shard.owned, self._first, remote=self._remote, grace=grace)

    _COMMANDS: ClassVar[dict[int, Callable[[Any, int, Any], None]]] = {
        **Worker._COMMANDS,  # noqa: SLF001  its base's
        int(Command.STEP): _on_step,
        int(Command.CALL): _on_call,
    }
