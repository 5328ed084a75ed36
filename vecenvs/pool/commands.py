"""Number, record and send commands, and send them again to the worker that replaces another.

The handler of a signal (Ctrl-C) may raise at any bytecode. So commands are numbered and recorded, in one assignment,
before any is sent; the next call sends what an exception has kept from being sent (`send_unsent`). Workers ignore
numbers that they have had. An answer stays with its transport until it is recorded; recorded again, it changes
nothing, and an answer whose number is not expected is ignored.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from vecenvs.batch.batch_columns import BatchColumns
from vecenvs.errors import VecEnvError
from vecenvs.pool.recorder import Recorder
from vecenvs.pool.recovery import Recovery, copied
from vecenvs.pool.subsets import WorkerSlots, bits_of, divided, slots_in
from vecenvs.pool.unanswered import Pending, Request, Unanswered
from vecenvs.pool.workers import Workers
from vecenvs.transport import Message, Transport
from vecenvs.transport.protocol import Command, LastStep, Slots, address, rows_of
from vecenvs.transport.reset_arguments import ResetArguments
from vecenvs.worker.process import HeldSignals

_STEP = int(Command.STEP)  # a plain int compares faster
_REORDER = 256  # steps between checks of which worker shares the caller's core


# In async mode: by slot, the rows that are repeated while envs are being reset, and the commands for the first rows.
Resets = tuple[dict[int, list[Any]], list[Pending]]
NO_RESETS: Resets = ({}, [])

_RECORDED: tuple[list[Pending], None] = ([], None)  # see `Commands.unsent`


class Commands(Unanswered):
    """The commands of one VecEnv and the rows that answer them.

    `timed` tells whether there is a time limit: then the start time of each command is recorded.
    """

    def __init__(self, workers: Workers, batch: BatchColumns, recovery: Recovery, *, timed: bool) -> None:
        super().__init__(workers.shards, batch)
        small = "B" if len(self.shards) <= 256 else "i"  # bytes where these can number the workers
        self.owner = array(small, (worker for worker, shard in enumerate(self.shards) for _ in shard))
        self.recovery = recovery
        # While commands are being sent: those that may not be recorded yet, with the `step_slots` that they set.
        self.unsent: tuple[list[Pending], int | None] | None = None
        self._workers, self._transports = workers, workers.transports
        self._batch = batch
        self._objects = batch.actions.layout.has_objects
        self._timed = timed
        self._number = 0  # of the last command
        self._sent = [0] * len(self.shards)  # by worker: the number of the last command that has surely been put
        self._until_reordered = _REORDER
        self._handed: dict[int, tuple[int, LastStep]] = {}  # by worker: a command, and what its successor is to return
        self.recorder: Recorder | None = None

    # Sending

    def record_step(self) -> int:
        """Record a step of every env, without sending it; return its number. `send_unsent` would send it."""
        now = time.monotonic() if self._timed else 0.0
        self._number = number = self._number + 1
        answers = self.step_answers
        answers.number, answers.plain = number, True
        if answers.bodies:  # of the step before
            answers.bodies = {}
        self.unsent = _RECORDED
        self.stepping = dict.fromkeys(self._workers.order, now)
        return number

    def is_unsent(self, number: int) -> bool:
        """Tell whether a step is recorded under this number and has not been sent."""
        return self.unsent is _RECORDED and self.stepping is not None and self.step_answers.number == number

    def step_all(self) -> None:
        """Begin a step of every env: send one command to each worker."""
        self._until_reordered -= 1
        if not self._until_reordered:
            self._until_reordered = _REORDER
            self._workers.order_by_cpu()
        number = self.record_step()
        order, transports, objects, sent = self._workers.order, self._transports, self._objects, self._sent
        failed: Exception | None = None
        for worker in order:
            try:
                if objects:
                    transports[worker].put(number, _STEP, self._action_objects(worker))
                else:
                    transports[worker].put(number, _STEP)
                sent[worker] = number
            except ConnectionError:
                failed = self._on_broken(worker) or failed  # the other workers are sent the command all the same
        if self._workers.connections:
            self._workers.flush()
        self.unsent = None
        if failed is not None:
            raise failed

    def step_some(self, slots: int) -> None:
        """Begin a step of the envs that are not being reset."""
        self.send(self.numbered(Command.STEP_SOME, divided(slots_in(slots), self.owner, self.shards)), slots)

    def numbered(
        self, kind: Command, parts: Sequence[WorkerSlots], given: ResetArguments | None = None
    ) -> list[Pending]:
        """Return commands about some slots, one for each worker (see `subsets.divided`): for `send`.

        A command's body has what concerns its slots of what is `given`.
        """
        now, number = time.monotonic() if self._timed else 0.0, self._number
        self._number += len(parts)
        found = [Pending(number + k, part, kind, now) for k, part in enumerate(parts, 1)]
        if given is not None:
            for each in found:
                each.body = given.part(each.slots)
        return found

    def send(self, commands: list[Pending], step_slots: int | None = None) -> None:
        """Record commands and send them; with `step_slots` they are a step of these slots. Repeatable."""
        self.unsent = commands, step_slots
        self._record(commands, step_slots)
        failed: Exception | None = None
        for pending in commands:
            worker = pending.worker
            try:
                self._transports[worker].put(*self._message(pending, pending.slots))
                self._sent[worker] = pending.number
            except ConnectionError:
                failed = self._on_broken(worker) or failed
        self._workers.flush()
        self.unsent = None
        if failed is not None:
            raise failed

    def _message(self, pending: Pending, slots: Slots) -> Message:
        body: Any = pending.body
        if self._objects and pending.kind == Command.STEP_SOME:
            body = self._batch.actions.objects(rows_of(slots))
        return pending.number, *address(pending.kind, slots, body)

    def send_request(
        self,
        messages: dict[int, tuple[Command, Any]],
        slots: Mapping[int, Sequence[int]] | None = None,
        wanted: Slots | None = None,
    ) -> Request:
        """Send a message to each worker that is to reply; return the request. It takes the place of the one before."""
        self.send_unsent()
        self._number += 1
        concerned = {worker: self.shards[worker] for worker in messages} if slots is None else slots
        self.unsent = _RECORDED
        self.request = request = Request(self._number, messages, concerned, {}, time.monotonic(), wanted)
        self.send_unsent()
        return request

    def tell(self, worker: int, kind: Command, body: Any) -> None:
        """Send a worker a command that it does not answer; one that has ended, or is starting, does not get it."""
        self._number += 1
        with suppress(ConnectionError):  # the next wait notices
            self._transports[worker].put(self._number, kind, body)
            self._sent[worker] = self._number

    def send_unsent(self) -> None:
        """Record and send the commands that an exception has kept from being recorded or sent."""
        if self.unsent is None:
            return
        self._record(*self.unsent)
        failed: Exception | None = None
        for worker, transport in enumerate(self._transports):
            try:
                self.send_again(worker, transport)
            except ConnectionError:
                failed = self._on_broken(worker) or failed
        self._workers.flush()
        self.unsent = None
        if failed is not None:
            raise failed

    def send_again(self, worker: int, transport: Transport) -> None:
        """Send a worker every unanswered command that this transport may not have sent."""
        unanswered = [self._message(each, each.slots_left()) for each in self.pending[worker].values()]
        if self.stepping and worker in self.stepping:
            body = self._action_objects(worker) if self._objects else None
            unanswered.append((self.step_answers.number, _STEP, body))
        if self.request is not None and worker in self.without_reply():
            unanswered.append((self.request.number, *self.request.messages[worker]))
        for number, kind, body in sorted(unanswered, key=lambda message: message[0]):
            if number > self._sent[worker]:
                transport.put(number, kind, body)
                self._sent[worker] = number

    def _record(self, commands: list[Pending], step_slots: int | None) -> None:
        for each in commands:
            if self.orphaned & each.bits:
                self.forget_rows(self.orphaned & each.bits)
            self.pending[each.worker][each.number] = each
            self.pending_slots |= each.left
        if step_slots is not None:
            self.step_slots, self.stepping = step_slots, {}

    def _action_objects(self, worker: int) -> Any:
        return self._batch.actions.objects(rows_of(self.shards[worker]))

    @property
    def in_step(self) -> bool:
        """Whether a step of all envs has begun whose rows have not been returned."""
        self.send_unsent()
        return self.stepping is not None

    @property
    def due(self) -> int:
        """How many rows have not been returned yet."""
        self.send_unsent()
        in_step = sum(len(self.shards[worker]) for worker in self.stepping or ())
        return in_step + (self.pending_slots | self.ready_slots()).bit_count()  # a row may be in both

    def first_rows_of(self, ended: Iterable[int]) -> Resets:
        """Return, in async mode, the rows that slots of ended episodes repeat, and the commands for their first rows.

        `begin_resets` takes both once the present rows have been copied: only then may a worker overwrite them.
        """
        rows = {slot: self._batch.observations.parts(slot) for slot in ended}
        return rows, self.numbered(Command.AWAIT_RESET, divided(rows, self.owner, self.shards))

    def begin_resets(self, rows: dict[int, list[Any]], commands: list[Pending]) -> None:
        """Ask for the first rows of episodes; the slots repeat `rows` until these come. Lost workers are left out."""
        if self.recovery.lost:
            commands = [each for each in commands if each.worker not in self.recovery.lost]
        if commands:
            self.resetting.update((slot, rows[slot]) for each in commands for slot in each.slots)
            self.send(commands)

    # Deaths of workers

    def started(self, worker: int, transport: Transport) -> None:
        """Put a new worker in place, which is sent what is unanswered before that."""
        self.without_rows[worker] = time.monotonic()
        self._sent[worker] = 0
        self.reviving = worker, transport
        if self.recorder is not None:
            self.recorder.begin_anew(self.shards[worker])
        try:
            self.recovery.on_restart([*self.shards[worker]])
        except Exception:
            if not transport.exit_status()[0]:  # else it is replaced once more
                raise
        finally:
            self.reviving = None
        try:
            self.send_again(worker, transport)
        except ConnectionError:  # it has died already, or has found a better place
            self.recovery.started(worker, transport)
            self.on_death(worker)
        else:
            self.recovery.started(worker, transport)

    def on_retired(self, worker: int, number: int, last: LastStep) -> None:
        """Have the successor of a worker that has retired answer a command. Repeatable until the last line."""
        self._handed[worker] = number, last
        self.recovery.retired(worker)

    def handed(self, worker: int) -> LastStep | None:
        """Return what a worker is to return for a command of the one before it, unless that is answered."""
        number, last = self._handed.get(worker, (0, None))
        stepping = self.stepping and worker in self.stepping and number == self.step_answers.number
        return last if stepping or number in self.pending[worker] else None

    def on_death(self, worker: int) -> None:
        """Have a dead worker replaced. Raise if no restart is left, or if a call waits for this worker's reply."""
        error = self.recovery.died(worker)
        if error is not None:
            raise self.mark_lost(worker, error)
        self.on_replacement(worker)

    def _on_broken(self, worker: int) -> Exception | None:
        """Handle the death of a worker to which a command was to be sent; return the error, if there is one."""
        try:
            self.on_death(worker)
        except VecEnvError as exc:
            return exc
        return None

    def on_replacement(self, worker: int) -> None:
        """Raise WorkerDied if a call waits for the reply of a worker that is being replaced: calls are not repeated."""
        request = self.request
        if request is not None and request.wanted is not None and worker in self.without_reply():
            self.request = None
            if self.recovery.last is not None:
                raise self.recovery.last.but("replaced")

    def mark_lost(self, worker: int, error: Exception) -> Exception:
        """Forget the commands of a worker that is not replaced; return the error to raise.

        If it was in a step of all envs, that step ends. `recv` returns the rows of the other workers until the next
        command for their slots.
        """
        with HeldSignals():  # its episodes are recorded, and it is known to be lost: both or neither
            if self.recorder is not None:
                asked = bits_of(s for each in self.pending[worker].values() for s in slots_in(each.left))
                asked |= bits_of(self.shards[worker] if self.stepping is not None and worker in self.stepping else ())
                self.recorder.lose(self.shards[worker], asked, self.ready_slots(), error)
            if self.stepping is not None and worker in self.stepping:
                if not self.recovery.lost:  # the first death in this step
                    self.split_step(other for other in range(len(self.shards)) if other not in self.stepping)
                self.stepping.pop(worker)
            if not self.stepping:
                self.stepping = None
            self.step_slots = 0
            self.pending[worker] = {}
            self.pending_slots &= ~bits_of(self.shards[worker])
            for slot in self.shards[worker]:
                self.resetting.pop(slot, None)
            if self.request is not None and worker in self.request.messages:
                self.request = None
            self.recovery.lost[worker] = error
        return copied(error)
