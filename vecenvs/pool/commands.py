"""Which commands are unanswered and which rows have come: between the calls of a VecEnv and its workers.

A slot has at most one unanswered command: in `pending` if it was given to the slot alone, or by its worker's entry in
`stepping` if the whole shard is being stepped. Rows that have come and are not handed out yet are in `ready`; their
columns do not change before the slot's next command.

The handler of a signal (Ctrl-C) may raise at any bytecode. So commands are numbered and noted, in one assignment,
before any is sent; whatever an exception has kept from being sent, the next call sends (`_send_unsent`). Workers ignore
numbers that they have had. An answer stays with its transport until it is noted; noted again, it changes nothing, and
one whose number is not awaited is ignored.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from vecenvs.batch.batch_columns import DONE, BatchColumns
from vecenvs.errors import AlreadySteppingError, StepTimeout, VecEnvError, WorkerDied, describe_indices
from vecenvs.pool.lock_step import LockStep
from vecenvs.pool.recovery import Recovery
from vecenvs.pool.timeouts import StepTimeouts
from vecenvs.pool.workers import LIVENESS, Workers
from vecenvs.transport import Message, Transport
from vecenvs.transport.protocol import Answer, Command, RemoteFailure, RowExtras, RowsBody, slot_of, tag

# Plain ints compare faster.
_ROW, _ROWS, _PLAIN, _STEP = int(Answer.ROW), int(Answer.ROWS), int(Answer.PLAIN_ROWS), int(Command.STEP)
_INFO_ROWS = int(Answer.INFO_ROWS)
_BARE = frozenset({_ROWS, _PLAIN})
_ARRANGE = 256  # steps between looks at which worker shares the caller's core


class Pending(NamedTuple):
    """An unanswered command for one slot."""

    number: int
    kind: Command
    body: Any
    since: float


# In async mode, by slot: the rows that are repeated while envs are being reset, and the commands for the first rows.
Resets = tuple[dict[int, list[Any]], dict[int, Pending]]
NO_RESETS: Resets = ({}, {})


_NOTHING_MORE: tuple[dict[int, Pending], None] = ({}, None)


class Request(NamedTuple):
    """A question to some workers, what each of them is sent, the slots it concerns, and the replies so far."""

    number: int
    messages: dict[int, tuple[Command, Any]]
    slots: Mapping[int, Sequence[int]]
    replies: dict[int, Any]
    since: float


class Commands:
    """Gives commands to the workers and notes their answers. What becomes of a worker that dies, `recovery` knows."""

    def __init__(self, workers: Workers, batch: BatchColumns, step_timeout: float | None, recovery: Recovery) -> None:
        self.shards = workers.shards
        self.owner = [worker for worker, shard in enumerate(self.shards) for _ in shard]
        self.pending: list[dict[int, Pending]] = [{} for _ in self.shards]  # by worker and slot
        self.stepping: dict[int, float] | None = None  # worker -> when its shard's step began; None between two steps
        self.step_slots: Collection[int] = ()  # of a step in which the other envs are being reset
        self.ready: dict[int, RowExtras | None] = {}
        self.lock_step = LockStep(self.shards)
        self.resetting: dict[int, list[Any]] = {}  # slots under an async autoreset -> the row that they repeat
        self.orphaned: set[int] = set()  # slots whose ready row is of a step that a worker's death has ended
        self.request: Request | None = None
        self.recovery = recovery
        self._workers = workers
        self._batch = batch
        self._objects = batch.actions.layout.has_objects
        self._timeouts = StepTimeouts(step_timeout, workers.transports)
        self._timed = step_timeout is not None
        self._number = 0  # of the last command
        # What is being given, and may not be noted and sent yet: see `give`.
        self._unsent: tuple[dict[int, Pending], Collection[int] | None] | None = None
        self._next_look = 0.0
        self._until_arranged = _ARRANGE

    # Giving commands

    def step_all(self) -> None:
        """Begin a step of every env, one command per worker."""
        now = time.monotonic() if self._timed else 0.0  # nothing else looks at it
        self._number = number = self._number + 1
        step = self.lock_step
        step.number, step.plain = number, True
        if step.infos or step.bodies:  # of the step before
            step.infos, step.bodies = {}, {}
        self._until_arranged -= 1
        if not self._until_arranged:
            self._until_arranged = _ARRANGE
            self._workers.arrange()
        self._unsent = _NOTHING_MORE
        order, transports, objects = self._workers.order, self._workers.transports, self._objects
        self.stepping = dict.fromkeys(order, now)
        failed: Exception | None = None
        for worker in order:
            try:
                if objects:
                    transports[worker].put(number, _STEP, self._action_objects(worker))
                else:
                    transports[worker].put(number, _STEP)
            except ConnectionError:
                failed = self._broken(worker) or failed  # the others are sent theirs all the same
        self._unsent = None
        if failed is not None:
            raise failed

    def step_some(self, slots: Collection[int]) -> None:
        """Begin a step of the envs that are not being reset."""
        self.give(self.steps(sorted(slots)), slots)

    def steps(self, slots: Iterable[int]) -> dict[int, Pending]:
        """Return the commands that step some slots, each by itself."""
        return self.numbered({slot: (Command.STEP_ONE, self._batch.actions.objects(slot, 1)) for slot in slots})

    def numbered(self, wanted: dict[int, tuple[Command, Any]]) -> dict[int, Pending]:
        """Return commands, by slot, that have not been given yet."""
        now, first = time.monotonic(), self._number + 1
        self._number += len(wanted)
        return {slot: Pending(first + k, kind, body, now) for k, (slot, (kind, body)) in enumerate(wanted.items())}

    def give(self, commands: dict[int, Pending], step_slots: Collection[int] | None = None) -> None:
        """Note the commands and send them; with `step_slots` as a step of these. The same ones once more: no change."""
        self._unsent = commands, step_slots
        self._note_commands(commands, step_slots)
        failed: Exception | None = None
        for slot, pending in commands.items():
            worker = self.owner[slot]
            try:
                self._workers.transports[worker].put(pending.number, tag(pending.kind, slot), pending.body)
            except ConnectionError:
                failed = self._broken(worker) or failed
        self._unsent = None
        if failed is not None:
            raise failed

    def ask(
        self, messages: dict[int, tuple[Command, Any]], slots: Mapping[int, Sequence[int]] | None = None
    ) -> Request:
        """Send a request to each worker; return it. Replies to the request before it are not awaited any more."""
        self._send_unsent()
        self._number += 1
        concerned = {worker: self.shards[worker] for worker in messages} if slots is None else slots
        self._unsent = _NOTHING_MORE
        self.request = request = Request(self._number, messages, concerned, {}, time.monotonic())
        self._send_unsent()
        return request

    def _note_commands(self, commands: dict[int, Pending], step_slots: Collection[int] | None) -> None:
        overtaken = self.orphaned & commands.keys()
        if overtaken:
            self.strike(overtaken)
        for slot, pending in commands.items():
            self.pending[self.owner[slot]][slot] = pending
        if step_slots is not None:
            self.step_slots, self.stepping = step_slots, {}

    def _send_unsent(self) -> None:
        """Note and send what an exception has kept from being noted or sent."""
        if self._unsent is None:
            return
        self._note_commands(*self._unsent)
        failed: Exception | None = None
        for worker, transport in enumerate(self._workers.transports):
            try:
                self._send_again(worker, transport)
            except ConnectionError:
                failed = self._broken(worker) or failed
        self._unsent = None
        if failed is not None:
            raise failed

    def _send_again(self, worker: int, transport: Transport) -> None:
        """Send a worker every unanswered command that may not have been sent by this transport."""
        unanswered: list[Message] = [(p.number, tag(p.kind, slot), p.body) for slot, p in self.pending[worker].items()]
        if self.stepping and worker in self.stepping:
            unanswered.append((self.lock_step.number, _STEP, self._action_objects(worker) if self._objects else None))
        request = self.request
        if request is not None and worker in request.messages and worker not in request.replies:
            unanswered.append((request.number, *request.messages[worker]))
        for number, kind, body in sorted(unanswered, key=lambda message: message[0]):
            if number > transport.sent:
                transport.put(number, kind, body)

    def _action_objects(self, worker: int) -> Any:
        shard = self.shards[worker]
        return self._batch.actions.objects(shard.start, len(shard))

    # Waiting for answers

    def finish_step(self, deadline: float | None, timeout: float | None) -> None:
        """Wait until every worker has stepped its shard."""
        if self._unsent is not None:
            self._send_unsent()
        stepping, transports, step = self.stepping, self._workers.transports, self.lock_step
        limited = deadline is not None or self._timed
        while stepping:
            worker = next(reversed(stepping))  # see `Workers.arrange`
            transport = transports[worker]
            limit = self._limit(deadline) if limited else None
            if limit is None or transport.inline:  # one that works only while it is waited for gets the time it takes
                message = transport.get(LIVENESS)
            else:
                message = transport.get(min(LIVENESS, max(limit - time.monotonic(), 0.0)))
            if message is not None:
                number, kind, body = message
                if body is None and kind in _BARE and number == step.number and not self._timed:  # nearly always
                    if kind != _PLAIN:
                        step.plain = False
                    stepping.pop(worker, None)
                else:
                    self._note(worker, message)
                transport.take()
                continue
            # This one takes its time: others may have answered, or died, meanwhile.
            if not self._collect_from(list(stepping)):
                self._look_at(list(stepping))
            if limit is not None and stepping and time.monotonic() >= limit:
                self._time_out([s for w in sorted(stepping) for s in self.shards[w]], deadline, timeout)

    def gather(
        self,
        enough: Callable[[], bool],
        waited_for: Collection[int],
        deadline: float | None = None,
        timeout: float | None = None,
        next_workers: Callable[[], Sequence[int]] | None = None,
    ) -> None:
        """Note answers as they come until `enough`; StepTimeout names those of `waited_for` that are missing.

        `next_workers` returns the workers to wait for next, if not all that have something to do.
        """
        self.collect()
        self._look_around()
        if deadline is not None and time.monotonic() >= deadline and not enough():  # a poll
            self._workers.work(self._busy_workers())
            self.collect()
        while not enough():
            limit = self._limit(deadline)
            if limit is not None and time.monotonic() >= limit:
                missing = [slot for slot in waited_for if slot in self.pending[self.owner[slot]]]
                self._time_out(missing, deadline, timeout)
                continue
            workers = self._busy_workers() if next_workers is None else next_workers()
            self._workers.wait_any(workers, LIVENESS if limit is None else limit - time.monotonic())
            if not self._collect_from(workers):
                self._look_at(self._busy_workers())  # the others are seen to, too

    def await_rows(self, slots: Collection[int], deadline: float | None = None, timeout: float | None = None) -> None:
        """Wait until all of these slots have a row ready."""
        place = {worker: k for k, worker in enumerate(self._workers.order)}
        owner, ready = self.owner, self.ready
        waiting = sorted(slots, key=lambda slot: place[owner[slot]])

        def enough() -> bool:
            while waiting and waiting[-1] in ready:
                waiting.pop()
            return not waiting

        # One worker after another, as in `finish_step`: a wait for any of them is woken for each row.
        self.gather(enough, set(slots), deadline, timeout, lambda: [owner[waiting[-1]]])

    def await_replies(self, request: Request, deadline: float | None, timeout: float | None) -> None:
        """Wait until every worker has replied to the request."""
        missing: list[int] = []

        def enough() -> bool:
            missing[:] = [worker for worker in request.messages if worker not in request.replies]
            return not missing

        self.collect()
        while not enough():
            limit = self._limit(deadline)
            if limit is not None and time.monotonic() >= limit and not self._workers.transports[missing[0]].inline:
                late = [slot for worker in missing for slot in request.slots[worker]]
                self._time_out(late, deadline, timeout, "call")
                continue
            self._workers.wait_any(missing[:1], LIVENESS if limit is None else limit - time.monotonic())
            if not self._collect_from(missing[:1]):
                self._look_at(missing)
                if deadline is not None and time.monotonic() >= deadline and not enough():
                    self._time_out([s for w in missing for s in request.slots[w]], deadline, timeout, "call")

    def collect(self) -> None:
        """Note every answer that is there, without waiting."""
        self._send_unsent()
        self._collect_from(self._busy_workers())

    def _collect_from(self, workers: Iterable[int]) -> bool:
        """Note every answer of these workers that is there; return whether there was one."""
        self._workers.reset_wake()
        found = False
        for worker in workers:
            while (message := (transport := self._workers.transports[worker]).get(0)) is not None:
                self._note(worker, message)
                transport.take()
                found = True
        return found

    def _look_at(self, workers: Sequence[int]) -> None:
        """See whether these workers live. What one that does not has said before comes first."""
        for worker in workers:
            if self._workers.transports[worker].exit_status()[0] and not self._collect_from([worker]):
                self._died(worker)

    def _look_around(self) -> None:
        """Look now and then for workers that are dead or late: where others always have a row, no wait comes to it."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + LIVENESS
        self._look_at(self._busy_workers())
        if self._timeouts.late(self._unanswered()):
            self._time_out([slot for pending in self.pending for slot in pending], None, None)

    def _busy_workers(self) -> list[int]:
        stepping = self.stepping or ()
        request = self.request
        asked: Collection[int] = ()
        if request is not None and len(request.replies) < len(request.messages):
            asked = request.messages.keys() - request.replies.keys()
        return [w for w, pending in enumerate(self.pending) if pending or w in stepping or w in asked]

    # Noting answers

    def _note(self, worker: int, message: Message) -> None:
        """Note an answer. Nothing is noted twice if it comes again."""
        number, kind, body = message
        self._timeouts.hear(worker)
        kind &= 0xFF
        if kind == _ROW:
            self._note_row(worker, slot_of(message[1]), number, body)
        elif kind in _BARE or kind == _INFO_ROWS:
            if self.stepping and worker in self.stepping and number == self.lock_step.number:
                self._note_rows(worker, kind, body)
        elif kind == Answer.REPLY:
            if self.request is not None and number == self.request.number:
                self.request.replies[worker] = body
        elif kind == Answer.STARTED:
            self._send_again(worker, body)
            self.recovery.started(worker, body)
        elif kind == Answer.NOT_STARTED:
            error = self.recovery.failed(worker, body)
            if error is not None:
                self._workers.transports[worker].take()
                raise self._lose(worker, error)
        elif kind != Answer.PROGRESS:
            raise VecEnvError(f"worker {worker} gave an answer of kind {kind} out of turn")

    def _note_row(self, worker: int, slot: int, number: int, body: Any) -> None:
        pending = self.pending[worker].get(slot)
        if pending is None or pending.number != number:
            return
        rows = self._readable(worker, [slot], body)
        self._batch.observations.take_objects(slot, 1, rows.objects)
        self.ready[slot] = rows.extras[0] if rows.extras else None
        self.pending[worker].pop(slot, None)

    def _note_rows(self, worker: int, kind: int, body: Any) -> None:
        shard = self.shards[worker]
        if kind == _INFO_ROWS:
            self.lock_step.note_infos(worker, body)
        elif body is None:
            self.lock_step.note(worker, None, plain=kind == _PLAIN)
        else:
            rows = self._readable(worker, shard, body)
            self._batch.observations.take_objects(shard.start, len(shard), rows.objects)
            self.lock_step.note(worker, rows, plain=False)
        if self.recovery.lost:  # the step has failed
            self._single_out([worker])
        if self.stepping is not None:
            self.stepping.pop(worker, None)
            if self.recovery.lost and not self.stepping:
                self.stepping = None

    def _readable(self, worker: int, slots: Sequence[int], body: Any) -> RowsBody:
        """Return the body of an answer about rows. The worker is told of envs whose part could not be unpickled."""
        if body is None:
            return RowsBody([])
        failures: dict[int, RemoteFailure] = {}
        if type(body) is RemoteFailure:
            for slot in slots:
                failures[slot] = body._replace(slot=slot, summary=f"env {slot}: {body.summary}")
            body = RowsBody([RowExtras(slot, {}, None, why) for slot, why in failures.items()])
        elif body.unread:
            failures = {extra.slot: extra.failure for extra in body.extras if extra.slot in body.unread}
        if failures:
            self._batch.flags[list(failures)] = 0
            self._number += 1
            with suppress(ConnectionError):  # the next wait notices
                self._workers.transports[worker].put(self._number, Command.FAIL, failures)
        rows: RowsBody = body
        return rows

    def _single_out(self, workers: Iterable[int]) -> None:
        """Turn the rows that these workers gave for a step of all envs into single ones, for recv."""
        for worker in workers:
            found = self.lock_step.by_slot(worker)
            self.ready.update((slot, found.get(slot)) for slot in self.shards[worker])
            self.orphaned.update(self.shards[worker])

    # Handing rows out

    def strike(self, slots: Collection[int]) -> None:
        """Forget ready rows: they have been handed out, or are overtaken by a reset."""
        for slot in slots:
            self.pending[self.owner[slot]].pop(slot, None)
            self.resetting.pop(slot, None)
            self.orphaned.discard(slot)
        self.ready = {slot: extra for slot, extra in self.ready.items() if slot not in slots}

    def end_step(self) -> None:
        """Forget the step of all envs: its rows have been handed out."""
        self.step_slots = ()
        self.stepping = None

    def first_rows_of(self, slots: Iterable[int]) -> Resets:
        """Return, in async mode, the rows that slots of ended episodes repeat, and the commands for their first rows.

        `begin_resets` takes both once the rows at hand have been copied: only then may a worker write them again.
        """
        ended = [slot for slot in slots if self._batch.flags[slot] & DONE]
        rows = {slot: self._batch.observations.parts(slot) for slot in ended}
        return rows, self.numbered(dict.fromkeys(ended, (Command.AWAIT_RESET, None)))

    def begin_resets(self, rows: dict[int, list[Any]], commands: dict[int, Pending]) -> None:
        """Ask for the first rows of episodes; the slots repeat `rows` until then."""
        if commands:
            self.resetting.update(rows)
            self.give(commands)

    # Time-outs and deaths

    def _unanswered(self) -> list[tuple[int, float]]:
        """Return the worker of each unanswered command, and when it was given."""
        found = [*(self.stepping or {}).items()]
        found += [(worker, p.since) for worker, pending in enumerate(self.pending) for p in pending.values()]
        if self.request is not None:
            found += [(w, self.request.since) for w in self.request.messages if w not in self.request.replies]
        return found

    def _limit(self, deadline: float | None) -> float | None:
        if not self._timed:
            return deadline
        return self._timeouts.limit(deadline, self._unanswered(), replacing=self.recovery.left > 0)

    def _time_out(
        self, slots: Sequence[int], deadline: float | None, timeout: float | None, what: str = "step"
    ) -> None:
        """Raise StepTimeout; or, if a worker is over `step_timeout` and restarts are left, have it replaced."""
        if deadline is not None and time.monotonic() >= deadline:
            raise StepTimeout(slots, timeout or 0.0, what)
        self._collect_from(self._busy_workers())  # what has come in time
        unanswered = self._unanswered()
        hung = self._timeouts.late(unanswered)
        if hung and not self.recovery.left:
            self._timeouts.restart({worker for worker, _ in unanswered})
            late = [slot for slot in slots if self.owner[slot] in hung] or slots
            raise StepTimeout(late, self._timeouts.step_timeout or 0.0, what)
        for worker in hung:
            self.recovery.late(worker)
            self._replaced(worker)

    def _broken(self, worker: int) -> Exception | None:
        """Note that a worker is gone to which a command was to be sent; return the error that says so, if it is one."""
        try:
            self._died(worker)
        except VecEnvError as exc:
            return exc
        return None

    def _died(self, worker: int) -> None:
        """Have a dead worker replaced; raise, its commands forgotten, if it is not to be."""
        error = self.recovery.died(worker)
        if error is not None:
            raise self._lose(worker, error)
        self._replaced(worker)

    def _replaced(self, worker: int) -> None:
        """Raise if what is waited for cannot come any more, since its worker is being replaced: replies."""
        request = self.request
        if (
            request is not None
            and worker in request.messages
            and worker not in request.replies
            and (request.messages[worker][0] == Command.CALL)
        ):
            self.request = None
            raise WorkerDied(worker, self.shards[worker], *self.recovery.last, "replaced")

    def _lose(self, worker: int, error: Exception) -> Exception:
        """Forget what is asked of a worker, for good; return the error.

        The rows of other workers that were under way in the same step are not lost: recv gives them, until the next
        command for their slots.
        """
        if self.stepping is not None and worker in self.stepping:
            if not self.recovery.lost:  # else it has been done
                self._single_out(other for other in range(len(self.shards)) if other not in self.stepping)
            self.stepping.pop(worker)
            if not self.stepping:
                self.stepping = None
        self.step_slots = ()
        self.pending[worker] = {}
        for slot in self.shards[worker]:
            self.resetting.pop(slot, None)
        if self.request is not None and worker in self.request.messages:
            self.request = None
        self.recovery.lost[worker] = error
        return copied(error)

    # Checks

    @property
    def in_step(self) -> bool:
        """Whether a step of all envs has begun whose rows have not been handed out."""
        self._send_unsent()
        return self.stepping is not None

    def busy(self) -> bool:
        """Return whether anything is under way, or a worker is lost."""
        return bool(
            self.ready
            or self.stepping is not None
            or self._unsent is not None
            or self.recovery.lost
            or any(self.pending)
        )

    def check_free(self, what: str, slots: Sequence[int], *, autoresets: bool = True) -> None:
        """Raise unless these slots can take a command. With `autoresets` False, one under an async autoreset can."""
        self._send_unsent()
        lost = self.recovery.lost
        if self.stepping is not None and not lost:
            raise AlreadySteppingError(f"{what} after a step_async: step_wait first")
        if lost:
            for slot in slots:
                if self.owner[slot] in lost:
                    raise copied(lost[self.owner[slot]])
            owners = {self.owner[slot] for slot in slots}
            self.gather(lambda: not owners & (self.stepping or {}).keys(), slots)
        free = self.orphaned if autoresets else self.orphaned | self.resetting.keys()
        busy = [s for s in slots if (s in self.ready or s in self.pending[self.owner[s]]) and s not in free]
        if busy:
            raise AlreadySteppingError(f"{what} while envs {describe_indices(busy)} have a command: recv first")

    def settle(self, slots: Iterable[int], *, drop: bool) -> None:
        """Wait out the async autoresets of some slots; with `drop` forget their first rows, being overtaken."""
        waiting = self.resetting.keys() & set(slots)
        if waiting:
            self.await_rows(waiting)
            if drop:
                self.strike(waiting)

    @property
    def due(self) -> int:
        """How many rows are still to be handed out."""
        self._send_unsent()
        stepping = sum(len(self.shards[worker]) for worker in self.stepping or ())
        return stepping + len(self.ready.keys() | {slot for pending in self.pending for slot in pending})


def copied(error: Exception) -> Exception:
    """Return an equal error, which has not been raised before: each raise adds to an error's traceback."""
    again = copy.copy(error)
    again.__cause__ = error.__cause__
    return again
