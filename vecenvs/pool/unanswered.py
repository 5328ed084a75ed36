"""The record of what is unanswered, and of the rows that have come.

A slot has at most one unanswered command: in `pending` if it was sent for some slots, or by its worker's entry in
`stepping` if the whole shard is being stepped. Rows that have come and have not been returned are in `ready`; their
columns do not change before the slot's next command.

Sets of slots are the bits of an int: so what is done with one costs the same for few and for many slots, and changes
in one assignment.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from vecenvs.batch.batch_columns import BatchColumns
from vecenvs.pool.subsets import WorkerSlots, bits_of, slots_in
from vecenvs.transport import Transport
from vecenvs.transport.protocol import Command, RowExtras, RowsBody, Slots, slots_of
from vecenvs.transport.reset_arguments import ResetArguments

_RESETS = frozenset({Command.RESET, Command.AWAIT_RESET})

StartTime = tuple[int, float, bool]  # of a command: its worker, when it was sent, whether it is a reset


class Pending:
    """A command to one worker about some of its slots. `left` are those which are not answered."""

    __slots__ = ("bits", "body", "kind", "left", "number", "since", "slots", "worker")

    def __init__(self, number: int, part: WorkerSlots, kind: Command, since: float) -> None:
        self.number = number
        self.worker, self.slots, self.bits = part
        self.left = self.bits
        self.kind = kind
        self.since = since
        self.body: ResetArguments | None = None

    def slots_left(self) -> Slots:
        """Return the slots that are left, in the order of the command."""
        return self.slots if self.left == self.bits else slots_of([s for s in self.slots if self.left >> s & 1])


class ReadyRows(NamedTuple):
    """Rows that have come together, and what came with them besides columns, by slot."""

    slots: Slots
    bits: int
    extras: dict[int, RowExtras]


class Request(NamedTuple):
    """What some workers are asked: the message to each, the slots that it concerns, and the replies so far.

    `wanted` are the slots of a call that is waited for, in the caller's order; None for what is not waited for by name.
    """

    number: int
    messages: dict[int, tuple[Command, Any]]
    slots: Mapping[int, Sequence[int]]
    replies: dict[int, Any]
    since: float
    wanted: Slots | None


class StepAnswers:
    """The answers to the step that is under way, or to the last one.

    `number` is the number of its command. `plain` tells whether no worker has flagged a row or sent extras. By worker,
    `bodies` has what came besides columns.
    """

    def __init__(self, shards: Sequence[range]) -> None:
        self.number = 0
        self.plain = True
        self.bodies: dict[int, RowsBody] = {}
        self._shards = shards

    def add(self, worker: int, body: RowsBody | None, *, plain: bool) -> None:
        """Add what came with a shard's rows."""
        self.plain = self.plain and plain
        if body is not None:
            self.bodies[worker] = body

    def extras(self) -> list[RowExtras]:
        """Return the extras of all workers."""
        return [extra for body in self.bodies.values() for extra in body.extras]

    def by_slot(self, worker: int) -> dict[int, RowExtras]:
        """Return what one worker has sent as extras, by slot."""
        shard, body = self._shards[worker], self.bodies.get(worker, RowsBody([]))
        found = {slot: RowExtras(slot, info) for slot, info in zip(shard, body.infos or (), strict=False)}
        for extra in body.spread(shard.start, range(len(shard))).extras:
            whole = found.get(extra.slot)
            found[extra.slot] = extra if whole is None else extra._replace(info={**extra.info, **whole.info})
        return found


