"""Record the answers of the workers: rows, replies, and how the start of a replacement has ended."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from typing import Any

from vecenvs.batch.batch_columns import BatchColumns
from vecenvs.errors import VecEnvError
from vecenvs.pool.commands import Commands
from vecenvs.pool.info_columns import InfoColumns
from vecenvs.pool.subsets import bits_of
from vecenvs.pool.timeouts import StepTimeouts
from vecenvs.pool.unanswered import ReadyRows
from vecenvs.pool.workers import Workers
from vecenvs.transport import Message
from vecenvs.transport.protocol import Answer, Command, RemoteFailure, RowExtras, RowsBody, Slots, addressed, rows_of

_log = logging.getLogger("vecenvs")

# Plain ints compare faster.
_SOME_ROWS, _PLAIN = int(Answer.SOME_ROWS), int(Answer.PLAIN_ROWS)
_OF_SHARD = frozenset({int(Answer.ROWS), _PLAIN})


class Answers:
    """Takes answers from the transports into `commands`. An answer that comes again changes nothing."""

    def __init__(
        self, commands: Commands, workers: Workers, batch: BatchColumns, infos: InfoColumns, timeouts: StepTimeouts
    ) -> None:
        self._commands = commands
        self._workers = workers
        self._batch = batch
        self._infos = infos
        self._timeouts = timeouts
        self._timed = timeouts.timed
        self.errors = [0] * len(workers.shards)  # how many exceptions each worker's envs have raised, with `on_error`
        self._told = [0] * len(workers.shards)  # how many of these by the worker that is there now

    def collect(self, workers: Iterable[int], timeout: float = 0) -> bool:
        """Record every answer of these workers that has come, or does within so many seconds; tell if there was one."""
        self._workers.reset_wake()
        found = False
        for worker in workers:
            end = timeout and time.monotonic() + timeout  # of all, since a worker may report for ever
            left = timeout
            while (message := (transport := self._workers.transports[worker]).get(left)) is not None:
                self.record(worker, message)
                transport.take()
                found = True
                left = end and max(end - time.monotonic(), 0)
        return found

    def record(self, worker: int, message: Message) -> None:
        """Record one answer."""
        number, tag, body = message
        kind, commands = tag & 0xFF, self._commands
        if self._timed:
            self._timeouts.note_activity(worker)
        if kind == _SOME_ROWS:
            slots, body = addressed(tag, body)
            self._take_forms(worker, body)
            self._record_rows(worker, number, slots, body)
        elif kind in _OF_SHARD:
            self._take_forms(worker, body)
            if commands.stepping and worker in commands.stepping and number == commands.step_answers.number:
                self._record_shard(worker, kind, body)
        elif kind == Answer.REPLY:
            if commands.request is not None and number == commands.request.number:
                commands.request.replies[worker] = body
        elif kind == Answer.STARTED:
            self._told[worker] = 0
            self._workers.tally.begin_anew(worker)
            commands.started(worker, body)
        elif kind == Answer.RETIRED:
            commands.on_retired(worker, number, body)
        elif kind == Answer.NOT_STARTED:
            error = commands.recovery.failed(worker, body)
            if error is not None:
                self._workers.transports[worker].take()
                raise commands.mark_lost(worker, error)
        else:
            self._take_unasked(worker, kind, body)

    def _take_unasked(self, worker: int, kind: int, body: Any) -> None:
        if kind == Answer.ENV_ERROR:
            self._note_error(worker, *body)
        elif kind == Answer.LOAD:
            self._workers.tally.tell(worker, body)
        elif kind != Answer.PROGRESS:
            raise VecEnvError(f"worker {worker} sent an answer of kind {kind} out of turn")

    def _note_error(self, worker: int, count: int, what: str, anew: int | None) -> None:
        """Count and log an exception of an env, after which the worker goes on. Repeatable: `count` is its number."""
        if anew is not None and self._commands.recorder is not None:
            self._commands.recorder.begin_anew([anew])
        if count > self._told[worker]:
            self._told[worker] = count
            self.errors[worker] += 1
            _log.warning("%s", what)

    def _take_forms(self, worker: int, body: Any) -> None:
        """Take new forms of a worker's infos, whether or not the rows that they came with are still wanted."""
        if type(body) is RowsBody and body.forms:
            self._infos.open(worker, body.forms)

    def _record_rows(self, worker: int, number: int, slots: Slots, body: Any) -> None:
        commands = self._commands
        each = commands.pending[worker].get(number)
        if each is None:
            return
        bits = each.bits if slots == each.slots else bits_of(slots)
        if bits & ~each.left:
            return  # recorded already: a portion is recorded as a whole
        extras: dict[int, RowExtras] = {}
        if body is not None:
            rows = self._readable(worker, slots, body)
            self._batch.observations.take_objects(rows_of(slots), rows.objects)
            extras = {extra.slot: extra for extra in rows.extras}
        commands.without_rows.pop(worker, None)
        commands.add_rows(ReadyRows(slots, bits, extras))
        commands.mark_answered(each, bits)

    def _record_shard(self, worker: int, kind: int, body: Any) -> None:
        commands = self._commands
        shard, answers = commands.shards[worker], commands.step_answers
        commands.without_rows.pop(worker, None)
        if body is None:
            answers.add(worker, None, plain=kind == _PLAIN)
        else:
            rows = self._readable(worker, shard, body)
            self._batch.observations.take_objects(rows_of(shard), rows.objects)
            answers.add(worker, rows, plain=kind == _PLAIN and not rows.extras)
        if commands.recovery.lost:  # the step has failed
            commands.split_step([worker])
        if commands.stepping is not None:
            commands.stepping.pop(worker, None)
            if commands.recovery.lost and not commands.stepping:
                commands.stepping = None

    def _readable(self, worker: int, slots: Sequence[int], body: Any) -> RowsBody:
        """Return the body of an answer about rows. Tell the worker which envs' parts could not be unpickled."""
        if body is None:
            return RowsBody([])
        failures: dict[int, RemoteFailure] = {}
        why = body.failure if type(body) is RowsBody else body
        if why is not None:
            for slot in slots:
                failures[slot] = why._replace(slot=slot, summary=f"env {slot}: {why.summary}")
            body = RowsBody([RowExtras(slot, {}, None, why) for slot, why in failures.items()])
        elif body.unread:
            failures = {extra.slot: extra.failure for extra in body.extras if extra.slot in body.unread}
        if failures:
            self._batch.flags[list(failures)] = 0
            self._commands.tell(worker, Command.FAIL, failures)
        rows: RowsBody = body
        return rows
