"""Stepping one batched env in a worker, and writing its rows as blocks: what `EnvShard` is for a list of envs."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vecenvs.batch.batch_columns import FIRST, TERMINATED, TRUNCATED, BatchColumns, Specs
from vecenvs.batch.info_batches import Columns, InfoColumn, merged, parts
from vecenvs.batch.values import copy_containers
from vecenvs.errors import ResetNeededError, VecEnvError, describe_indices
from vecenvs.transport.protocol import RemoteFailure, RowExtras, RowsBody, safe_text
from vecenvs.worker.batched_host import BatchedHost, HostPart
from vecenvs.worker.block_writer import BlockWriter, Mask, Rows
from vecenvs.worker.env_shard import ENV_ERRORS

_BROKEN_OFF = VecEnvError("ended by an exception that was not the env's (a KeyboardInterrupt, say)")
_NONE: Rows = np.zeros(0, np.int64)
_FINAL_NAMES = ("final_obs", "final_observation")
_STATISTICS = {"r", "l", "t"}  # the keys that RecordEpisodeStatistics writes, under a name of the user's choice


class BatchedShard:
    """The envs of one host. A host is stepped whole: its envs fail together, and a step writes all of their rows.

    The shard is its own `flags` and `autoreset`: `some` tells whether a row has flags.
    """

    def __init__(
        self, envs: Sequence[HostPart], first: int, batch: BatchColumns, autoreset: str, *, remote: bool
    ) -> None:
        self.envs: list[Any] = list(envs)
        self.first = first
        self.all = range(len(envs))
        self.batched = self.all
        self.part_of = dict.fromkeys(self.all, self.all)
        self.done: Sequence[Any] = ()
        self.unsettled: list[int | BaseException] = []
        self.some = False
        self._host: BatchedHost = envs[0].host
        self._mode = autoreset
        self._batch = batch
        self._remote = remote
        self._slots = slice(first, first + len(envs))
        self._writer = BlockWriter(batch, first, len(envs))
        self._columns = batch.observations.arrays
        self._rewards = batch.rewards[self._slots]
        self._flags = batch.flags[self._slots]
        self._reading = batch.info_attrs
        self._number = -1
        self._body: Any = None  # of the last step of all envs: the body of its answer, or an exception
        self._ended = _NONE  # whose episodes have ended in the last step
        self._refused: Mask = np.ones(len(envs), bool)  # who need a reset
        self._begun_next: Mask = np.zeros(len(envs), bool)  # next_step: whose lost episodes a reset follows
        self._why = "has not been reset"
        self._lost: dict[int, Any] = {}  # env -> the last row of its episode, which was lost with another worker
        self._held: dict[int, tuple[Any, Any]] = {}  # seeds and options for an env's next reset

    @property
    def flags(self) -> BatchedShard:
        return self

    @property
    def autoreset(self) -> BatchedShard:
        return self

    def read_actions(self) -> Sequence[Any]:
        """Return nothing: the host takes its actions as a block of the columns."""
        return ()

    # Stepping

    def step_all(self, number: int, actions: Sequence[Any]) -> bool:
        """Step the host for command `number`: see `EnvShard.step_all`."""
        self._number, self._body = number, _BROKEN_OFF
        try:
            self._body = self._step()
        except BaseException as exc:
            self._body = exc
        return self._body is None and not self.some

    def has_begun(self, number: int) -> bool:
        """Tell whether `step_all` was called for this command."""
        return self._number == number

    def end_step(self) -> RowsBody | None:
        """Return what there is besides the columns of the last `step_all`."""
        body = self._body
        if isinstance(body, BaseException):
            return self._fail_all("step", body)
        rows: RowsBody | None = body
        return rows

    def step_some(self, some: Sequence[int], actions: Any) -> RowsBody | None:
        """Step the host for a command about its envs, all of them; what rows have besides columns are extras."""
        self.step_all(self._number, ())
        body = self.end_step()
        return body if body is None or body.columns is None else self._writer.with_extras(some, body)

    def _step(self) -> RowsBody | None:
        self.some = False
        self._flags[:] = 0
        if self._lost:
            return self._end_lost_episodes()
        if self._begun_next.any():
            return self._begin_after_loss()
        if self._refused.any():
            return self._refuse()
        obs, rewards, terminated, truncated, infos = self._host.step(self._writer.actions())
        self._writer.write(obs)
        self._rewards[:] = self._writer.checked(rewards, "rewards", "biuf")
        terminated = self._writer.checked(terminated, "terminated", "biu")
        truncated = self._writer.checked(truncated, "truncated", "biu")
        ended = np.flatnonzero(terminated | truncated)
        if self._reading:  # an attribute has precedence
            infos = {name: column for name, column in infos.items() if name not in self._reading}
        began = self._ended if self._mode == "next_step" else _NONE
        self._ended = ended
        if not (infos or self._reading or len(ended) or len(began)):
            return self._writer.with_objects(None)
        flags = np.zeros(len(self.all), np.uint8)
        flags[ended] = (terminated[ended] != 0) * np.uint8(TERMINATED) | (truncated[ended] != 0) * np.uint8(TRUNCATED)
        return self._end_episodes(flags, ended, began, infos)

    def _end_episodes(self, flags: NDArray[np.uint8], ended: Rows, began: Rows, infos: Columns) -> RowsBody | None:
        """Write flags and terminal observations, and reset what the mode says; return the body of the answer."""
        resets: Columns = {}
        attributes = self._attributes()  # before a reset, unless the host has done that itself
        if len(ended) and self._mode == self._host.autoreset == "same_step":
            infos, resets = self._split(infos, ended, flags)
            began = ended
        elif len(ended):
            slots = ended + self.first
            self._writer.keep_final(tuple(column[slots] for column in self._columns), ended, infos, flags)
        if self._mode == "same_step" != self._host.autoreset and len(ended):
            resets, began = self._reset(self._mask(ended)), ended
        elif self._mode == "disabled" and len(ended):
            self._refused, self._why = self._mask(ended), "has ended its episode"
        elif self._mode == "next_step" and len(began):
            self._rewards[began] = 0.0
            resets = parts(infos, self._mask(began)) if infos else {}
        if len(began):
            flags[began] |= FIRST
            if self._reading:
                resets.update(self._first_attributes(self._mask(began)))
        infos.update(self._writer.put(self._batch.info, attributes))
        self._flags[:] = flags
        self.some = bool(len(ended) or len(began))
        return self._writer.with_objects(RowsBody([], columns=(infos, resets)) if infos or resets else None)

    def _mask(self, rows: Rows) -> Mask:
        mask = np.zeros(len(self.all), bool)
        mask[rows] = True
        return mask

    def _split(self, infos: Columns, rows: Rows, flags: NDArray[np.uint8]) -> tuple[Columns, Columns]:
        """Take the last observations and infos of ended episodes out of infos, which have those of new ones beside."""
        done = self._mask(rows)
        finals = next((column for name in _FINAL_NAMES if (column := infos.pop(name, None)) is not None), None)
        last = infos.pop("final_info", None)
        statistics = {name: column for name, column in infos.items() if _is_statistics(column)}
        resets = parts({name: column for name, column in infos.items() if name not in statistics}, done)
        kept = parts({name: column for name, column in infos.items() if name not in statistics}, ~done)
        for name, column in {**(last.values if last is not None else {}), **statistics}.items():
            kept[name] = column if name not in kept else merged(kept[name], column)
        if finals is None:
            if self._host.keeps_finals:
                raise VecEnvError(f"the batched env's infos have no 'final_obs' for env {self.first + int(rows[0])}")
        else:
            self._writer.keep_final([finals.value(row) for row in rows.tolist()], rows, kept, flags)
        return kept, resets

    def _end_lost_episodes(self) -> RowsBody | None:
        """Return truncated rows for episodes that were lost with another worker; begin the next ones in same_step."""
        lost, self._lost = self._lost, {}
        rows = np.array(sorted(lost))
        ended = np.zeros(len(self.all), bool)
        ended[rows] = True
        flags = ended * np.uint8(TRUNCATED)
        infos: Columns = {"worker_restarted": InfoColumn(rows, np.ones(len(rows), bool))}
        self._writer.keep_final([lost[row] for row in rows.tolist()], rows, infos, flags)
        self._rewards[:] = 0.0
        resets: Columns = {}
        if self._mode == "same_step":
            resets = {**self._reset(ended), **self._first_attributes(ended)}
            flags[rows] |= FIRST
        else:
            for row in rows.tolist():
                self._batch.observations.store_row(self.first + row, lost[row])
            if self._mode == "next_step":
                self._begun_next = ended
            else:
                self._refused, self._why = self._refused | ended, "has ended its episode"
        self._flags[:] = flags
        self.some = True
        return self._writer.with_objects(RowsBody([], columns=(infos, resets)))

    def _begin_after_loss(self) -> RowsBody | None:
        """Return the first rows of the episodes after lost ones, in next_step mode."""
        began = self._begun_next
        infos = self._reset(began)
        if self._refused.any():
            return self._refuse()
        self._rewards[:] = 0.0
        self._flags[:] = began * np.uint8(FIRST)
        self.some = True
        attributes = self._first_attributes(began)
        infos.update(self._writer.put(self._batch.info, self._attributes()))
        return self._writer.with_objects(RowsBody([], columns=(infos, {**infos, **attributes})))

    # Attributes

    def _attributes(self) -> Columns:
        return {name: InfoColumn(None, _copy(self._host.read_all(name))) for name in self._reading}

    def _first_attributes(self, mask: Mask) -> Columns:
        """Write the attributes after a reset to their columns; return those that have none, of the envs of `mask`."""
        return parts(self._writer.put(self._batch.first_info, self._attributes(), mask), mask)

    def open_info(self, specs: Specs) -> None:
        """Write attributes of these types to columns from now on."""
        self._batch.open_info(specs)

    # Resets

    def hold(self, local: int, seed: Any, options: Any) -> None:
        """Keep seed and options for the next reset of an env which is not the batched env's own."""
        before = self._held.get(local, (None, None))
        self._held[local] = (before[0] if seed is None else seed, before[1] if options is None else options)

    def resume(self, lost: dict[int, tuple[Any, int | None]]) -> None:
        """Take over slots whose episodes ended with another worker: their next step returns a truncated row."""
        for slot, (row, seed) in lost.items():
            self._lost[slot - self.first] = row
            self.hold(slot - self.first, seed, None)

    def renew(self, local: int, *, begun: bool = False) -> None:
        """Do nothing: the host is asked for its `step` at each step."""

    def reset_some(self, some: Sequence[int], given: dict[int, tuple[Any, Any]]) -> RowsBody | None:
        """Reset envs for the caller, by slot with the seed and the options of each; their rows are first ones."""
        mask = np.zeros(len(self.all), bool)
        mask[list(some)] = True
        if not (mask.all() or self._host.takes_masks):
            kind = type(self._host.env).__name__
            problem = VecEnvError(f"{kind} resets all its envs at once: call reset() without indices")
            why = RemoteFailure.capture(self.first, "reset", problem, portable=self._remote)
            return RowsBody([RowExtras(self.first + k, {}, None, why._replace(slot=self.first + k)) for k in some])
        try:
            infos = self._reset(mask, {slot - self.first: each for slot, each in given.items()})
            left = self._writer.put(self._batch.info, self._attributes())
            first = {**infos, **self._first_attributes(mask)}
        except BaseException as exc:
            failed = self._fail_all("reset", exc)
            wanted = {self.first + local for local in some}
            return failed._replace(extras=[extra for extra in failed.extras if extra.slot in wanted])
        self._rewards[mask] = 0.0
        self._flags[mask] = FIRST
        self.some = True
        body = RowsBody([], columns=({**infos, **left}, first))
        found = self._writer.with_extras(
            some, self._writer.with_objects(body, [self.first + local for local in some]) or body
        )
        return found if found.extras or found.objects else None

    def try_reset(self, local: int, given: tuple[Any, Any] | None = None) -> Any:
        """Refuse: no env of a host is reset by itself (see `reset_some`), and there is no async mode for hosts."""
        raise VecEnvError(f"env {self.first + local} is part of a batched env")

    def _reset(self, mask: Mask, given: dict[int, tuple[Any, Any]] | None = None) -> Columns:
        """Reset the envs of `mask`, write their observations, and return their infos."""
        chosen = np.flatnonzero(mask).tolist()
        seeds: list[int | None] = [None] * len(mask)
        options: list[Any] = []
        for local in chosen:
            held, asked = self._held.get(local, (None, None)), (given or {}).get(local, (None, None))
            seeds[local] = held[0] if asked[0] is None else asked[0]
            options.append(held[1] if asked[1] is None else asked[1])
        if any(each is not options[0] and each != options[0] for each in options):
            raise VecEnvError("a batched env takes the same options for all envs that are reset at once")
        whole = bool(mask.all())
        common = None if options[0] is None else copy_containers(dict(options[0]))
        obs, infos = self._host.reset(None if whole else mask, seeds, common)
        self._writer.write(obs, None if whole else mask)
        for local in chosen:
            self._held.pop(local, None)
            self._lost.pop(local, None)
        infos = {name: column for name, column in infos.items() if name not in self._reading}
        self._ended = self._ended[~mask[self._ended]]
        self._begun_next = self._begun_next & ~mask
        self._refused &= ~mask
        return infos if whole else parts(infos, mask)

    # Failures

    def _refuse(self) -> RowsBody:
        """Refuse a step since some envs need a reset; nothing else changes."""
        index = self.first + int(np.flatnonzero(self._refused)[0])
        problem = ResetNeededError(f"env {index} {self._why}", f"reset([{index}]) it first")
        return RowsBody(self._extras_of("step", problem))

    def _fail_all(self, doing: str, exc: BaseException) -> RowsBody:
        """Note an exception of the host, after which all its envs need a reset."""
        if not isinstance(exc, ENV_ERRORS):
            if self._remote and threading.current_thread() is threading.main_thread():
                raise exc
            self.unsettled.append(exc)
        self._refused[:], self._why = True, "failed before"
        self._ended, self._begun_next, self._lost = _NONE, self._begun_next & False, {}
        self._flags[:] = 0
        self.some = True
        return RowsBody(self._extras_of(doing, exc))

    def _extras_of(self, doing: str, exc: BaseException) -> list[RowExtras]:
        slots = range(self.first, self.first + len(self.all))
        why = RemoteFailure.capture(self.first, doing, exc, portable=self._remote)
        if not isinstance(exc, VecEnvError):
            who = f"the batched env of envs {describe_indices(slots)}"
            why = why._replace(summary=f"{who} raised {type(exc).__name__} in {doing}: {safe_text(exc)}")
        return [RowExtras(slot, {}, None, why._replace(slot=slot)) for slot in slots]

    def fail(self, shard: Sequence[int], why: RemoteFailure) -> list[RowExtras]:
        """Fail envs for a reason from outside; the whole host needs a reset then."""
        self._refused[:], self._why = True, "failed before"
        self._flags[list(shard)] = 0
        self.some = True
        return [RowExtras(self.first + k, {}, None, why._replace(slot=self.first + k)) for k in shard]

    def show_envs(self) -> list[Any]:
        """Return what stands for the single envs. Exchanging one has no effect."""
        return self.envs


def _is_statistics(column: InfoColumn) -> bool:
    return isinstance(column.values, dict) and column.values.keys() == _STATISTICS


def _copy(values: Any) -> Any:
    return values.copy() if isinstance(values, np.ndarray) else [copy_containers(value) for value in values]
