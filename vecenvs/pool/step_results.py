"""What callers get of steps: made of the batch's columns, and of what the workers said besides."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vecenvs.batch.batch_columns import DONE, FIRST, TERMINATED, TRUNCATED, BatchColumns
from vecenvs.batch.infos import blank_info, copies
from vecenvs.pool.commands import NO_RESETS, Commands
from vecenvs.pool.episodes import Episodes
from vecenvs.pool.info_columns import InfoColumns
from vecenvs.pool.rows import Row, all_rows, complete, env_error, gather
from vecenvs.transport.protocol import RowExtras
from vecenvs.vec_env import Batch, StepReturn

Infos = list[dict[str, Any]]

_ALL = slice(None)
_NONE: list[int] = []

# For each flag: whether a byte has it, by the byte's value. For few rows quicker than numpy's operators.
_WHETHER = {flag: bytes(value & flag > 0 for value in range(256)) for flag in (TERMINATED, TRUNCATED)}


class StepResults:
    """Gives the results of steps of all envs, and of the last one what is asked afterwards; and batches of some rows.

    `asynchronous` tells whether the autoreset mode is "async".
    """

    def __init__(
        self, batch: BatchColumns, commands: Commands, infos: InfoColumns, episodes: Episodes, *, asynchronous: bool
    ) -> None:
        self._batch = batch
        self._commands = commands
        self._infos = infos
        self._episodes = episodes
        self._asynchronous = asynchronous
        self._informed = False  # whether it brought infos of whole shards
        self._no_flags = bytes(batch.n)
        self._flags = self._no_flags
        self._inactive: list[int] = []
        self._rewards64: NDArray[np.float64] | None = None  # kept where the columns may be written again
        # Async mode: what `Commands.begin_resets` is to be given once the last result is sure to be handed out.
        self.resets = NO_RESETS
        self.keep_rows = False  # whether `Episodes.note_rows` is to be told of rows that are handed out

    @property
    def active(self) -> NDArray[np.bool_]:
        """Which rows were transitions."""
        active = np.ones(self._batch.n, dtype=bool)
        active[self._inactive] = False
        return active

    def flagged(self, flag: int) -> NDArray[np.bool_]:
        """Which rows had this flag."""
        return np.frombuffer(bytearray(self._flags.translate(_WHETHER[flag])), bool)

    @property
    def rewards64(self) -> NDArray[np.float64]:
        """The rewards in full."""
        return self._batch.rewards.copy() if self._rewards64 is None else self._rewards64.copy()

    def prepare(self) -> Infos | None:
        """Make, while the workers are busy, dicts for what they will say: unless it was whole infos last time."""
        columns = self._infos
        return None if self._informed or columns.whole else columns.blank()

    def take(self, prepared: Infos | None, *, copy: bool) -> StepReturn:
        """Return the result of a step that every worker has taken part in. EnvError if an env has failed.

        Taken once more, it is the same.
        """
        came, columns = self._commands.lock_step, self._infos
        if prepared is not None and not (came.bodies or came.infos):
            extras: list[RowExtras] = []
            infos, filled = prepared, False
        else:
            extras, infos, filled = self._say(prepared)
        if not came.plain:
            return self._complete(extras, infos, self._commands.resetting, filled=filled, copy=copy)
        # No episode has ended: most steps of most envs.
        self._flags, self._inactive, self._rewards64, self.resets = self._no_flags, _NONE, None, NO_RESETS
        if self.keep_rows:
            self._episodes.note_rows(_ALL)
        if columns.names and not filled:
            columns.fill(range(self._batch.n), infos)
        return all_rows(self._batch, infos, copy=copy)

    def take_some(self, *, copy: bool) -> StepReturn:
        """As `take`, of a step in which some envs took no part, as they are being reset: of the rows that are ready."""
        ready = self._commands.ready
        extras = [extra for extra in ready.values() if extra is not None]
        resetting = {slot: row for slot, row in self._commands.resetting.items() if slot not in ready}
        infos = copies(blank_info(), self._batch.n)
        return self._complete(extras, infos, resetting, filled=False, copy=copy)

    def _say(self, prepared: Infos | None) -> tuple[list[RowExtras], Infos, bool]:
        """Return the extras of a step and its infos, and whether these have the attributes, where there are some."""
        came, columns = self._commands.lock_step, self._infos
        extras, self._informed = came.extras(), bool(came.infos)
        if self._informed:
            return extras, came.all_infos(), False
        if columns.whole and not extras:
            return extras, columns.filled(), True
        return extras, prepared or columns.blank(), False

    def _complete(
        self, extras: list[RowExtras], infos: Infos, resetting: dict[int, list[Any]], *, filled: bool, copy: bool
    ) -> StepReturn:
        """Add to the rows what is more than columns; `filled` says whether `infos` have the attributes already."""
        batch, flags = self._batch, self._batch.flags
        asynchronous = self._asynchronous
        self._inactive = list(resetting)
        if resetting:
            flags = flags.copy()
            flags[self._inactive] = 0
            extras.extend(RowExtras(slot, {"resetting": True, **self._infos.kept(slot)}) for slot in resetting)
        # In async mode the rows of ended episodes are written again before this returns.
        result = all_rows(batch, infos, copy=copy or asynchronous)
        flagged = flags.nonzero()[0].tolist()
        self._flags = of_all = flags.tobytes()
        complete([infos[slot] for slot in flagged], batch, flagged, [of_all[slot] for slot in flagged])
        dones = result[2]
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
            self._episodes.note_rows([slot for slot in range(batch.n) if slot not in resetting])
        for slot, parts in resetting.items():
            batch.observations.layout.set_row(result[0], slot, parts)
            result[1][slot] = 0.0
        if self._infos.names and not filled:
            self._infos.fill(range(batch.n), infos)
        if asynchronous:
            self._begin_autoresets(flagged, [infos[slot] for slot in flagged])
        return result

    def _take_extras(self, extras: list[RowExtras], infos: Infos, resetting: Collection[int]) -> None:
        """Take what came besides the columns; raise if an env has failed, with the others' rows."""
        for extra in extras:
            if extra.info:
                infos[extra.slot] = {**extra.info, **infos[extra.slot]}
        error = env_error(extras)
        if error is not None:
            failed = {e.index for e in error.errors} | set(resetting)
            slots = [slot for slot in range(self._batch.n) if slot not in failed]
            error.batch = self._gather([(slot, RowExtras(slot, infos[slot])) for slot in slots])
            raise error

    def hand_out(self, rows: list[Row]) -> Batch:
        """Return rows that have come, of any envs. Handed out once more, they are the same."""
        for slot, extra in rows:
            if self._batch.flags[slot] & FIRST:
                self._episodes.begin(slot, extra.reset_info if extra is not None else None)
        return self._gather(rows)

    def _gather(self, rows: Sequence[Row]) -> Batch:
        batch, slots = gather(self._batch, rows), [slot for slot, _ in rows]
        if self.keep_rows:
            self._episodes.note_rows(slots)
        if self._infos.names:
            self._infos.fill(slots, batch.infos)
        if self._asynchronous:
            self._begin_autoresets(slots, batch.infos)
        return batch

    def _begin_autoresets(self, slots: Sequence[int], infos: Sequence[dict[str, Any]]) -> None:
        """In async mode the envs whose episodes end with these rows, which have been copied, are being reset."""
        for slot, info in zip(slots, infos, strict=True):
            if self._batch.flags[slot] & DONE:
                self._infos.keep(slot, info)
        self.resets = self._commands.first_rows_of(slots)
