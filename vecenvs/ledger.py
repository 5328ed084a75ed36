"""Which commands are unanswered and which rows have come: the accounts between a pool and its workers.

A slot has at most one unanswered command: in `pending` if it was given to the slot alone, or by its worker's entry in
`stepping` if the whole shard is being stepped. Rows that have come and are not handed out yet are in `ready`; their
columns do not change before the slot's next command.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from vecenvs.board import DONE, Board
from vecenvs.crew import LIVENESS, Crew
from vecenvs.errors import AlreadySteppingError, StepTimeout, VecEnvError, WorkerDied, describe_indices
from vecenvs.lock_step import LockStep
from vecenvs.patience import NEVER, Patience, Pending
from vecenvs.protocol import Answer, Command, Extra, Failure, RowBody, slot_of, tag
from vecenvs.transport import Message

# Plain ints compare faster.
_ROW, _ROWS, _PLAIN, _STEP = int(Answer.ROW), int(Answer.ROWS), int(Answer.PLAIN_ROWS), int(Command.STEP)
_INFO_ROWS = int(Answer.INFO_ROWS)
_BARE = frozenset({_ROWS, _PLAIN})
_ARRANGE = 256  # steps between looks at which worker shares the caller's core

Briefing = Callable[[int, Collection[int], int], list[tuple[Command, Any]]]


class Ledger:
    """Gives commands to the crew and takes their answers.

    A worker that dies, or hangs for `step_timeout` seconds, is replaced while `restarts` last: the new one gets what
    `Episodes.briefing` says, then the unanswered commands again. After that a death is an error: see `bury`.
    """

    def __init__(self, crew: Crew, board: Board, step_timeout: float | None, restarts: int, briefing: Briefing) -> None:
        self.pending: dict[int, Pending] = {}
        self.stepping: dict[int, float] = {}  # worker -> when its shard's step began
        self.ready: dict[int, Extra | None] = {}
        self.lock_step = LockStep(crew.shards)
        self.resting: dict[int, list[Any]] = {}  # slots under an async autoreset -> the row that they repeat
        self.leftover: set[int] = set()  # slots whose ready row is of a lock-step that a death has ended
        self.dead: dict[int, Exception] = {}  # why each is
        self._due = [0] * len(crew.shards)  # how many of `pending` each worker has
        self.owner = [worker for worker, shard in enumerate(crew.shards) for _ in shard]
        self.restarts = 0
        self._crew = crew
        self._board = board
        self._objects = board.actions.layout.has_objects
        self._patience = Patience(step_timeout, self.pending, self.stepping, self.owner, crew.transports)
        self._timed = step_timeout is not None
        self._restarts_left = restarts
        self._briefing = weakref.WeakMethod(briefing)  # a VecEnv that nobody uses any more goes at once
        self._next_look = 0.0
        self._request = 0  # the number of the last one: nobody waits for replies to others
        self._arrived: deque[tuple[int, Message]] = deque()  # what has come and is not noted yet
        self._until_arranged = _ARRANGE
        self._untold: deque[int] = deque()  # of a lock-step: workers that have not been told to step
        self._starting: set[int] = set()  # workers that replace others and have not said STARTED

    # Commands

    def step_all(self) -> None:
        """Begin a step of every env, one command per worker."""
        now = time.monotonic() if self._timed else 0.0  # nothing else looks at it
        lock_step = self.lock_step
        lock_step.plain = True
        if lock_step.infos:
            lock_step.infos = {}
        if lock_step.extras:  # a Ctrl-C came before they were handed out
            lock_step.extras = []
        self._until_arranged -= 1
        if not self._until_arranged:
            self._until_arranged = _ARRANGE
            self._crew.arrange()
        order = self._crew.order
        # A Ctrl-C may come between any two instructions: who is noted and not told yet, `finish_step` tells.
        self._untold = deque(order)
        self.stepping.update(dict.fromkeys(order, now))
        if self._starting:
            self.stepping.update(dict.fromkeys(self._starting, NEVER))
        self._tell()

    def _tell(self) -> None:
        """Send its command to every worker whose step has been noted."""
        transports, untold = self._crew.transports, self._untold
        failed: Exception | None = None
        while untold:
            worker = untold[0]
            del untold[0]  # no call, at whose end the exception of a signal's handler might come
            try:
                if self._objects:
                    self._put_step(worker)
                    continue
                try:
                    transports[worker].put(_STEP)
                except ConnectionError:
                    died = self._crew.died(worker)
                    if not isinstance(died, WorkerDied):
                        raise died from None
                    self.bury(died)
            except Exception as exc:  # it is dead for good: the others are told all the same
                failed = failed or exc
        if failed is not None:
            raise failed

    def command(self, slot: int, kind: Command, body: Any = None) -> None:
        """Give one slot a command."""
        since = NEVER if self.owner[slot] in self._starting else time.monotonic()
        self._command(slot, Pending(since, kind, body))

    def step_slots(self, slots: Iterable[int]) -> None:
        """Step some slots, each by itself."""
        self.lock_step.infos = {}  # those of a step before this
        for slot in slots:
            self.command(slot, Command.STEP_ONE, self._board.actions.objects(slot, 1))

    def request(self, requests: dict[int, tuple[Command, Any]]) -> None:
        """Send one request to each worker. From then on nobody waits for replies to those before it."""
        self._request += 1
        try:
            for worker, (command, body) in requests.items():
                self._crew.put(worker, tag(command, self._request), body)
        except WorkerDied as died:
            self.bury(died)
            raise died.but("replaced") from None

    def reply(self, worker: int, deadline: float | None = None) -> Any:
        """Wait for a worker's REPLY to the last request, taking rows that come before it; None after the deadline.

        If it cannot come, that is raised.
        """
        awaited = tag(Answer.REPLY, self._request)
        try:
            while True:
                message = self._crew.get(worker, deadline)
                if message is None or message[0] == awaited:
                    return message and message[1]
                self._arrived.append((worker, message))
                self._take_arrived()
        except WorkerDied as died:
            self.bury(died)
            raise died.but("replaced") from None

    def _put_step(self, worker: int) -> None:
        shard = self._crew.shards[worker]
        self._put(worker, _STEP, self._board.actions.objects(shard.start, len(shard)))

    def _command(self, slot: int, command: Pending) -> None:
        if slot in self.leftover:  # overtaken
            self.drop(slot)
        owner = self.owner[slot]
        transport = self._crew.transports[owner]
        sent = transport.sent()
        if slot not in self.pending:
            self._due[owner] += 1
        self.pending[slot] = command
        try:
            self._put(owner, tag(command.kind, slot), command.body)
        except BaseException:
            unsent = sent is not None and transport.sent() == sent
            if unsent and self.pending.get(slot) is command and transport is self._crew.transports[owner]:
                del self.pending[slot]  # a Ctrl-C: nobody has been told
                self._due[owner] -= 1
            raise

    def _put(self, worker: int, tag: int, body: object) -> None:
        """Send a command that is already noted."""
        try:
            self._crew.put(worker, tag, body)
        except WorkerDied as died:
            self.bury(died)

    # Answers

    def finish_step(self, deadline: float | None, timeout: float | None) -> None:
        """Wait until every worker has stepped its shard."""
        stepping, transports = self.stepping, self._crew.transports
        limited = deadline is not None or self._timed
        if self._untold:
            self._tell()
        while stepping:
            worker = next(reversed(stepping))  # see `Crew.arrange`
            transport = transports[worker]
            limit = self._limit(deadline) if limited else None
            if limit is None or transport.inline:  # who works only while being waited for gets the time it takes
                message = transport.get(LIVENESS)
            else:
                message = transport.get(min(LIVENESS, max(limit - time.monotonic(), 0.0)))
            if message is not None:
                kind, body = message
                if body is None and kind in _BARE:  # nearly always
                    stepping.pop(worker, None)
                    if kind != _PLAIN:
                        self.lock_step.plain = False
                else:
                    self._arrived.append((worker, message))
                    self._take_arrived()
                continue
            try:  # this one is late, and another one may have died meanwhile
                self._arrived.extend(self._crew.sweep(list(stepping)) or self._crew.look_after(list(stepping)))
                self._take_arrived()
            except WorkerDied as died:
                self.bury(died)
            if limit is not None and stepping and time.monotonic() >= limit:
                self._time_out([s for w in sorted(stepping) for s in self._crew.shards[w]], deadline, timeout)

    def gather(
        self,
        enough: Callable[[], bool],
        waited_for: Collection[int],
        deadline: float | None = None,
        timeout: float | None = None,
        whom: Callable[[], Sequence[int]] | None = None,
    ) -> None:
        """Take rows as they come until `enough`; StepTimeout names those of `waited_for` that are missing.

        `whom` names the workers to wait for next, if not all that have something to do.
        """
        self.sweep()
        self._look_around()
        if deadline is not None and time.monotonic() >= deadline and not enough():  # who polls
            self._arrived.extend(self._crew.nudge(self._busy_workers()))
            self._take_arrived()
        while not enough():
            limit = self._limit(deadline)
            if limit is not None and time.monotonic() >= limit:
                self._time_out([slot for slot in waited_for if slot in self.pending], deadline, timeout)
                continue
            try:
                seconds = LIVENESS if limit is None else limit - time.monotonic()
                workers = self._busy_workers() if whom is None else whom()
                found = self._crew.rest(workers, seconds)
                if not found and whom is not None:  # the others are seen to, too
                    found = self._crew.look_after(self._busy_workers())
                self._arrived.extend(found)
                self._take_arrived()
            except WorkerDied as died:
                self.bury(died)

    def _look_around(self) -> None:
        """See now and then to those who are dead or late: where others always have something, nobody rests."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + LIVENESS
        try:
            self._arrived.extend(self._crew.look_after(self._busy_workers()))
            self._take_arrived()
        except WorkerDied as died:
            self.bury(died)
        if self._patience.late():
            self._time_out(list(self.pending), None, None)

    def await_rows(self, slots: Collection[int], deadline: float | None = None, timeout: float | None = None) -> None:
        """Wait until all of these slots have a row ready."""
        place = {worker: k for k, worker in enumerate(self._crew.order)}
        owner, ready = self.owner, self.ready
        waiting = sorted(slots, key=lambda slot: place[owner[slot]])

        def enough() -> bool:
            while waiting and waiting[-1] in ready:
                waiting.pop()
            return not waiting

        # One worker after another, as in `finish_step`: who waits for any of them is woken for each row.
        self.gather(enough, set(slots), deadline, timeout, lambda: [owner[waiting[-1]]])

    def sweep(self) -> None:
        """Take every row that is there, without waiting."""
        self._arrived.extend(self._crew.sweep(self._busy_workers()))
        self._take_arrived()

    def drop(self, slot: int) -> None:
        """Strike a ready row: it is being handed out, or overtaken by a reset."""
        del self.ready[slot]
        self.resting.pop(slot, None)
        self.leftover.discard(slot)

    def _busy_workers(self) -> list[int]:
        return [worker for worker, due in enumerate(self._due) if due or worker in self.stepping]

    def _take_arrived(self) -> None:
        """Note what has come, and strike who did not start, which raises.

        A message in the midst of which an exception of a signal's handler (Ctrl-C) comes is noted again next time.
        """
        arrived, failed = self._arrived, None
        while arrived:
            worker, message = arrived[0]
            if message[0] == Answer.NOT_STARTED:
                if failed is not None:
                    break
                failed = worker, message[1]
            else:
                self._take(worker, message)
            del arrived[0]
        if failed is not None:
            self._strike(*failed)

    def _take(self, worker: int, message: Message) -> None:
        """Note a message. Nothing is noted twice if it is taken again."""
        kind, body = message[0] & 0xFF, message[1]
        if self._timed:
            self._patience.hear(worker)
        if kind == Answer.STARTED:
            self._starting.discard(worker)
            self._patience.begin(worker, self._crew.shards[worker])
            return
        if kind == Answer.REPLY:  # to a request that nobody waits for any more
            return
        if kind == _INFO_ROWS:
            self.lock_step.note_infos(worker, body)
            self._stepped(worker)
            return
        if type(body) is Failure:
            slots = [slot_of(message[0])] if kind == _ROW else list(self._crew.shards[worker])
            body = self._lose_rows(worker, slots, body)
        body = body or RowBody([])
        if kind == _ROW:
            slot = slot_of(message[0])
            self._board.observations.take_objects(slot, 1, body.objects)
            del self.pending[slot]
            self._due[worker] -= 1
            self.ready[slot] = body.extras[0] if body.extras else None
        elif kind in (_ROWS, _PLAIN):
            shard = self._crew.shards[worker]
            self._board.observations.take_objects(shard.start, len(shard), body.objects)
            if worker in self.stepping:
                self.lock_step.note(worker, body, plain=kind == _PLAIN)
                del self.stepping[worker]
            self._stepped(worker)
        else:
            raise VecEnvError(f"worker {worker} gave an answer of kind {kind} out of turn")

    def _lose_rows(self, worker: int, slots: list[int], why: Failure) -> RowBody:
        """Take rows that have come without what belongs to them as failures of their envs, and tell the worker."""
        self._board.flags[slots] = 0
        with suppress(WorkerDied):  # whoever waits for it next is told
            self._crew.put(worker, Command.FAIL, (slots, why))
        return RowBody([Extra(slot, {}, None, why._replace(slot=slot)) for slot in slots])

    def _stepped(self, worker: int) -> None:
        """Note that a worker has stepped its shard."""
        self.stepping.pop(worker, None)  # noted already, if a Ctrl-C came in between
        if self.dead:  # the step has failed
            self._single_out([worker])

    def _single_out(self, workers: Iterable[int]) -> None:
        """Turn the rows that these workers gave for a lock-step into single ones, for recv."""
        found = self.lock_step.by_slot(self.lock_step.take_extras())
        for worker in workers:
            self.ready.update((slot, found.get(slot)) for slot in self._crew.shards[worker])
            self.leftover.update(self._crew.shards[worker])
            self.lock_step.infos.pop(worker, None)

    # Time-outs and deaths

    def _limit(self, deadline: float | None) -> float | None:
        return self._patience.limit(deadline, replacing=self._restarts_left > 0)

    def _time_out(self, slots: Sequence[int], deadline: float | None, timeout: float | None) -> None:
        """Raise StepTimeout; or, if an env is over `step_timeout` and restarts are left, replace its worker."""
        if deadline is not None and time.monotonic() >= deadline:
            raise StepTimeout(slots, timeout or 0.0)
        hung = self._patience.late()
        if hung and not self._restarts_left:
            self._patience.rearm()
            late = [slot for slot in slots if self.owner[slot] in hung] or slots
            raise StepTimeout(late, self._patience.step_timeout or 0.0)
        for worker in hung:
            self._restart(worker)

    def bury(self, died: WorkerDied) -> None:
        """Replace a dead worker; if none is to be, strike its commands and raise.

        The rows of other workers that were under way in the same lock-step are not lost: recv gives them, until the
        next command for their slots.
        """
        if self._restarts_left:
            self._restart(died.worker)
            return
        self._strike(died.worker, died.but("spent") if self.restarts else died)

    def _strike(self, worker: int, why: Exception) -> NoReturn:
        """Strike what is asked of a worker, for good, and raise what says why."""
        self.dead[worker] = why
        self._starting.discard(worker)
        if worker in self.stepping:
            self._single_out(other for other in range(len(self._crew.shards)) if other not in self.stepping)
            del self.stepping[worker]
        self._due[worker] = 0
        for slot in self._crew.shards[worker]:
            self.pending.pop(slot, None)
            self.resting.pop(slot, None)
        raise why

    def _restart(self, worker: int) -> None:
        self._restarts_left -= 1
        self.restarts += 1
        for late in [each for each in self._arrived if each[0] == worker]:
            self._arrived.remove(late)
        try:
            self._crew.replace(worker, self._board, self._brief(worker))
        except Exception as exc:  # no process, no rank, no room
            self._strike(worker, exc)
        self.lock_step.renew(worker)
        # What is under way is asked for again. Before STARTED it has not begun, and so cannot be late.
        self._starting.add(worker)
        if worker in self.stepping:
            self.stepping[worker] = NEVER
            self._put_step(worker)
        for slot in self._crew.shards[worker]:
            pending = self.pending.get(slot)
            if pending is not None and pending.kind == Command.AWAIT_RESET:  # the reset it waited for is gone
                pending = Pending(NEVER, Command.RESET, {slot: (None, None)})
            if pending is not None:
                self._command(slot, pending._replace(since=NEVER))

    def _brief(self, worker: int) -> Sequence[tuple[Command, Any]]:
        briefing = self._briefing()
        if briefing is None:
            raise VecEnvError("a worker for a VecEnv that is gone")
        ready = {slot for slot, extra in self.ready.items() if extra is None or extra.failure is None}
        return briefing(worker, ready, self.restarts)

    # Checks

    def busy(self) -> bool:
        """Whether something is under way, or somebody has died."""
        return bool(self.pending or self.ready or self.stepping or self.dead)

    def check_free(self, what: str, slots: Sequence[int], *, autoresets: bool = True) -> None:
        """Raise unless these slots can take a command. With `autoresets` False, one under an async autoreset can."""
        if self.stepping and not self.dead:
            raise AlreadySteppingError(f"{what} after a step_async: step_wait first")
        if self.dead:
            for slot in slots:
                if self.owner[slot] in self.dead:
                    raise self.dead[self.owner[slot]]
            owners = {self.owner[slot] for slot in slots}
            self.gather(lambda: not owners & self.stepping.keys(), slots)
        if self.pending or self.ready:
            free = self.leftover if autoresets else self.leftover | self.resting.keys()
            busy = [slot for slot in slots if (slot in self.pending or slot in self.ready) and slot not in free]
            if busy:
                raise AlreadySteppingError(f"{what} while envs {describe_indices(busy)} have a command: recv first")

    def settle(self, slots: Iterable[int], *, drop: bool) -> None:
        """Wait out the async autoresets of some slots; with `drop` strike their first rows, being overtaken."""
        waiting = self.resting.keys() & set(slots)
        if waiting:
            self.await_rows(waiting)
            if drop:
                for slot in waiting:
                    self.drop(slot)

    @property
    def due(self) -> int:
        """How many rows are still to be handed out."""
        return len(self.pending) + len(self.ready) + sum(len(self._crew.shards[worker]) for worker in self.stepping)

    def end_episodes(self, slots: Iterable[int]) -> None:
        """Of rows just copied, in async mode: ask for the first rows of the episodes that follow the ended ones.

        Only now may a worker write these rows again. Their last contents are kept, to be repeated.
        """
        for slot in slots:
            if self._board.flags[slot] & DONE:
                self.resting[slot] = self._board.observations.parts(slot)
                self.command(slot, Command.AWAIT_RESET)
