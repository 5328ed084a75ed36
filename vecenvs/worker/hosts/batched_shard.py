"""Stepping one batched env in a worker, and writing its rows as blocks: what `EnvShard` is for a list of envs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vecenvs._native.forks import run
from vecenvs.batch.batch_columns import FIRST, LAST, TRUNCATED, BatchColumns
from vecenvs.batch.info_batches import Columns, InfoColumn, merge_disjoint, select_rows
from vecenvs.errors import StateError, VecEnvError
from vecenvs.state.env_state import EnvState
from vecenvs.transport.protocol import LastStep, RemoteFailure, RowExtras, RowsBody, Slots
from vecenvs.transport.reset_arguments import NONE_GIVEN, ResetArguments
from vecenvs.worker.autoreset import FAILED, RowFlags
from vecenvs.worker.env_errors import ENV_ERRORS, ERROR, EnvErrors
from vecenvs.worker.env_shard import BROKEN_OFF, FirstRow, raise_or_defer
from vecenvs.worker.env_states import ENDED, STEPPING
from vecenvs.worker.final_infos import mask_of
from vecenvs.worker.hosts.batched_host import BatchedHost
from vecenvs.worker.hosts.block_attributes import BlockAttributes
from vecenvs.worker.hosts.block_writer import BlockWriter, Mask, RowIndex
from vecenvs.worker.hosts.host_failures import HostFailures
from vecenvs.worker.hosts.host_resets import HostResets
from vecenvs.worker.hosts.host_states import HostStates
from vecenvs.worker.rules import Rules

_NONE: RowIndex = np.zeros(0, np.int64)


class BatchedShard:
    """The envs of one host. A host is stepped whole: its envs fail together, and a step writes all of their rows."""

    def __init__(
        self,
        host: BatchedHost,
        first: int,
        batch: BatchColumns,
        rules: Rules,
        *,
        remote: bool,
        errors: EnvErrors | None = None,
    ) -> None:
        self.first = first
        self.all = range(host.num_envs)
        self.done: Sequence[Any] = ()
        self.deferred: list[int | BaseException] = []
        self.flags = RowFlags(batch, first, len(self.all))
        self._host = host
        self._mode = rules.autoreset
        self._refuses = self._mode == "disabled"
        self._batch = batch
        self._remote = remote
        self._slots = slice(first, first + len(self.all))
        self._writer = BlockWriter(batch, first, len(self.all))
        self._rewards = batch.rewards[self._slots]
        self._flags = batch.flags[self._slots]
        self._attributes = BlockAttributes(host, batch, self._slots)
        self.info_writer = self._attributes.info_writer
        self._reading = batch.info_attrs
        self._number = -1
        self._body: Any = None  # of the answer to the last step of all envs, or an exception
        self._parts: Sequence[Any] | None = None  # the observations of that step, as long as no column has them
        self._ended = _NONE  # whose episodes have ended in the last step
        self._needs_check = True  # whether the next step may have to be refused, or end or begin episodes by itself
        self._refused: Mask = np.ones(len(self.all), bool)  # who need a reset
        self._begun_next: Mask = np.zeros(len(self.all), bool)  # next_step: whose lost episodes a reset follows
        self._why = "has not been reset"
        self._errors = errors
        self._failures = HostFailures(range(first, first + len(self.all)), errors, remote=remote)
        # env -> the last row of its episode, which was lost with another worker or an error; and what its info says.
        self._lost: dict[int, Any] = {}
        self._loss: tuple[str, Any] = "worker_restarted", True
        self._fresh: Columns = {}  # infos of the resets of other envs meanwhile: these repeat their first rows
        self._resets = HostResets(host, first, rules, errors, self._writer, self._use)
        self.hold = self._resets.hold
        self._states = HostStates(first, batch, rules, self._resets)

    def read_actions(self) -> Sequence[Any]:
        """Return nothing: the host takes its actions as a block of the columns."""
        return ()

    # Stepping

    def try_step(self, number: int, actions: Sequence[Any]) -> bool:
        """Step the host for command `number`. `finish_step` writes the rows: return False."""
        self._number, self._body = number, BROKEN_OFF
        try:
            self._body = self._step()
        except BaseException as exc:
            self._body = exc
        return False

    def was_tried(self, number: int) -> bool:
        """Tell whether `try_step` was called for this command."""
        return self._number == number

    def pending_obs(self) -> tuple[RowsBody | None, Sequence[Any]] | None:
        """Return what `finish_step` would, and observations leaf by leaf which only that would write to the columns.

        None if there is more to do than that.
        """
        return None if self._parts is None or isinstance(self._body, BaseException) else (self._body, self._parts)

    def finish_step(self) -> RowsBody | None:
        """Complete the rows of the last `try_step` in the columns; return what there is besides."""
        body = self._body
        if isinstance(body, BaseException):
            body, self._parts = self._fail_all("step", body), None
        self._write_parts()
        return self._with_forms(self._writer.with_objects(body))

    def _write_parts(self) -> None:
        if self._parts is not None:
            self._writer.write(self._parts)
            self._parts = None

    def _with_forms(self, body: RowsBody | None) -> RowsBody | None:
        """Add new forms of infos, if there are any, to the body of an answer."""
        forms = self.info_writer.new_forms()
        return (body or RowsBody([]))._replace(forms=forms) if forms else body

    def step_some(self, some: Slots) -> tuple[int, RowsBody | None]:
        """Step the host for a command about its envs, all of them; what rows have besides columns are extras."""
        self.try_step(self._number, ())
        body = self.finish_step()
        return len(some), body and body.spread(self.first, some)

    def _step(self) -> RowsBody | None:
        self._parts = None
        if self._needs_check:
            self.flags.some = False
            self._flags[:] = 0
            if self._refused.any():
                return self._refuse()
            if self._lost or self._begun_next.any():
                return self._turn_over()
            self._needs_check, self._fresh = False, {}
        writer = self._writer
        try:
            obs, rewards, terminated, truncated, infos = run(self._host.step, writer.actions())
        except ENV_ERRORS as exc:
            self._lose(np.ones(len(self.all), bool), "step", exc)
            return self._turn_over()
        self._parts = writer.parts(obs)
        began = self._ended if self._mode == "next_step" else _NONE
        mark = 0 if self._mode == "same_step" else LAST
        self._ended = ended = writer.write_outcomes(rewards, terminated, truncated, began, mark)
        self.flags.some = bool(len(ended) or len(began))
        if self._errors is not None and len(ended):
            self._errors.completed(0)
        if infos or self._reading or (len(ended) and self._mode != "next_step"):
            return self._end_episodes(self._parts, ended, began, infos)
        return None

    def _end_episodes(self, obs: Sequence[Any], ended: RowIndex, began: RowIndex, infos: Columns) -> RowsBody | None:
        """Do what the mode says: resets, last observations; return whose infos are whose."""
        infos = self._attributes.without(infos)
        attributes = self._attributes.read()  # before a reset, unless the host has done that itself
        resets: Columns = {}
        if self._mode == "same_step":
            if len(ended):
                began = ended
                infos, resets = self._begin_in_same_step(obs, ended, infos)
                self._flags[ended] |= FIRST
        else:
            if self._refuses and len(ended):
                self._refused, self._why, self._needs_check = self._mask_of(ended), ENDED, True
            resets = select_rows(infos, self._mask_of(began)) if infos and len(began) else {}
        if self._reading:
            if len(began):
                resets = {**resets, **self._attributes.store_first(self._mask_of(began))}
            infos.update(self._attributes.store(attributes))
        return RowsBody([], columns=(infos, resets)) if infos or resets else None

    def _begin_in_same_step(self, obs: Sequence[Any], ended: RowIndex, infos: Columns) -> tuple[Columns, Columns]:
        """Keep the last observations of ended episodes, reset if the host has not; return infos and those of resets."""
        if self._host.autoreset == "same_step":
            return self._writer.split_final(ended, infos, as_gymnasium=self._host.keeps_finals)
        self._writer.keep_final_rows(obs, ended, infos)
        self._write_parts()
        resets = self._reset(self._mask_of(ended))
        self._fresh = resets if self._lost else {}
        return infos, resets

    def _mask_of(self, rows: RowIndex) -> Mask:
        return mask_of(rows, len(self.all))

    def _turn_over(self) -> RowsBody:
        """Return the rows of a step that only ends lost episodes, truncated, and begins those that follow such ends.

        In same_step both come in one row. Other envs, which cannot be stepped without these, repeat their first rows.
        """
        if self._begun_next.any():
            self._fresh = merge_disjoint(self._fresh, self._reset(began := self._begun_next))
            self._fresh = merge_disjoint(self._fresh, self._attributes.store_first(began))
        lost, self._lost = self._lost, {}
        ended = self._mask_of(rows := np.array(sorted(lost), np.int64))
        self._rewards[:], self.flags.some = 0.0, True
        self._flags[:] = np.where(ended, np.uint8(TRUNCATED), np.uint8(FIRST))
        infos, resets = {**self._fresh, **self._attributes.store(self._attributes.read_new())}, self._fresh
        if lost:
            infos[self._loss[0]] = InfoColumn(rows, [self._loss[1]] * len(rows))
            self._writer.keep_final([lost[row] for row in rows.tolist()], rows, infos)
        if self._mode == "same_step":
            resets = merge_disjoint(resets, {**self._reset(ended), **self._attributes.store_first(ended)})
            self._flags[rows] |= FIRST
            return RowsBody([], columns=(infos, resets))
        for row in rows.tolist():
            self._batch.observations.store_row(self.first + row, lost[row])
        if self._mode == "next_step":
            self._begun_next = ended
        else:
            self._refused, self._why = ended, ENDED
        return RowsBody([], columns=(infos, resets))

    # Resets

    def resume(self, lost: dict[int, tuple[LastStep, Any]]) -> None:
        """Take over slots whose episodes ended with another worker: see `Autoreset.resume`."""
        self._loss = "worker_restarted", True
        ended = [slot - self.first for slot, (last, _) in lost.items() if last.returned]
        self._end({slot - self.first: last.obs for slot, (last, _) in lost.items()}, np.array(ended, np.int64))
        for slot, (_, seed) in lost.items():
            self._resets.resume(slot - self.first, seed)

    def _end(self, last: dict[int, Any], ended: RowIndex) -> None:
        """End the episodes of envs whose last observations are given. Rows have told the end of those of `ended`."""
        if self._mode == "next_step" and len(ended) < len(last):
            ended = _NONE  # they begin with the others, after another row that tells their end
        waits = self._mask_of(ended)
        self._lost = {**{env: obs for env, obs in last.items() if not waits[env]}, **self._lost}
        self._refused[[*last]], self._needs_check = False, True
        if self._mode == "next_step":
            self._begun_next |= waits
        elif len(ended):
            self._refused, self._why = self._refused | waits, ENDED

    def state_of(self, local: int, verify: bool) -> EnvState:
        """Return the state of an env, if the host has states."""
        slot, ended = self.first + local, self._refused[local] and self._why == ENDED
        if verify:
            raise StateError(slot, f"env {slot} is part of a batched env, beside which no other can step: no verify")
        if (self._refused[local] and not ended) or local in self._lost or self._begun_next[local]:
            raise StateError(slot, f"env {slot} is in no episode to go on with: reset([{slot}]) it first")
        waits = self._mode == "next_step" and local in self._ended
        self._write_parts()
        return self._states.read(self._host, local, ENDED if ended or waits else STEPPING)

    def _put(self, states: dict[int, EnvState]) -> Columns:
        """Put envs into states, in the place of a reset."""
        phases, infos = self._states.write(self._host, states)
        ended = [local for local, phase in phases.items() if phase == ENDED]
        self._begin_anew(self._mask_of(np.array([*states])))
        if self._mode == "next_step":
            self._ended, self._needs_check = np.union1d(self._ended, np.array(ended, np.int64)), True
        elif ended:
            self._refused[ended], self._why, self._needs_check = True, ENDED, True
        return infos

    def note_call(self, local: int, function: Any, args: tuple[Any, ...] = (), *, succeeded: bool = True) -> None:
        """Do nothing: no episode of it is replayed."""

    def close_spares(self, grace: float) -> None:
        """Do nothing: it has none."""

    def renew(self, local: int, *, begun: bool = False) -> None:
        """Do nothing: the host is asked for its `step` at each step."""

    def reset_some(self, some: Slots, given: ResetArguments) -> tuple[int, RowsBody | None]:
        """Reset envs for the caller, by slot with the seed and the options of each; their rows are first ones."""
        return len(some), self._reset_rows(some, given)

    def _reset_rows(self, some: Slots, given: ResetArguments) -> RowsBody | None:
        mask = self._mask_of(np.array(some))
        each: dict[int, Any] = {local: given.of(self.first + local)[1] for local in some if given.each_options}
        states = {local: state for local, state in each.items() if isinstance(state, EnvState)}  # all or none
        others_wait = (self._begun_next & ~mask).any() or not mask[[*self._lost]].all()  # for a reset, which is of all
        if not (mask.all() or self._host.takes_masks or (states and not others_wait)):
            return RowsBody(self._failures.reset_together(some, self._host.env))
        try:
            self._write_parts()  # over which the new rows go
            infos = self._put(states) if states else self._reset(mask, given)
            left = self._attributes.store(self._attributes.read(), mask)
            first = {**infos, **self._attributes.store_first(mask)}
            if self._lost or self._begun_next.any():
                self._fresh = merge_disjoint(select_rows(self._fresh, ~mask), first)
        except BaseException as exc:
            return self._fail_all("reset", exc, some)
        self._rewards[mask], self._flags[mask], self.flags.some = 0.0, FIRST, True
        body = RowsBody([], columns=({**infos, **left}, first))
        body = self._writer.with_objects(body, [self.first + local for local in some]) or body
        found = body.spread(self.first, some)
        return self._with_forms(found if found.extras or found.objects else None)

    def try_reset(self, local: int) -> FirstRow:
        """Refuse: there is no async mode for batched envs."""
        raise VecEnvError(f"env {self.first + local} is part of a batched env")

    def _reset(self, mask: Mask, given: ResetArguments = NONE_GIVEN) -> Columns:
        """Reset the envs of `mask`, write their observations, and return their infos."""
        infos = self._resets.begin(mask, given, self._lose_others)
        self._begin_anew(mask)
        return self._attributes.without(infos)

    def _begin_anew(self, mask: Mask) -> None:
        self._lost = {local: row for local, row in self._lost.items() if not mask[local]}
        self._ended = self._ended[~mask[self._ended]]
        self._begun_next = self._begun_next & ~mask
        self._refused &= ~mask

    def _use(self, host: BatchedHost) -> None:
        self._host = self._attributes.host = host

    # Failures

    def _lose(self, whose: Mask, doing: str, exc: BaseException) -> None:
        """Let an exception of the host end the episodes of these envs. Raise it if that is not what it does."""
        self._loss = ERROR, self._failures.counted(doing, exc)
        rows = self._batch.observations
        last = {env: rows.row(self.first + env) for env in np.flatnonzero(whose).tolist()}
        ended = whose[self._ended]
        self._end(last, self._ended[ended] if self._mode == "next_step" else _NONE)
        self._ended = self._ended[~ended]

    def _lose_others(self, some: Mask, exc: BaseException) -> None:
        """Let an exception of the reset of `some` envs end the episodes of the others."""
        self._lose(~some & ~self._refused & ~self._begun_next, "reset", exc)

    def _refuse(self) -> RowsBody:
        """Refuse a step since some envs need a reset; nothing else changes."""
        env = int(np.flatnonzero(self._refused)[0])
        return RowsBody(self._failures.reset_needed(env, self._why, apart=self._host.takes_masks))

    def _fail_all(self, doing: str, exc: BaseException, asked: Sequence[int] | None = None) -> RowsBody:
        """Note an exception of the host, after which all its envs need a reset; tell those that were `asked` so."""
        if not isinstance(exc, ENV_ERRORS):
            raise_or_defer(exc, self.deferred, remote=self._remote)
        self._refused[:], self._why, self._needs_check = True, FAILED, True
        self._ended, self._begun_next, self._lost = _NONE, self._begun_next & False, {}
        asked = self.all if asked is None else asked
        self._flags[list(asked)], self.flags.some = 0, True  # the others' rows may not have been received
        return RowsBody(self._failures.raised(doing, exc, asked))

    def fail(self, shard: Sequence[int], why: RemoteFailure) -> list[RowExtras]:
        """Fail envs for a reason from outside; the whole host needs a reset then."""
        self._refused[:], self._why, self._needs_check = True, FAILED, True
        self._flags[list(shard)], self.flags.some = 0, True
        self.info_writer.report_again()
        return self._failures.told(shard, why)

    # The envs

    def targets(self, some: Sequence[int]) -> Sequence[tuple[Sequence[Any], int]]:
        """Return what stands for these envs while one function is run on them."""
        return [([part], 0) for part in self._host.parts(some)]

    def owned(self) -> dict[int, Any]:
        """Return what has to be closed, by the env that it belongs to."""
        return {0: self._host}

    def show_envs(self) -> list[Any]:
        """Return the list of the envs itself. AttributeError if the batched env has none here."""
        return self._host.envs_here()
