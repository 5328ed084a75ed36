"""`record`: the files of the episodes that have failed, or of all."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from vecenvs import env_calls
from vecenvs.batch.batch import Batch
from vecenvs.batch.batch_columns import DONE, FIRST, BatchColumns
from vecenvs.errors import EnvError, ResetNeededError, StateError, WorkerDied
from vecenvs.pool.episodes import Episodes
from vecenvs.pool.spill import Spill
from vecenvs.pool.ticks import Call, Episode, Ticks
from vecenvs.state.env_state import EnvState, text_of
from vecenvs.state.episode_file import (
    DIED,
    ENDED,
    RAISED,
    Described,
    Record,
    checksums,
    encoded_or_none,
    write_record,
)
from vecenvs.transport.pickling import dumps
from vecenvs.transport.reset_arguments import NUMBER, SEED
from vecenvs.worker.env_errors import ERROR, has_error
from vecenvs.worker.env_states import take_state

_CALLS = 200  # of an episode that are logged one by one
_CHANGE = (env_calls.set_attr, env_calls.set_wrapper_attr)  # what can be repeated
_LOST = "worker_restarted"

_log = logging.getLogger("vecenvs")


class Recorder:
    """Records the episodes of a VecEnv into `folder`: those that fail, or with `everything` all that end."""

    def __init__(
        self,
        folder: str,
        fns: Sequence[Any],
        batch: BatchColumns,
        episodes: Episodes,
        *,
        everything: bool,
        any_bounds: bool,
    ) -> None:
        self._folder, self._fns, self._batch, self._episodes = folder, fns, batch, episodes
        self._everything = everything
        self._space = "" if any_bounds else text_of(batch.observation_space)  # of all envs
        n = batch.n
        self._ticks = Ticks(batch, Spill(folder))
        self._last: Any = None  # which result was noted last
        self._running: list[Episode | None] = [None] * n
        self._changes: list[dict[str, Call]] = [{} for _ in range(n)]  # calls that outlast an episode, by name
        self._functions: dict[int, bytes] = {}

    # While episodes go on

    def note_result(self, which: Any, value: Any, ready: Sequence[int]) -> None:
        """Take note of what a call is about to return or raise, of envs in `ready` or a step of all. Repeatable."""
        if isinstance(value, EnvError):
            if value.batch is not None:
                self.note(which, value.batch.indices.tolist(), value.batch.infos)
            self._fail(value)
        elif isinstance(value, Batch):
            self.note(which, value.indices.tolist(), value.infos)
        elif ready:  # the other envs are being reset
            self.note(which, ready, [value[3][slot] for slot in ready])
        else:
            self.note(which, None, value[3])

    def note(self, which: Any, slots: Sequence[int] | None, infos: Any) -> None:
        """Take note of a result that is about to be returned: the rows of these slots, or of all. Repeatable."""
        if which == self._last or (slots is not None and not slots):  # the next result has the key of an empty one
            return
        now = self._ticks.add(slots, self._running)
        marks = self._batch.flags.tobytes()
        if marks.count(0) < len(marks):
            if slots is None:
                self._turn(now, marks, self._batch.flags.nonzero()[0].tolist(), infos)
            else:
                given = {slot: info for slot, info in zip(slots, infos, strict=True) if marks[slot]}
                self._turn(now, marks, [*given], given)
        self._ticks.now, self._last = now + 1, which

    def _turn(self, now: int, marks: bytes, flagged: Sequence[int], infos: Any) -> None:
        """Take note of rows that end or begin episodes."""
        running, begun = self._running, self._episodes
        for slot in flagged:
            episode = running[slot]
            if marks[slot] & DONE and episode is not None and episode.first < now:
                info = infos[slot]
                if self._everything or has_error(info) or info.get(_LOST) is True:
                    self._write_ended(slot, episode, now, info)
                self._forget(slot)
        for slot in flagged:
            if marks[slot] & FIRST:
                running[slot] = Episode(now, begun.reset_infos[slot], begun.options.get(slot), self._changes[slot])

    def _write_ended(self, slot: int, episode: Episode, now: int, info: Mapping[str, Any]) -> None:
        if info.get(_LOST) is True:
            told = "the worker has ended, or an env was too late"
            path = self._write(slot, episode, now, DIED, told, pending=True)
        elif has_error(info):
            path = self._write(slot, episode, now, RAISED, str(info[ERROR]), pending=True)
        else:
            self._write(slot, episode, now + 1, ENDED, last=info.get("terminal_observation"))
            return
        _log.warning("env %d: run its episode again: python -m vecenvs rerun %s", slot, path)

    def forget(self, slots: Iterable[int]) -> None:
        """Take note that a reset, or a state that is set, has cut these slots' episodes short."""
        for slot in slots:
            self._forget(slot)

    def _forget(self, slot: int) -> None:
        episode, self._running[slot] = self._running[slot], None
        for _, kept in episode.kept[0] if episode is not None else ():
            self._ticks.spill.free(kept)

    def begin_anew(self, slots: Iterable[int]) -> None:
        """Take note that these slots have new envs."""
        for slot in slots:
            self._changes[slot] = {}

    def note_call(self, slots: Sequence[int], function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Take note of a call on envs that may change them."""
        if function in env_calls.READS or function is take_state:
            return
        name, given = env_calls.name_for(function), None
        if args and isinstance(args[0], str):
            name = f"{name}({args[0]!r})"
        if function in _CHANGE and not kwargs:
            given = encoded_or_none([env_calls.name_for(function), *args])
        for slot in slots:
            changes = {key: each for key, each in self._changes[slot].items() if key != name}
            self._changes[slot] = {**changes, name: (-1, name, given)} if len(changes) < _CALLS else changes
            episode = self._running[slot]
            if episode is not None and len(episode.calls) < _CALLS:
                episode.calls.append((self._ticks.length(slot, episode), name, given))
            elif episode is not None:
                episode.skipped += 1

    # Episodes that have failed

    def _fail(self, error: EnvError) -> None:
        """Write the episodes of envs that have raised, and tell the error the files. Repeatable."""
        now = self._ticks.now
        for each in error.errors:
            if each.record or isinstance(each, StateError) or isinstance(each.__cause__, ResetNeededError):
                continue
            episode = self._running[each.index]
            told = each.args[0]
            path = self._write(each.index, episode, now, RAISED, told, pending=episode is not None)
            each.tell_record(path)
            self._forget(each.index)

    def lose(self, slots: Iterable[int], asked: int, ready: int, error: Exception) -> None:
        """Write the episodes of a worker that has ended, and tell the error the files.

        Slots of `asked` have an unanswered command; those of `ready` rows that have not been returned.
        """
        quiet = [slot for slot in slots if ready >> slot & 1 and not self._batch.flags[slot]]
        if quiet:
            last = self._last  # of a result that may be noted again
            self.note(("lost", quiet), quiet, [{}] * len(quiet))
            self._last = last
        told, paths = str(error.args[0]), []
        for slot in slots:
            episode, pending = self._running[slot], bool(asked >> slot & 1)
            ended = ready >> slot & 1 and slot not in quiet
            if not ended and (episode is not None or pending):
                pending = pending and episode is not None
                paths.append(self._write(slot, episode, self._ticks.now, DIED, told, pending=pending))
            self._forget(slot)
        if paths and isinstance(error, WorkerDied):
            error.tell_records(paths)

    # Files

    def _write(self, slot: int, episode: Episode | None, stop: int, outcome: str, told: str = "", **rest: Any) -> str:
        """Write an episode up to the tick `stop`; return the file's path, or why there is none. See `_record`."""
        try:
            return write_record(self._folder, self._record(slot, episode, stop, outcome, told, **rest))
        except OSError as exc:
            _log.error("env %d: its episode cannot be recorded: %s", slot, exc)
            return f"(not written: {exc})"

    def _record(
        self,
        slot: int,
        episode: Episode | None,
        stop: int,
        outcome: str,
        told: str,
        *,
        pending: bool = False,
        last: Any = None,
    ) -> Record:
        """Return the record of an episode, or of a reset that has failed.

        With `pending` its last action has not been answered. `last` is its last observation, where the row had another.
        """
        layout, columns = self._batch.actions.layout, self._batch.actions.arrays
        seed, number, options = self._episodes.next_reset(slot)
        following = {"seed": seed, "options": None if options is None else encoded_or_none(options)}
        if episode is None:
            episode = Episode(stop, {SEED: seed, NUMBER: number}, options, self._changes[slot])
        arrays, objects = self._ticks.rows(slot, episode, stop)
        actions, (rewards, flags), sums = (
            arrays[: self._ticks.fixed - 2],
            arrays[self._ticks.fixed - 2 : self._ticks.fixed],
            [],
        )
        if self._ticks.compares:
            sums = [arrays[-1]]
            if last is not None:
                parts = [np.asarray(part)[None] for part in self._batch.observations.layout.flatten(last)]
                sums = [arrays[-1][:-1], checksums(parts, 1)]
        if pending:
            rows = [each[slot : slot + 1] for each in columns if each.dtype != object]
            actions = [np.concatenate(pair) for pair in zip(actions, rows, strict=True)]
            objects += [self._ticks.encoded_objects(slot)] if self._ticks.objects else []
        each = iter(actions)
        fn = self._fns[slot]
        env = fn.description() if isinstance(fn, Described) else None
        return Record(
            slot=slot,
            number=episode.info.get(NUMBER, 0),
            seed=episode.info.get(SEED, 0),
            outcome=outcome,
            told=told,
            actions=[None if leaf.is_object else next(each)[1:] for leaf in layout.leaves],
            objects=objects[1:],
            rewards=rewards[1:],
            flags=flags[1:] & np.uint8(DONE),
            checksums=np.concatenate([np.zeros(0, np.uint64), *sums]),
            options=None if isinstance(episode.options, EnvState | None) else encoded_or_none(episode.options),
            next_reset=following,
            calls=[*episode.before.values(), *episode.calls],
            inexact="; ".join(_doubts(episode, objects)),
            action_space=text_of(self._batch.action_space),
            observation_space=self._space,
            env=env,
            function=b"" if env is not None else self._pickled(fn),
        )

    def _pickled(self, fn: Any) -> bytes:
        if id(fn) not in self._functions:
            try:
                self._functions[id(fn)] = dumps(fn)
            except Exception:  # whatever a __reduce__ raises; `rerun --env` names another one
                self._functions[id(fn)] = b""
        return self._functions[id(fn)]


def _doubts(episode: Episode, objects: list[Any]) -> Iterator[str]:
    """Tell why it may not be possible to run an episode again."""
    if isinstance(episode.options, EnvState):
        yield "it has begun with set_state, not with a reset"
    elif episode.options is not None and encoded_or_none(episode.options) is None:
        yield "the options of its reset are no plain data"
    yield from [f"an action is no plain data: {each}" for each in objects[1:] if isinstance(each, str)][:1]
    if episode.skipped:
        yield f"{episode.skipped} more calls were made on its env than are logged"
