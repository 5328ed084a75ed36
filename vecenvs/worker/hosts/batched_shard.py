"""Stepping one batched env in a worker, and writing its rows as blocks: what `EnvShard` is for a list of envs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vecenvs._native.forks import run
from vecenvs.batch.batch_columns import FIRST, LAST, TRUNCATED, BatchColumns
from vecenvs.batch.info_batches import Columns, InfoColumn, merge_disjoint, select_rows
from vecenvs.batch.values import copy_containers
from vecenvs.errors import RepeatedEnvError, ResetNeededError, SpaceMismatch, StateError, VecEnvError, describe_indices
from vecenvs.transport.protocol import RemoteFailure, RowExtras, RowsBody, Slots, safe_text
from vecenvs.transport.reset_arguments import NONE_GIVEN, ResetArguments
from vecenvs.worker.autoreset import ERROR, RowFlags
from vecenvs.worker.env_errors import ENV_ERRORS, EnvErrors
from vecenvs.worker.env_shard import BROKEN_OFF, FirstRow, raise_or_defer
from vecenvs.worker.final_infos import mask_of, split_infos
from vecenvs.worker.hosts.batched_host import BatchedHost
from vecenvs.worker.hosts.block_attributes import BlockAttributes
from vecenvs.worker.hosts.block_writer import BlockWriter, Mask, RowIndex
from vecenvs.worker.hosts.next_resets import NextResets
from vecenvs.worker.rules import EpisodeSeeds, Rules

# Of ours, and what another env of the same function would raise again.
_AT_ONCE = (VecEnvError, ResetNeededError, SpaceMismatch, RepeatedEnvError)

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
        self._seeds = None if rules.root is None else EpisodeSeeds(rules.root, first)
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
        self._who = f"the batched env of envs {describe_indices(range(self._slots.start, self._slots.stop))}"
        if errors is not None:
            errors.who = self._who
        # env -> the last row of its episode, which was lost with another worker or an error; and what its info says.
        self._lost: dict[int, Any] = {}
        self._loss: tuple[str, Any] = "worker_restarted", True
        self._fresh: Columns = {}  # infos of the resets of other envs meanwhile: these repeat their first rows
        self._held = NextResets(first)
        self.hold = self._held.hold  # seed and options for an env's next reset which is not the batched env's own

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
        if self._parts is not None:
            self._writer.write(self._parts)
            self._parts = None
        return self._with_forms(self._writer.with_objects(body))

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
            if self._lost:
                return self._end_lost_episodes()
            if self._begun_next.any():
                return self._begin_after_loss()
            self._needs_check, self._fresh = False, {}
        writer = self._writer
        try:
            obs, rewards, terminated, truncated, infos = run(self._host.step, writer.actions())
        except ENV_ERRORS as exc:
            self._lose(np.ones(len(self.all), bool), "step", exc)
            return self._end_lost_episodes()
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
                self._refused, self._why, self._needs_check = self._mask_of(ended), "has ended its episode", True
            resets = select_rows(infos, self._mask_of(began)) if infos and len(began) else {}
        if self._reading:
            if len(began):
                resets = {**resets, **self._attributes.store_first(self._mask_of(began))}
            infos.update(self._attributes.store(attributes))
        return RowsBody([], columns=(infos, resets)) if infos or resets else None

    def _begin_in_same_step(self, obs: Sequence[Any], ended: RowIndex, infos: Columns) -> tuple[Columns, Columns]:
        """Keep the last observations of ended episodes, reset if the host has not; return infos and those of resets."""
        finals: Any
        resets: Columns
        if self._host.autoreset == "same_step":
            by_gymnasium = self._host.keeps_finals
            infos, resets, finals = split_infos(infos, ended, len(self.all), as_gymnasium=by_gymnasium)
            if finals is not None:
                self._writer.keep_final(finals, ended, infos)
            elif by_gymnasium:
                first = self.first + int(ended[0])
                raise VecEnvError(f"the batched env's infos have no 'final_obs' for env {first}")
            return infos, resets
        finals = tuple(_rows_of(part, ended) for part in obs)
        self._writer.keep_final(finals, ended, infos)
        self._writer.write(obs)
        self._parts = None
        resets = self._reset(self._mask_of(ended))
        self._fresh = resets if self._lost else {}
        return infos, resets

    def _mask_of(self, rows: RowIndex) -> Mask:
        return mask_of(rows, len(self.all))

    def _end_lost_episodes(self) -> RowsBody:
        """Return truncated rows for episodes that were lost with another worker; begin the next ones in same_step.

        Envs that have been reset since then cannot be stepped without these: they repeat their first rows.
        """
        lost, self._lost = self._lost, {}
        ended = self._mask_of(rows := np.array(sorted(lost)))
        self._rewards[:], self.flags.some = 0.0, True
        self._flags[:] = np.where(ended, np.uint8(TRUNCATED), np.uint8(FIRST))
        infos = {**self._fresh, **self._attributes.store(self._attributes.read_new())}
        infos[self._loss[0]] = InfoColumn(rows, [self._loss[1]] * len(rows))
        self._writer.keep_final([lost[row] for row in rows.tolist()], rows, infos)
        resets = self._fresh
        if self._mode == "same_step":
            resets = merge_disjoint(resets, {**self._reset(ended), **self._attributes.store_first(ended)})
            self._flags[rows] |= FIRST
        else:
            for row in rows.tolist():
                self._batch.observations.store_row(self.first + row, lost[row])
            if self._mode == "next_step":
                self._begun_next = ended
            else:
                self._refused, self._why = ended, "has ended its episode"
        return RowsBody([], columns=(infos, resets))

    def _begin_after_loss(self) -> RowsBody:
        """Return the first rows of the episodes after lost ones, in next_step mode."""
        began = self._begun_next
        infos = self._reset(began)
        resets = merge_disjoint(self._fresh, {**infos, **self._attributes.store_first(began)})
        infos = {**merge_disjoint(self._fresh, infos), **self._attributes.store(self._attributes.read())}
        self._rewards[:], self._flags[:], self.flags.some = 0.0, FIRST, True
        return RowsBody([], columns=(infos, resets))

    # Resets

    def resume(self, lost: dict[int, tuple[Any, Any]]) -> None:
        """Take over slots whose episodes ended with another worker: see `Autoreset.resume`."""
        self._needs_check, self._loss = True, ("worker_restarted", True)
        for slot, (row, seed) in lost.items():
            self._lost[slot - self.first] = row
            self._refused[slot - self.first] = False
            if self._seeds is None:
                self.hold(slot - self.first, "seed", seed)
            else:
                self._seeds.put(slot - self.first, seed)

    def state_of(self, local: int, verify: bool) -> Any:
        """Refuse: the env is part of a batched one."""
        slot, kind = self.first + local, type(self._host.env).__name__
        raise StateError(slot, f"env {slot} is part of a {kind}: only the states of single envs can be read")

    def note_call(self, local: int, function: Any) -> None:
        """Do nothing: no episode of it is replayed."""

    def renew(self, local: int, *, begun: bool = False) -> None:
        """Do nothing: the host is asked for its `step` at each step."""

    def reset_some(self, some: Slots, given: ResetArguments) -> tuple[int, RowsBody | None]:
        """Reset envs for the caller, by slot with the seed and the options of each; their rows are first ones."""
        return len(some), self._reset_rows(some, given)

    def _reset_rows(self, some: Slots, given: ResetArguments) -> RowsBody | None:
        mask = self._mask_of(np.array(some))
        if not (mask.all() or self._host.takes_masks):
            kind = type(self._host.env).__name__
            problem = VecEnvError(f"{kind} resets all its envs at once: call reset() without indices")
            why = RemoteFailure.capture(self.first, "reset", problem, portable=self._remote)
            return RowsBody(self._failed(some, why))
        try:
            infos = self._reset(mask, given)
            left = self._attributes.store(self._attributes.read())
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
        infos: Columns = {}
        for some, seeds, options in self._held.arguments(mask, given, apart=self._host.takes_masks):
            part = None if some.all() else some
            streams = {}
            if self._seeds is not None:
                streams = {env: self._seeds.of(env, seeds[env]) for env in np.flatnonzero(some).tolist()}
                seeds = [
                    stream and stream.seed(self.first + env) for env, stream in ((e, streams.get(e)) for e in self.all)
                ]
            obs, own = self._reset_host(some, seeds, options)
            self._writer.write(self._writer.parts(obs), part)
            self._held.forget(some)
            own = own if part is None else select_rows(own, part)
            if self._seeds is not None:
                begun = [self._seeds.begin(env, stream) for env, stream in streams.items()]
                rows = np.array([*streams])
                own.update((key, InfoColumn(rows, [each[key] for each in begun])) for key in begun[0])
            infos = merge_disjoint(infos, own)
        self._lost = {local: row for local, row in self._lost.items() if not mask[local]}
        self._ended = self._ended[~mask[self._ended]]
        self._begun_next = self._begun_next & ~mask
        self._refused &= ~mask
        return self._attributes.without(infos)

    def _reset_host(self, some: Mask, seeds: Sequence[int | None], options: Any) -> Any:
        """Reset these envs of the host. With `on_error` try again with a new one, whose other episodes are lost."""
        part, errors = None if some.all() else some, self._errors
        if errors is None:
            return run(self._host.reset, part, seeds, options)
        while True:
            try:
                if 0 in errors.broken:
                    errors.make_anew(hosts := [self._host], 0)
                    self._host = self._attributes.host = hosts[0]
                    if all(seed is None for seed in seeds) and (first := errors.other_seed(0)) is not None:
                        seeds = range(first // 2, first // 2 + len(some))
                errors.seeded(0, seeds[int(some.argmax())])
                found = run(self._host.reset, part, seeds, options)
            except ENV_ERRORS as exc:
                self._lose(~some & ~self._refused & ~self._begun_next, "reset", exc)
                errors.pause(0)
            else:
                errors.was_reset(0)
                return found

    # Failures

    def _lose(self, whose: Mask, doing: str, exc: BaseException) -> None:
        """Let an exception of the host end the episodes of these envs. Raise it if that is not what it does."""
        if self._errors is None or type(exc) in _AT_ONCE:
            raise exc
        self._loss = ERROR, self._errors.happened(0, doing, exc)
        rows = self._batch.observations
        self._lost.update((env, rows.row(self.first + env)) for env in np.flatnonzero(whose).tolist())
        self._ended, self._needs_check = self._ended[~whose[self._ended]], True

    def _refuse(self) -> RowsBody:
        """Refuse a step since some envs need a reset; nothing else changes."""
        index = self.first + int(np.flatnonzero(self._refused)[0])
        whole = f"reset(range({self._slots.start}, {self._slots.stop})) all envs of its batch first"
        remedy = f"reset([{index}]) it first" if self._host.takes_masks else whole
        problem = ResetNeededError(f"env {index} {self._why}", remedy)
        return RowsBody(self._extras_of("step", problem, self.all))

    def _fail_all(self, doing: str, exc: BaseException, asked: Sequence[int] | None = None) -> RowsBody:
        """Note an exception of the host, after which all its envs need a reset; tell those that were `asked` so."""
        if not isinstance(exc, ENV_ERRORS):
            raise_or_defer(exc, self.deferred, remote=self._remote)
        self._refused[:], self._why, self._needs_check = True, "failed before", True
        self._ended, self._begun_next, self._lost = _NONE, self._begun_next & False, {}
        self._flags[:], self.flags.some = 0, True
        return RowsBody(self._extras_of(doing, exc, self.all if asked is None else asked))

    def _extras_of(self, doing: str, exc: BaseException, some: Sequence[int]) -> list[RowExtras]:
        why = RemoteFailure.capture(self.first, doing, exc, portable=self._remote)
        if type(exc) not in (VecEnvError, ResetNeededError):  # those are not of a VecEnv in there
            spent = self._errors.spent(0) if self._errors is not None else ""
            told = f"{self._who} raised {type(exc).__name__} in {doing}: {safe_text(exc)}{spent and '. '}{spent}"
            why = why._replace(summary=told)
        return self._failed(some, why)

    def _failed(self, some: Sequence[int], why: RemoteFailure) -> list[RowExtras]:
        return [RowExtras(self.first + env, {}, None, why._replace(slot=self.first + env)) for env in some]

    def fail(self, shard: Sequence[int], why: RemoteFailure) -> list[RowExtras]:
        """Fail envs for a reason from outside; the whole host needs a reset then."""
        self._refused[:], self._why, self._needs_check = True, "failed before", True
        self._flags[list(shard)], self.flags.some = 0, True
        self.info_writer.report_again()
        return self._failed(shard, why)

    # The envs

    def targets(self, some: Sequence[int]) -> Sequence[Any]:
        """Return what stands for these envs while one function is run on them."""
        return self._host.parts(some)

    def owned(self) -> dict[int, Any]:
        """Return what has to be closed, by the env that it belongs to."""
        return {0: self._host}

    def show_envs(self) -> list[Any]:
        """Return the list of the envs itself. AttributeError if the batched env has none here."""
        return self._host.envs_here()


def _rows_of(part: Any, rows: RowIndex) -> Any:
    return part[rows] if isinstance(part, np.ndarray) else [copy_containers(part[row]) for row in rows.tolist()]