class Unanswered:
    """The unanswered commands of one VecEnv, and the rows that have not been returned."""

    def __init__(self, shards: Sequence[range], batch: BatchColumns) -> None:
        self.shards = shards
        self.everyone = (1 << batch.n) - 1
        self.pending: list[dict[int, Pending]] = [{} for _ in shards]  # by worker and number, ascending
        self.pending_slots = 0  # that these are about
        self.stepping: dict[int, float] | None = None  # worker -> when its shard's step began; None between two steps
        self.step_slots = 0  # the slots of a step during which the other envs are being reset
        self.step_answers = StepAnswers(shards)
        self._ready: tuple[list[ReadyRows], int, int] = [], 0, 0  # how many of these count, and their slots
        # Workers that have sent no row yet, and when they took the place of another one.
        self.without_rows = dict.fromkeys(range(len(shards)), -math.inf)
        self.orphaned = 0  # slots whose ready row is from a step that a worker's death has ended
        self.resetting: dict[int, list[Any]] = {}  # slots under an async autoreset -> the row that they repeat
        self.request: Request | None = None
        self.reviving: tuple[int, Transport] | None = None  # a new worker, while on_restart is called

    def without_reply(self) -> Collection[int]:
        """Return the workers that have not replied to the request."""
        request = self.request
        if request is None or len(request.replies) == len(request.messages):
            return ()
        return request.messages.keys() - request.replies.keys()

    def busy_workers(self) -> list[int]:
        """Return the workers with an unanswered command."""
        stepping, asked = self.stepping or (), self.without_reply()
        return [w for w, pending in enumerate(self.pending) if pending or w in stepping or w in asked]

    def start_times(self, *, alike: bool) -> list[StartTime]:
        """Return of each worker's unanswered commands when the first step and the first reset were sent.

        If they are `alike` the first one is enough: there may be a command for each of thousands of envs.
        """
        found = [(worker, since, False) for worker, since in (self.stepping or {}).items()]
        for each in self.pending:
            first: dict[bool, Pending] = {}
            for command in each.values():
                first.setdefault(command.kind in _RESETS, command)
                if alike or len(first) == 2:
                    break
            found += [(command.worker, command.since, resets) for resets, command in first.items()]
        if self.request is not None:
            found += [(worker, self.request.since, False) for worker in self.without_reply()]
        return found

    def unanswered_slots(self) -> int:
        """Return the slots that an unanswered command concerns."""
        found = self.pending_slots
        for worker in self.stepping or ():
            found |= bits_of(self.shards[worker])
        if self.request is not None:
            for worker in self.without_reply():
                found |= bits_of(self.request.slots[worker])
        return found

    @property
    def ready(self) -> list[ReadyRows]:
        """Rows that have come and have not been returned."""
        return self._ready[0][: self._ready[1]]

    def ready_slots(self) -> int:
        """Return the slots whose rows have come."""
        return self._ready[2]

    def ready_extras(self) -> dict[int, RowExtras]:
        """Return what has come with the rows that are ready besides columns, by slot."""
        return {slot: extra for rows in self.ready for slot, extra in rows.extras.items()}

    def add_rows(self, rows: ReadyRows) -> None:
        """Record rows that have come. Repeatable."""
        ready, count, bits = self._ready
        if not bits & rows.bits:
            ready[count:] = [rows]  # in place of one whose recording was cut off
            self._ready = ready, count + 1, bits | rows.bits

    def mark_answered(self, each: Pending, bits: int) -> None:
        """Record that these slots of a command are answered. Repeatable."""
        if each.left & ~bits:
            each.left &= ~bits
        else:
            self.pending[each.worker].pop(each.number, None)
        self.pending_slots &= ~bits

    def forget_rows(self, bits: int) -> None:
        """Remove ready rows, which have been returned or are overtaken by a reset."""
        if self.pending_slots & bits:  # rows that are in both, after an exception
            for pending in self.pending:
                for each in [*pending.values()]:
                    if each.left & bits:
                        self.mark_answered(each, each.left & bits)
            self.pending_slots &= ~bits
        if self.resetting:
            for slot in slots_in(bits):
                self.resetting.pop(slot, None)
        left = [part for rows in self.ready if (part := _without(rows, bits)) is not None]
        self._ready = left, len(left), self.ready_slots() & ~bits
        self.orphaned &= ~bits  # last: a command for them that an exception cuts off removes them then

    def end_step(self) -> None:
        """Forget the step of all envs: its rows have been returned."""
        self.step_slots = 0
        self.stepping = None

    def split_step(self, workers: Iterable[int]) -> None:
        """Make the rows that these workers sent for a step of all envs single ones, for `recv`."""
        for worker in workers:
            shard = self.shards[worker]
            bits = bits_of(shard)
            self.add_rows(ReadyRows(shard, bits, self.step_answers.by_slot(worker)))
            self.orphaned |= bits


def _without(rows: ReadyRows, bits: int) -> ReadyRows | None:
    """Return rows without those of some slots; None if nothing is left."""
    if not rows.bits & bits:
        return rows
    kept = rows.bits & ~bits
    if not kept:
        return None
    slots = slots_of([slot for slot in rows.slots if kept >> slot & 1])
    return ReadyRows(slots, kept, {slot: extra for slot, extra in rows.extras.items() if kept >> slot & 1})
