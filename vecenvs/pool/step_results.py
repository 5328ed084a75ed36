"""Make what callers get out of the batch's columns and the extras that came with the rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vecenvs import _native
from vecenvs.batch.batch_columns import DONE, FINAL, FIRST, LAST, TERMINATED, TRUNCATED, BatchColumns
from vecenvs.batch.infos import TRUNCATED_KEY, blank_info
from vecenvs.batch.lazy_infos import Infos
from vecenvs.errors import EnvError
from vecenvs.pool.commands import NO_RESETS, Commands
from vecenvs.pool.episodes import Episodes
from vecenvs.pool.info_columns import InfoColumns
from vecenvs.pool.tally import Tally
from vecenvs.transport.protocol import RowExtras
from vecenvs.vec_env import Batch, StepReturn

Extras = Mapping[int, RowExtras]  # what came with some rows besides columns, by slot

_ALL = slice(None)
_NONE: list[int] = []
_BLANK = blank_info()

# For each flag: whether a byte has it, by the byte's value. For few rows faster than numpy's operators.
_WHETHER = {flag: bytes(value & flag > 0 for value in range(256)) for flag in (TERMINATED, TRUNCATED)}


class StepResults:
    """Makes the results of steps of all envs, and batches of some rows.

    It also keeps what callers may ask about the last step: `active`, `flagged`, `rewards64`. `asynchronous` tells
    whether the autoreset mode is "async", and `waits` whether rows have latencies. Any result can be made again: it is
    the same until its rows are forgotten.
    """

    def __init__(
        self,
        batch: BatchColumns,
        commands: Commands,
        infos: InfoColumns,
        episodes: Episodes,
        tally: Tally,
        *,
        asynchronous: bool,
        waits: bool = False,
    ) -> None:
        self._batch = batch
        self._waits = waits
        self._commands = commands
        self._infos = infos
        self._episodes = episodes
        self._tally = tally
        self._asynchronous = asynchronous
        columns = batch.observations
        self._copied, self._views, self._rewards = columns.whole_source, columns.views, batch.rewards
        self._plain_result = _native.chosen.plain_result
        self._informed = False  # whether the last step brought infos of all rows
        self._no_flags = bytes(batch.n)
        self._flags = self._no_flags
        self._inactive: list[int] = []
        self._rewards64: NDArray[np.float64] | None = None  # kept where the columns may be overwritten
        # Async mode: the arguments of `Commands.begin_resets`, once the last result is sure to be returned.
        self.resets = NO_RESETS
        self.notes = False  # whether to keep what `note` does
        self.ended: list[dict[str, Any]] = []  # the infos of the last result's rows that end episodes
        self.turns: list[tuple[int, int, dict[str, Any]]] = []  # slot, flags and info of those that end or begin one
        self.keep_rows = False  # whether `Episodes.record_rows` has to be told of returned rows

    @property
    def active(self) -> NDArray[np.bool_]:
        """Which rows of the last step are transitions."""
        active = np.ones(self._batch.n, dtype=bool)
        active[self._inactive] = False
        return active

    def flagged(self, flag: int) -> NDArray[np.bool_]:
        """Return which rows of the last step have this flag."""
        return whether(self._flags, flag)

    @property
    def rewards64(self) -> NDArray[np.float64]:
        """The rewards of the last step, not rounded to float32."""
        return self._batch.rewards.copy() if self._rewards64 is None else self._rewards64.copy()

    def prepare(self) -> Infos | None:
        """Make the infos in advance, while the workers step; None if the last step brought complete ones."""
        return None if self._informed else self._infos.blank()

    def take(self, prepared: Infos | None, *, copy: bool) -> StepReturn:
        """Return the result of a step of all envs. Raise EnvError if an env has failed."""
        came, columns, n = self._commands.step_answers, self._infos, self._batch.n
        extras = came.extras() if came.bodies else []
        if came.bodies or columns.used or prepared is None:
            infos = self._infos_of_step(prepared)
        else:
            infos = prepared
        if not came.plain:
            return self._complete(extras, infos, range(n), self._commands.resetting, copy=copy)
        if self.keep_rows:
            self._episodes.record_rows(_ALL)
        if columns.names:
            columns.note_step(range(n), infos)
        return self.plain(infos, copy=copy)

    def _infos_of_step(self, prepared: Infos | None) -> Infos:
        """Return the infos of all rows, but for those that are extras."""
        came, columns = self._commands.step_answers, self._infos
        table = columns.all_alike() if columns.used else None
        given = {worker: body.infos for worker, body in came.bodies.items() if body.infos}
        self._informed = bool(given) or table is not None
        if given:
            shards = enumerate(self._commands.shards)
            return [info for worker, shard in shards for info in given.get(worker) or columns.infos(shard)]
        if table is not None:
            return table.infos(_ALL)
        return columns.infos(range(self._batch.n)) if columns.used else prepared or columns.blank()

    def plain(self, infos: Infos | dict[str, Any], *, copy: bool) -> StepReturn:
        """Return the result of a step in which no episode has ended, as in most steps.

        `infos` may be one info, of which each env gets a copy.
        """
        self._flags, self._inactive, self._rewards64, self.resets = self._no_flags, _NONE, None, NO_RESETS
        result: StepReturn = self._plain_result(self._copied if copy else self._views, self._rewards, infos)
        return result

    def with_flags(self, infos: Infos, *, copy: bool) -> StepReturn:
        """Return the result of a step in which episodes have ended, of envs that have given no infos."""
        return self._complete([], infos, range(self._batch.n), {}, copy=copy)

    def take_some(self, *, copy: bool) -> StepReturn:
        """Return the result of a step in which some envs took no part, since they are being reset: see `take`."""
        ready, extras = self._commands.ready_slots(), [*self._commands.ready_extras().values()]
        resetting = {slot: row for slot, row in self._commands.resetting.items() if not ready >> slot & 1}
        slots = [slot for slot in range(self._batch.n) if slot not in resetting]
        infos = self._infos.blank()
        for slot, info in zip(slots, self._infos.infos(slots), strict=True):
            infos[slot] = info
        return self._complete(extras, infos, slots, resetting, copy=copy)

    def _complete(
        self,
        extras: list[RowExtras],
        infos: Infos,
        slots: Sequence[int],
        resetting: dict[int, list[Any]],
        *,
        copy: bool,
    ) -> StepReturn:
        """Return the result of a step of `slots`, with flagged rows or extras."""
        batch, flags = self._batch, self._batch.flags
        asynchronous = self._asynchronous
        self._inactive = list(resetting)
        if resetting:
            flags = flags.copy()
            flags[self._inactive] = 0
            extras.extend(RowExtras(slot, {"resetting": True, **self._infos.last(slot)}) for slot in resetting)
        # In async mode the rows of ended episodes may be overwritten before the caller gets them.
        rows = self._copied if copy or asynchronous else self._views
        observations, rewards, dones, _ = self._plain_result(rows, batch.rewards, infos)
        flagged = flags.nonzero()[0].tolist()
        self._flags = of_all = flags.tobytes()
        complete([infos[slot] for slot in flagged], batch, flagged, [of_all[slot] for slot in flagged])
        reset_infos = {extra.slot: extra.reset_info for extra in extras if extra.reset_info}
        for slot in flagged:
            flag = of_all[slot]
            if flag & DONE:
                dones[slot] = True
            if flag & FIRST:
                self._episodes.begin(slot, reset_infos.get(slot))
                if not flag & DONE:
                    self._inactive.append(slot)
        if asynchronous:
            self._rewards64 = batch.rewards.copy()
            self._rewards64[list(resetting)] = 0.0
        if extras:
            self._take_extras(extras, infos, resetting)
        if self.keep_rows:
            self._episodes.record_rows(slots)
        for slot, parts in resetting.items():
            batch.observations.layout.set_row(observations, slot, parts)
            rewards[slot] = 0.0
        if self._infos.names:
            self._infos.note_step(slots, infos)
        ended = [slot for slot in flagged if of_all[slot] & DONE]
        if asynchronous:
            self._begin_autoresets(ended)
        self._tally.note((), self._inactive, ended)
        self.note(flagged, flagged, of_all, infos)
        return observations, rewards, dones, infos

    def note(self, flagged: Iterable[int], slots: Iterable[int], flags: Sequence[int], infos: Infos) -> None:
        """Keep, if asked to, the rows `flagged` of a result, which end or begin episodes of these `slots`."""
        if self.notes:
            self.turns = [(slot, flags[j], infos[j]) for j, slot in zip(flagged, slots, strict=True)]
            self.ended = [info for _, flag, info in self.turns if flag & DONE]

    def _take_extras(self, extras: list[RowExtras], infos: Infos, resetting: Collection[int]) -> None:
        """Put the extras into the infos. If an env has failed, raise the error with the rows of the others."""
        for extra in extras:
            if extra.info:
                infos[extra.slot] = {**extra.info, **infos[extra.slot]}
        error = env_error(extras)
        if error is not None:
            failed = {e.index for e in error.errors} | set(resetting)
            slots = [slot for slot in range(self._batch.n) if slot not in failed]
            error.batch = self.batch_of(slots, {slot: RowExtras(slot, infos[slot]) for slot in slots}, begin=False)
            self._tally.note_step()
            try:
                raise error
            finally:
                del error  # no cycle, over its traceback, that would hold the rows' memory

    def batch_of(
        self, slots: Sequence[int], extras: Extras, indices: NDArray[np.int64] | None = None, *, begin: bool = True
    ) -> Batch:
        """Return the rows of some envs as a batch, in the order given, and what came with each.

        `indices` are the slots as an array for the batch, if there is one. With `begin` record the episodes that begin
        with them.
        """
        infos = self._infos.infos(slots) if self._infos.used else None
        batch, flags = select(
            self._batch, slots, extras, np.array(slots, np.int64) if indices is None else indices, infos
        )
        if self._waits:
            batch.latency = self._batch.latency[batch.indices]
        idle, ended = _NONE, _NONE
        if flags.count(0) < len(flags):
            idle = [slot for slot, flag in zip(slots, flags, strict=True) if flag & (FIRST | DONE) == FIRST]
            ended = [slot for slot, flag in zip(slots, flags, strict=True) if flag & DONE]
            for slot, flag in zip(slots, flags, strict=True) if begin else ():
                if flag & FIRST:
                    self._episodes.begin(slot, extras[slot].reset_info if slot in extras else None)
        self._tally.note(slots, idle, ended)
        if self.keep_rows:
            self._episodes.record_rows(slots)
        if self._infos.names:
            self._infos.note(slots, batch.infos)
        if self._asynchronous:
            self._begin_autoresets(ended)
        flagged = [j for j, flag in enumerate(flags) if flag] if self.notes else []
        self.note(flagged, [slots[j] for j in flagged], flags, batch.infos)
        return batch

    def _begin_autoresets(self, ended: list[int]) -> None:
        """In async mode, prepare the resets of envs whose episodes end with these rows, which have been copied."""
        self.resets = self._commands.first_rows_of(ended) if ended else NO_RESETS


def complete(infos: Iterable[dict[str, Any]], batch: BatchColumns, slots: Iterable[int], flags: Iterable[int]) -> None:
    """Add to the infos of these slots' rows what their flags say."""
    finals = batch.finals
    for info, slot, flag in zip(infos, slots, flags, strict=True):
        info[TRUNCATED_KEY] = flag & DONE == TRUNCATED
        if flag & FINAL and finals is not None:
            info["terminal_observation"] = finals.row(slot)
        elif flag & LAST:
            info["terminal_observation"] = batch.observations.row(slot)
        if flag & FIRST:
            info["episode_start"] = True


