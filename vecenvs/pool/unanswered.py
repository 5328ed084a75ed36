"""The record of what is unanswered, and of the rows that have come.

A slot has at most one unanswered command: in `pending` if it was sent for some slots, or by its worker's entry in
`stepping` if the whole shard is being stepped. Rows that have come and have not been returned are in `ready`; their
columns do not change before the slot's next command.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from vecenvs.batch.batch_columns import BatchColumns
from vecenvs.batch.reset_arguments import ResetArguments
from vecenvs.pool.step_answers import StepAnswers
from vecenvs.transport.protocol import Command, RowExtras, Slots


class Pending:
    """A command to one worker about some of its slots, not all of which are answered."""

    __slots__ = ("body", "kind", "number", "since", "slots", "worker")

    def __init__(self, number: int, worker: int, slots: Slots, kind: Command, since: float) -> None:
        self.number = number
        self.worker = worker
        self.slots = slots
        self.kind = kind
        self.since = since
        self.body: ResetArguments | None = None


class Request(NamedTuple):
    """What some workers are asked: the message to each, the slots that it concerns, and the replies so far."""

    number: int
    messages: dict[int, tuple[Command, Any]]
    slots: Mapping[int, Sequence[int]]
    replies: dict[int, Any]
    since: float


class Unanswered:
    """The unanswered commands of one VecEnv, by worker and slot, and the rows that have not been returned."""

    def __init__(self, shards: Sequence[range], batch: BatchColumns) -> None:
        self.shards = shards
        self._count = sum(map(len, shards))
        self.pending: list[dict[int, Pending]] = [{} for _ in shards]  # by worker and slot
        self.stepping: dict[int, float] | None = None  # worker -> when its shard's step began; None between two steps
        self.step_slots: Collection[int] = ()  # the slots of a step during which the other envs are being reset
        self.step_answers = StepAnswers(shards, batch)
        self.ready: dict[int, RowExtras | None] = {}
        self.orphaned: set[int] = set()  # slots whose ready row is from a step that a worker's death has ended
        self.resetting: dict[int, list[Any]] = {}  # slots under an async autoreset -> the row that they repeat
        self.request: Request | None = None

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

    def start_times(self) -> list[tuple[int, float]]:
        """Return the worker of each unanswered command, and when the command was sent."""
        found = [*(self.stepping or {}).items()]
        found += [(each.worker, each.since) for pending in self.pending for each in {*pending.values()}]
        if self.request is not None:
            found += [(worker, self.request.since) for worker in self.without_reply()]
        return found

    def unanswered_slots(self) -> set[int]:
        """Return the slots that an unanswered command concerns."""
        found = {slot for pending in self.pending for slot in pending}
        found.update(slot for worker in self.stepping or () for slot in self.shards[worker])
        if self.request is not None:
            found.update(slot for worker in self.without_reply() for slot in self.request.slots[worker])
        return found

    def forget_rows(self, slots: Collection[int]) -> None:
        """Remove ready rows, which have been returned or are overtaken by a reset."""
        for pending in self.pending:
            if pending and not pending.keys().isdisjoint(slots):  # rows that are in both, after an exception
                remove(pending, slots)
        if self.resetting:
            remove(self.resetting, slots)
        if self.orphaned:
            self.orphaned.difference_update(slots)
        if len(slots) == self._count:
            self.ready = {}
            return
        gone = {*slots}
        left = not gone.issuperset(self.ready)
        self.ready = {slot: extra for slot, extra in self.ready.items() if slot not in gone} if left else {}

    def end_step(self) -> None:
        """Forget the step of all envs: its rows have been returned."""
        self.step_slots = ()
        self.stepping = None

    def split_step(self, workers: Iterable[int]) -> None:
        """Make the rows that these workers sent for a step of all envs single ones, for `recv`."""
        for worker in workers:
            found = self.step_answers.by_slot(worker)
            self.ready.update((slot, found.get(slot)) for slot in self.shards[worker])
            self.orphaned.update(self.shards[worker])


def remove(found: dict[int, Any], slots: Iterable[int]) -> None:
    """Remove the entries of these slots, of which some may be there."""
    deque(map(found.pop, slots, itertools.repeat(None)), 0)  # a third of the time of a loop
    if not found:
        found.clear()  # which gives back its memory
