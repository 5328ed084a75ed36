"""`tasks`: a function of the caller's says with which seed and options each episode begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from vecenvs.batch.batch_columns import DONE, FIRST
from vecenvs.errors import VecEnvError, describe_indices
from vecenvs.pool.commands import Commands
from vecenvs.pool.episodes import Episodes
from vecenvs.pool.reset_parsing import parse_options, parse_seeds
from vecenvs.pool.subsets import slots_in
from vecenvs.transport.protocol import Command
from vecenvs.transport.reset_arguments import ResetArguments

Task = tuple[int | None, Mapping[str, Any] | None]  # the seed and the options of an episode
TaskFn = Callable[[int, int, dict[str, Any]], Task]

_UNKNOWN: Any = object()  # a task that has not been asked for
_NONE = None, None


class SlotTasks(NamedTuple):
    """The tasks of a slot's episodes.

    `begun` is the info of the row that began the present one, while it is noted. `end` is the info of the last row of
    the one before, for the next call of the function.
    """

    now: Task | None = None
    next: Task | None = _UNKNOWN
    asked: int = 0
    stopped: bool = False
    end: Mapping[str, Any] = {}
    begun: Any = None


class Tasks:
    """Asks `function` for the tasks of all slots.

    `check(what, value)` raises if a value cannot be sent to workers. With `ahead` a task is asked for when the episode
    before begins, since workers begin episodes themselves, else at the reset. Whatever raises an exception here may be
    called again.
    """

    def __init__(
        self, function: TaskFn, episodes: Episodes, commands: Commands, check: Callable[..., None], *, ahead: bool
    ) -> None:
        self._function, self._check, self._ahead = function, check, ahead
        self._episodes, self._commands = episodes, commands
        self._slots = [SlotTasks()] * len(commands.owner)
        self._to_ask: dict[int, None] = {}
        self._unsent: dict[int, Task] = {}

    # Episodes that workers begin

    def follow(self, turns: list[tuple[int, int, dict[str, Any]]], returned: int) -> None:
        """Take the rows that end or begin episodes out of `turns`, and tell workers what follows on these.

        `returned` are slots whose rows, which count as ready, are being returned.
        """
        while turns:
            self._note(*turns[0])
            del turns[0]
        while self._to_ask:
            slot = next(iter(self._to_ask))
            self.ask([slot])
            if (task := self._slots[slot].next) is not None:
                self._unsent[slot] = task
            self._slots[slot] = self._slots[slot]._replace(begun=None)
            del self._to_ask[slot]
        if self._unsent:
            self._send(self._commands.ready_slots() & ~returned)

    def _note(self, slot: int, flags: int, info: dict[str, Any]) -> None:
        """Take note of a row, once. The info of an episode's last row has its task, as those of its first row have."""
        held = self._slots[slot]
        if held.begun is not info:
            if flags & DONE:
                info["task"] = held.now
                held = held._replace(end={**info})
            if flags & FIRST:
                now = None if held.next is _UNKNOWN else held.next
                end = held.end if self._ahead else {}  # else this one's task was asked for before that end
                held = held._replace(now=now, next=None if held.stopped else _UNKNOWN, begun=info, end=end)
            self._slots[slot] = held
        if flags & FIRST:
            self._episodes.reset_infos[slot]["task"] = held.now
            if not flags & DONE:
                info["task"] = held.now
            if self._ahead:
                self._to_ask[slot] = None

    def _send(self, ready: int) -> None:
        """Send workers the tasks of the next episodes, by the way of all seeds and options for next resets."""
        seeds = {slot: task[0] for slot, task in self._unsent.items() if task[0] is not None}
        options = {slot: task[1] for slot, task in self._unsent.items() if task[1] is not None}
        self._episodes.hold(seeds, options, slots_in(ready))
        owner = self._commands.owner
        for worker in {owner[slot] for slot in self._unsent}:
            body = tuple({s: given[s] for s in given if owner[s] == worker} for given in (seeds, options))
            self._commands.tell(worker, Command.HOLD, body)
        self._unsent = {}

    # Resets

    def ask(self, slots: Sequence[int], *, leave_out: bool = True) -> Sequence[int]:
        """Ask for the next tasks of these slots, where they are not known; return the slots without those that rest.

        In mode disabled a slot rests for which there is no task any more.

        Raise VecEnvError if the function has raised, or if a slot rests and may not be left out.
        """
        for slot in slots:
            held = self._slots[slot]
            if held.next is not _UNKNOWN:
                continue
            of = f"for episode {held.asked} of env {slot}"
            try:
                task: Any = self._function(slot, held.asked, dict(held.end))
            except StopIteration:
                self._slots[slot] = held._replace(next=None, stopped=True, end={})
                continue
            except Exception as exc:
                raise VecEnvError(f"tasks raised {type(exc).__name__} {of}: {exc}") from exc
            if not isinstance(task, tuple) or len(task) != len(_NONE):
                raise TypeError(f"tasks returned {task!r} {of}: return a tuple (seed, options), each may be None")
            try:
                task = parse_seeds([task[0]], [slot])[slot], parse_options([task[1]], [slot])[slot]
                self._check("options", task[1])
            except (TypeError, ValueError) as exc:
                kind = TypeError if isinstance(exc, TypeError) else ValueError
                raise kind(f"tasks returned a wrong task {of}: {exc}") from exc
            self._slots[slot] = held._replace(next=task, asked=held.asked + 1, end={})
        resting = [] if self._ahead else [slot for slot in slots if self._slots[slot].stopped]
        if resting and not leave_out:
            found = f"envs {describe_indices(resting)} rest, since tasks has raised StopIteration for them"
            raise VecEnvError(f"{found}: reset those that have a task, or use reset_async, which leaves the others out")
        return [slot for slot in slots if slot not in resting] if resting else slots

    def over(self, slots: Sequence[int], given: ResetArguments) -> ResetArguments:
        """Return what resets of these slots get, who were `given` something: what their tasks say comes first."""
        if not slots:
            return given
        pairs = [(self._next(slot), given.of(slot)) for slot in slots]
        merged = [tuple(b if a is None else a for a, b in zip(*pair, strict=True)) for pair in pairs]
        seeds, options = (dict(zip(slots, values, strict=True)) for values in zip(*merged, strict=True))
        return ResetArguments(seeds, options, True)

    def over_next(self, which: int, given: dict[int, Any]) -> dict[int, Any]:
        """Return seeds (0) or options (1) for next resets, with what tasks say in the place of those `given`."""
        return {slot: value if (own := self._next(slot)[which]) is None else own for slot, value in given.items()}

    def _next(self, slot: int) -> Task:
        task = self._slots[slot].next
        return _NONE if task is None or task is _UNKNOWN else task