def select(
    batch: BatchColumns,
    slots: Sequence[int],
    extras: Extras,
    indices: NDArray[np.int64],
    given: list[dict[str, Any]] | None = None,
) -> tuple[Batch, bytes]:
    """Copy some rows, in the order given; return them and their flags. `given` are their infos without extras."""
    observations, rewards, flags, terminated, truncated, active, infos = _native.chosen.rows_result(
        batch.observations.rows_source, batch.rewards, batch.flags, indices, _BLANK
    )
    infos = given or infos
    if extras:
        for j, slot in enumerate(slots):
            if slot in extras and extras[slot].info:
                infos[j] = {**extras[slot].info, **infos[j]}
    if flags.count(0) < len(flags):
        flagged = [j for j, flag in enumerate(flags) if flag]
        complete([infos[j] for j in flagged], batch, [slots[j] for j in flagged], [flags[j] for j in flagged])
    return Batch(indices, observations, rewards, terminated, truncated, infos, active=active), flags


def whether(flags: bytes, flag: int) -> NDArray[np.bool_]:
    """Return which of these rows have this flag."""
    return np.frombuffer(bytearray(flags.translate(_WHETHER[flag])), bool)


def env_error(extras: Iterable[RowExtras]) -> EnvError | None:
    """Return one error for all envs that failed, the one with the lowest index first; None if none did."""
    failures = sorted((extra.failure for extra in extras if extra.failure is not None), key=lambda f: f.slot)
    if not failures:
        return None
    errors = [failure.to_error() for failure in failures]
    errors[0].errors = tuple(errors)
    return errors[0]
