"""Wait for answers, while checking that the workers live and keep to their time limits."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

from vecenvs.batch.batch_columns import BatchColumns
from vecenvs.errors import AlreadySteppingError, NotSteppingError, StepTimeout, VecEnvError, describe_indices
from vecenvs.pool.answers import Answers
from vecenvs.pool.commands import Commands
from vecenvs.pool.info_columns import InfoColumns
from vecenvs.pool.patience import IN_ON_RESTART, OTHER_THREAD, Patience
from vecenvs.pool.recovery import copied
from vecenvs.pool.subsets import bits_of, slots_in
from vecenvs.pool.timeouts import StepTimeouts
from vecenvs.pool.unanswered import Request
from vecenvs.pool.workers import LIVENESS, Workers
from vecenvs.transport import Message, Transport
from vecenvs.transport.protocol import Answer
from vecenvs.worker.rules import TimeLimits

# Plain ints compare faster.
_ROWS, _PLAIN = int(Answer.ROWS), int(Answer.PLAIN_ROWS)
_BARE = frozenset({_ROWS, _PLAIN})


class Waiting:
    """Waits until commands are answered."""

    def __init__(
        self,
        commands: Commands,
        workers: Workers,
        batch: BatchColumns,
        infos: InfoColumns,
        limits: TimeLimits,
    ) -> None:
        self._commands = commands
        self._workers, self._transports = workers, workers.transports
        self.limit_of_calls = min(limits.step, workers.start_timeout)  # in on_restart
        self._timeouts = StepTimeouts(limits, workers.transports)
        self._timed = self._timeouts.timed
        self._start_times = partial(commands.start_times, alike=limits.step == limits.reset)
        answers = Answers(commands, workers, batch, infos, self._timeouts)
        self._record, self._collect = answers.record, answers.collect
        self.errors = answers.errors  # of each worker's envs
        self._patience = Patience(commands, workers)
        self._next_check = 0.0

    def finish_step(self, deadline: float | None, timeout: float | None) -> None:
        """Wait until every worker has stepped its shard."""
        self._patience.begin()
        try:
            commands = self._commands
            if commands.unsent is not None:
                commands.send_unsent()
            stepping, answers, transports = commands.stepping, commands.step_answers, self._transports
            limited = deadline is not None or self._timed
            if self._timed:
                self._timeouts.look(begins=True)
            while stepping:
                worker = next(reversed(stepping))  # see `Workers.order_by_cpu`
                transport = transports[worker]
                limit = self._limit(deadline) if limited else None
                message = transport.get(LIVENESS) if limit is None else _get_until(limit, transport)
                if message is not None:
                    number, kind, body = message
                    if body is None and kind in _BARE and number == answers.number and not self._timed:  # nearly always
                        if kind != _PLAIN:
                            answers.plain = False
                        stepping.pop(worker, None)
                    else:
                        self._record(worker, message)
                    transport.take()
                    continue
                self._look_around(list(stepping))
                if stepping and commands.stepping is not stepping:
                    raise VecEnvError(OTHER_THREAD)
                if limit is not None and stepping and time.monotonic() >= limit:
                    self._time_out(commands.everyone, deadline, timeout, "step")
            commands.without_rows.clear()
        except BaseException as exc:
            self._patience.explain(exc)
            raise
        finally:
            self._patience.thread = 0

    def wait_until(
        self,
        enough: Callable[[], bool],
        waited_for: int,
        deadline: float | None = None,
        timeout: float | None = None,
        *,
        next_workers: Callable[[], Sequence[int]] | None = None,
        what: str = "step",
    ) -> None:
        """Record answers as they come until `enough()`. StepTimeout names the slots of `waited_for` that are missing.

        `next_workers` returns the workers to wait for next; without it they are all that have something to do.
        """
        self._patience.begin()
        try:
            self.collect()
            self._timeouts.look(begins=True)
            self._check_now_and_then(what)
            if deadline is not None and time.monotonic() >= deadline and not enough():  # a poll
                for worker in self._commands.busy_workers():
                    self._transports[worker].work()
                self.collect()
            while not enough():
                limit = self._limit(deadline)
                if limit is not None and time.monotonic() >= limit:
                    self._time_out(waited_for, deadline, timeout, what)
                    continue
                workers = self._commands.busy_workers() if next_workers is None else next_workers()
                self._workers.wait_any(workers, LIVENESS if limit is None else limit - time.monotonic())
                if not self._collect(workers):
                    self._check_alive(self._commands.busy_workers())  # also those that are not waited for
                    self._patience.look()
        except BaseException as exc:
            self._patience.explain(exc)
            raise
        finally:
            self._patience.thread = 0

    def await_rows(self, slots: int, deadline: float | None = None, timeout: float | None = None) -> None:
        """Wait until all of these slots have a row ready."""
        self._patience.begin()
        try:
            commands = self._commands
            if commands.unsent is not None:
                commands.send_unsent()
            self._timeouts.look(begins=True)
            self._check_now_and_then("step")
            # One worker after another, as in `finish_step`: a wait for several would be woken for each message.
            while missing := slots & ~commands.ready_slots():
                worker = self._next_worker(missing)
                transport, limit = self._transports[worker], self._limit(deadline)
                message = transport.get(LIVENESS) if limit is None else _get_until(limit, transport)
                if message is not None:
                    self._record(worker, message)
                    transport.take()
                    continue
                self._look_around(commands.busy_workers())
                if limit is not None and slots & ~commands.ready_slots() and time.monotonic() >= limit:
                    self._time_out(slots, deadline, timeout, "step")
        except BaseException as exc:
            self._patience.explain(exc)
            raise
        finally:
            self._patience.thread = 0

    def _next_worker(self, missing: int) -> int:
        """Return the worker to wait for next (`Workers.order_by_cpu`), of those with a command for slots."""
        for worker in reversed(self._workers.order):
            for each in self._commands.pending[worker].values():
                if each.left & missing:
                    return worker
        return 0

    def _look_around(self, workers: Sequence[int]) -> None:
        """Record what has come meanwhile from these workers; if nothing has, check that they live."""
        if not self._collect(workers):
            self._check_alive(workers)
            self._patience.look()

    def await_replies(self, request: Request, deadline: float | None = None, timeout: float | None = None) -> None:
        """Wait until every worker has replied to the request."""
        missing: list[int] = []

        def enough() -> bool:
            missing[:] = [worker for worker in request.messages if worker not in request.replies]
            return not missing

        slots = bits_of(slot for group in request.slots.values() for slot in group)
        self.wait_until(enough, slots, deadline, timeout, next_workers=lambda: missing[:1], what="call")

    def finish_resets(self, slots: int) -> None:
        """Wait for the async autoresets of some slots."""
        waiting = slots & bits_of(self._commands.resetting) if self._commands.resetting else 0
        if waiting:
            self.await_rows(waiting)

    def collect(self) -> None:
        """Record every answer that has come, without waiting."""
        self._commands.send_unsent()
        self._collect(self._commands.busy_workers())

    def check_free(self, what: str, slots: int, *, autoresets: bool = True) -> None:
        """Raise unless these slots can take a command. With `autoresets` False, one under an async autoreset can."""
        commands = self._commands
        if commands.reviving is not None:
            raise AlreadySteppingError(f"{what} {IN_ON_RESTART}")
        commands.send_unsent()
        lost = commands.recovery.lost
        if commands.stepping is not None and not lost:
            raise AlreadySteppingError(f"{what} after a step_async: step_wait first")
        if lost:
            self._check_not_lost(slots)
            self._await_step(slots)
        busy = slots & (commands.ready_slots() | commands.pending_slots) & ~commands.orphaned
        if busy and not autoresets:
            busy &= ~bits_of(commands.resetting)
        if busy:
            indices = describe_indices(slots_in(busy))
            raise AlreadySteppingError(f"{what} while envs {indices} have a command: recv first")

    def _await_step(self, slots: int, deadline: float | None = None, timeout: float | None = None) -> None:
        """Wait until the rows of some slots, of a step in which a worker of others was lost, are single ones."""
        commands = self._commands
        owners = {commands.owner[slot] for slot in slots_in(slots)}
        self.wait_until(lambda: not owners & (commands.stepping or {}).keys(), slots, deadline, timeout)

    def check_pending(self, slots: int, deadline: float | None, timeout: float | None) -> None:
        """Raise unless each of these slots has a row or a command that will bring one to `recv`."""
        commands = self._commands
        commands.send_unsent()
        if commands.recovery.lost and commands.stepping:
            self._await_step(slots, deadline, timeout)
        missing = slots & ~(commands.ready_slots() | commands.pending_slots)
        if missing:
            self._check_not_lost(missing)
            raise NotSteppingError(
                f"recv of envs {describe_indices(slots_in(missing))}, which have no command: send first"
            )

    def _check_not_lost(self, slots: int) -> None:
        """Raise the error of a worker that is lost, if it had one of these slots."""
        lost = self._commands.recovery.lost
        for worker, error in lost.items():
            if slots & bits_of(self._commands.shards[worker]):
                raise copied(error)

    # Deaths and time-outs

    def _check_alive(self, workers: Sequence[int]) -> None:
        """Check that these workers live. What a dead worker has sent before is recorded first."""
        for worker in workers:
            if self._transports[worker].exit_status()[0] and not self._collect([worker]):
                self._commands.on_death(worker)

    def _check_now_and_then(self, what: str) -> None:
        """Find dead and late workers even if others always have a row ready, so that there is never a wait."""
        now = time.monotonic()
        if now < self._next_check:
            return
        self._next_check = now + LIVENESS
        self.collect()  # which resets `wake`: rows of certain envs are taken without it, for days
        self._check_alive(self._commands.busy_workers())
        if self._find_late():
            self._time_out(0, None, None, what)

    def _find_late(self) -> dict[int, str]:
        """Return the workers that exceed their time limit, with what is late."""
        late = self._timeouts.late(self._start_times())
        while late and (early := self._timeouts.told_by - time.monotonic()) > 0:
            time.sleep(min(early, LIVENESS))
            self._collect(self._commands.busy_workers())
            late = self._timeouts.late(self._start_times())
        for worker in late:  # the rest of a long answer has had no room while others were waited for
            self._collect([worker], LIVENESS)
            self._timeouts.look()
        still = self._timeouts.late(self._start_times()) if late else late
        return {worker: doing for worker, doing in still.items() if worker in late}  # not those late since

    def _limit(self, deadline: float | None) -> float | None:
        if not self._timed:
            return deadline
        self._timeouts.look()
        replacing = self._commands.recovery.left > 0
        return self._timeouts.limit(deadline, self._start_times(), replacing=replacing)

    def _time_out(self, waited_for: int, deadline: float | None, timeout: float | None, what: str) -> None:
        """Raise StepTimeout; or, if a worker exceeds its limit and restarts are left, have it replaced."""
        commands = self._commands
        if deadline is not None and time.monotonic() >= deadline:
            raise StepTimeout(slots_in(commands.unanswered_slots() & waited_for), timeout or 0.0, what)
        self._timeouts.look()
        self._collect(commands.busy_workers())  # what has come in time
        hung = self._find_late()
        while hung and commands.recovery.left:
            worker = next(iter(hung))
            commands.recovery.late(worker, hung.pop(worker))
            commands.on_replacement(worker)
        if hung:
            self._timeouts.restart({worker for worker, *_ in self._start_times()})
            late = commands.unanswered_slots() & sum(bits_of(commands.shards[worker]) for worker in hung)
            worker, doing = next(iter(hung.items()))
            limit = getattr(self._timeouts.limits, doing)
            what = doing if doing == "reset" else what
            raise StepTimeout(slots_in(late & waited_for or late), limit, what, self._transports[worker].cause)


def _get_until(limit: float, transport: Transport) -> Message | None:
    """Return the next message of a worker; None if it does not come in time, or not before the next look at workers."""
    transport.work()
    return transport.get(min(LIVENESS, max(limit - time.monotonic(), 0.0)))
