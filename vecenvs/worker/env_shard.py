"""The only code that steps and resets envs, the same for every engine.

An `EnvShard` has the envs of one worker, a *shard*: their slots are first, first + 1, ... It writes rows into the
batch's columns, and gives what a row has besides.

What happens next to an env is held as one callable per slot, `_act[local]`: usually the env's own `step` (`direct.py`);
after an episode's end, or an error, what the autoreset mode puts in its place. So the loop over the envs asks no
questions.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from vecenvs.batch.batch_columns import FINAL, FIRST, TERMINATED, TRUNCATED, BatchColumns, Specs
from vecenvs.batch.infos import TRUNCATED_KEY, InfoPacker, own_complete
from vecenvs.batch.values import copy_containers, shown
from vecenvs.errors import ResetNeededError
from vecenvs.transport.protocol import RemoteFailure, RowExtras, RowsBody
from vecenvs.worker.direct import direct_step
from vecenvs.worker.info_channel import InfoReader
from vecenvs.worker.old_gym import remedy
from vecenvs.worker.stepping import StepResult, step_envs

AUTORESET_MODES = ("same_step", "next_step", "async", "disabled")
ENV_ERRORS = (Exception, SystemExit)  # an env that calls sys.exit() has failed; it does not end the program
RESET_FIRST = "reset([{}]) it first"  # views say it in words of their own: `EnvError.tell_reset`
INFO_BODIES = (bytes, list)  # what INFO_ROWS can have, from a worker elsewhere and in process

ResetOutcome = RemoteFailure | tuple[Any, dict[str, Any]]

_DICT = {dict}
_ALL = slice(None)


class EnvShard:
    """A shard of envs and their rows.

    `remote` says that what is given is to be pickled: then exceptions and infos are made fit for it. In process, infos
    are copied instead, since the env may go on changing them. `flagged` tells whether a row of the shard has flags.

    `unsettled` is set when, once the step has been answered, `ended` (async mode) has episodes whose reset is to begin,
    or `interrupt` an exception to raise that is none of an env's: a Ctrl-C.
    """

    def __init__(self, envs: Sequence[Any], first: int, batch: BatchColumns, autoreset: str, *, remote: bool) -> None:
        self.envs = list(envs)
        self.first = first
        self.all = range(len(self.envs))
        self.flagged = False
        self.unsettled = False
        self.done: Sequence[Any] = ()  # one item for each env that has done its part of the command under way
        self.interrupt: BaseException | None = None
        self.ended: list[int] = []
        self._batch = batch
        self._autoreset = autoreset
        self._remote = remote
        count = len(self.envs)
        self._has_objects = batch.observations.layout.has_objects
        self._objects = batch.observations.objects
        self._finals = batch.finals
        self._observations = batch.observations.shard(first, count)
        # What takes numbers only, where an array would take None for NaN and "1.5" for 1.5.
        self._rewards: Any = batch.rewards[first : first + count].data
        self._flags = batch.flags.data[first : first + count]  # an item costs less than numpy takes
        self._no_flags = bytes(count)
        self._act: list[Callable[[Any], StepResult]] = [
            partial(_refuse, first + local, "has not been reset", "call reset() first") for local in self.all
        ]
        self._held: dict[int, dict[str, Any]] = {}  # seeds and options that wait for an env's next reset
        self._reset_infos: dict[int, dict[str, Any]] = {}
        self._packer = InfoPacker(count)
        self._late = False  # whether an env's step is looked up at every step, as the caller may exchange it
        # Where the loop puts observations: at `_where` of each cell. Vectors of numbers are written there and then, by
        # memoryviews, which refuse what is of another dtype or shape; so are large rows.
        self._cells: list[Any] = self._observations.cells() or []
        self._where: Any = _ALL
        self._final_cells: list[Any] = (batch.finals.shard(first, count).cells() if batch.finals else None) or []
        if not self._cells:
            self._collect_observations()
        self._reader = InfoReader(batch.info_attrs, self.envs, first) if batch.info_attrs else None

    # Stepping

    def step(self, shard: range, actions: Sequence[Any], *, pack: bool = False) -> RowsBody | bytes | list[Any] | None:
        """Step some adjacent slots one after another and write their rows. With `pack` infos may travel packed.

        Give what there is besides the rows' columns: the body of ROWS, or of INFO_ROWS.
        """
        if self.flagged:
            self._clear_flags(shard)
        extras: list[RowExtras] = []
        infos: list[tuple[int, dict[str, Any]]] = []
        rewards: list[Any] = []
        self.done = rewards
        acts, cells, where = self._act, self._cells, self._where
        if shard is not self.all:
            acts, cells = acts[shard.start : shard.stop], cells[shard.start : shard.stop]
        while True:
            try:
                step_envs(acts, actions, cells, where, rewards, infos, self._end_episode, self._take_odd, shard.start)
                break
            except BaseException as exc:
                self._fail_at(shard, exc, rewards, infos, extras)
        if where == 0:
            self._write(shard, [cell[0] for cell in cells], extras)
            for cell in cells:
                cell[0] = None  # the env's own: not to be kept alive
        try:
            self._rewards[shard.start : shard.stop] = array("d", rewards)
        except Exception:  # whatever an odd one makes of it
            self._write_odd_rewards(shard, rewards, extras)
        packed = self._take_infos(infos, extras, pack=pack) if infos else None
        if self._reader is not None:
            for local, error in self._reader.collect(shard, extras, self._reset_infos):
                self._fail(local, "step", error, extras)
        if self._reset_infos and self._autoreset != "async":  # there a thread may be about to take its own
            self._add_reset_infos(extras)
        objects = self._objects(self.first + shard.start, len(shard)) if self._has_objects else None
        if type(packed) in INFO_BODIES and not (extras or objects or self.flagged):
            return packed
        return RowsBody(extras, objects, packed) if extras or objects or packed else None

    def _clear_flags(self, shard: range) -> None:
        self.flagged = False  # first of all: the thread of an async reset may set it at any time
        self._flags[shard.start : shard.stop] = bytes(len(shard))
        if shard is not self.all and self._flags != self._no_flags:
            self.flagged = True

    def _fail_at(
        self, shard: range, exc: BaseException, rewards: list[Any], infos: list[Any], extras: list[RowExtras]
    ) -> None:
        """Note an exception of the env at which the loop has stopped; if it is a Ctrl-C, of all that are left."""
        failed = shard[len(rewards) :]
        if isinstance(exc, ENV_ERRORS):
            failed = failed[:1]
        else:
            self._interrupted(exc)
        if infos and infos[-1][0] in failed:
            infos.pop()
        for local in failed:
            row = self._fail(local, "step", exc, extras)
            if self._where == 0:
                self._cells[local][0] = row
            rewards.append(0.0)

    def _interrupted(self, exc: BaseException) -> None:
        """Note what is none of an env's errors. In process, answer first, so that no command stays without one.

        Elsewhere it ends the worker (SIGTERM is made such an exception), and the caller is to see just that. A reset's
        own thread cannot do so: its env has failed, and the worker ends after that.
        """
        if self._remote and threading.current_thread() is threading.main_thread():
            raise exc
        self.interrupt, self.unsettled = exc, True

    def _take_odd(self, local: int, obs: Any) -> None:
        """Write an observation that is not just what its space says. Raises if it cannot be cast."""
        self._batch.observations.store_row(self.first + local, obs)
        self._collect_observations()

    def _collect_observations(self) -> None:
        """Store them when the whole shard is done: what takes any value that can be cast to the space's dtype."""
        self._cells, self._where = [[None] for _ in self.all], 0

    def _take_infos(self, infos: list[tuple[int, dict[str, Any]]], extras: list[RowExtras], *, pack: bool) -> Any:
        """Make the rows' infos fit to travel: all in one if every env has some, else an RowExtras for each that has."""
        if pack and len(infos) == len(self.envs):
            alone = [info for _, info in infos]
            dicts = {*map(type, alone)} == _DICT
            if dicts and self._reader is not None:
                alone = list(map(self._reader.without, alone))
            if dicts and all(alone):
                packed = self._packer.pack(alone) if self._remote else own_complete(alone)
                if packed is not None:
                    return packed
        failed = {extra.slot - self.first for extra in extras if extra.failure is not None}
        for local, info in infos:
            if local in failed:
                continue
            try:
                found = dict(info) if self._reader is None else self._reader.without(dict(info))
                extras.append(RowExtras(self.first + local, found if self._remote else copy_containers(found)))
            except Exception as exc:
                self._fail(local, "step", exc, extras)
        return None

    def _end_episode(
        self, local: int, obs: Any, terminated: Any, truncated: Any, info: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        """Put a final observation aside and do what the mode says; give the row's observation and info."""
        flags = (TERMINATED if terminated else 0) | (TRUNCATED if truncated else 0)
        if info:
            info = copy_containers(info)  # the reset may change it
        if self._finals is not None:
            try:
                self._final_cells[local][_ALL] = obs
            except Exception:  # odd, or not of this kind at all
                self._finals.store_row(self.first + local, obs)
            flags |= FINAL
        else:
            # In the place that it has in every other engine's infos.
            last = self._batch.observations.layout.copied(obs)
            info = {**info, TRUNCATED_KEY: False, "terminal_observation": last}
        if self._autoreset == "same_step":
            if self._reader is not None:
                self._reader.keep(local)
            obs = self._reset(local)
            flags |= FIRST
        elif self._autoreset == "next_step":
            self._act[local] = partial(self._first_step, local)
        elif self._autoreset == "async":
            self._act[local] = partial(_refuse, self.first + local, "is being reset", "wait for its first row")
            self.ended.append(local)
            self.unsettled = True
        else:
            self._act[local] = partial(_refuse, self.first + local, "has ended its episode", RESET_FIRST)
        self._flags[local] = flags
        self.flagged = True
        return obs, info

    def _add_reset_infos(self, extras: list[RowExtras]) -> None:
        """Send the infos of autoresets along with their rows."""
        found = {extra.slot: position for position, extra in enumerate(extras)}
        for local, info in self._reset_infos.items():
            slot = self.first + local
            if slot in found:
                extras[found[slot]] = extras[found[slot]]._replace(reset_info=info)
            else:
                extras.append(RowExtras(slot, {}, info))
        self._reset_infos.clear()

    def _first_step(self, local: int, _: Any) -> StepResult:
        """Stand in for `step` on the step after an episode's end, in next_step mode."""
        obs = self._reset(local)
        self._flags[local] = FIRST
        self.flagged = True
        return obs, 0.0, False, False, self._row_info(self._reset_infos.get(local, {}))

    def _reset(self, local: int, *, asked: bool = False) -> Any:
        """Reset one env with the seed and options that wait for it. Its info, if any, waits in `_reset_infos`.

        As with SB3 and Gymnasium an autoreset names no seed, which some envs look for, and a reset that the caller has
        `asked` for does. Not every env takes options, and with SB3 it need not.
        """
        env = self.envs[local]
        given = {**self._held.get(local, {})}
        if asked:
            given.setdefault("seed", None)
        first = env.reset(**given)
        if not isinstance(first, (tuple, list)):  # it might have two items all the same
            raise TypeError(f"cannot unpack a {type(first).__name__} into obs and info")
        obs, info = first
        self._held.pop(local, None)  # a reset that fails leaves them to the next one
        if info:
            info = dict(info) if self._remote else copy_containers(dict(info))
        if self._reader is not None:
            first_values = self._reader.first(local)
            if info or first_values:
                info = {**self._reader.without(info or {}), **first_values}
        if info:
            self._reset_infos[local] = info
        self._act[local] = self._step_of(local)
        return obs

    def _row_info(self, reset_info: dict[str, Any]) -> dict[str, Any]:
        """A copy of a reset's info for a row: without what the row has in columns."""
        columns = self._batch.info
        return {key: copy_containers(value) for key, value in reset_info.items() if key not in columns}

    def _fail(self, local: int, doing: str, exc: BaseException, extras: list[RowExtras]) -> Any:
        """Note an exception; give the row as it was, for the columns."""
        slot = self.first + local
        self._note_failure(local, self._capture(local, doing, exc), extras)
        return self._batch.observations.rows(slot, 1)[0]

    def _capture(self, local: int, doing: str, exc: BaseException) -> RemoteFailure:
        told = remedy(self.envs[local], exc)
        return RemoteFailure.capture(self.first + local, doing, exc, portable=self._remote, remedy=told)

    def _note_failure(self, local: int, failure: RemoteFailure, extras: list[RowExtras]) -> None:
        slot = self.first + local
        self._act[local] = partial(_refuse, slot, "failed before", RESET_FIRST)
        self._reset_infos.pop(local, None)
        extras[:] = [extra for extra in extras if extra.slot != slot]
        if local in self.ended:
            self.ended.remove(local)
        extras.append(RowExtras(slot, {}, None, failure))
        self._flags[local] = 0

    def fail(self, shard: Sequence[int], why: RemoteFailure) -> list[RowExtras]:
        """Take what no env is known to have done as a failure of all of these; give what tells the caller."""
        extras: list[RowExtras] = []
        for local in shard:
            self._note_failure(local, why._replace(slot=self.first + local), extras)
        return extras

    def _write(self, shard: range, observations: list[Any], extras: list[RowExtras]) -> None:
        columns = self._batch.observations
        try:
            if len(shard) == len(self._act):
                self._observations.store(observations)
            else:
                columns.store(self.first + shard.start, observations)
        except Exception:  # some env's row does not fit its space: find out whose
            for local, obs in zip(shard, observations, strict=True):
                try:
                    columns.store_row(self.first + local, obs)
                except Exception as exc:
                    self._fail(local, "step", exc, extras)

    def _write_odd_rewards(self, shard: range, rewards: list[Any], extras: list[RowExtras]) -> None:
        for local, reward in zip(shard, rewards, strict=True):
            try:
                self._rewards[local] = _number(reward)
            except Exception as exc:
                self._rewards[local] = 0.0
                self._fail(local, f"step (its reward is {shown(reward)})", exc, extras)

    # The envs' own steps

    def show_envs(self) -> list[Any]:
        """Return the list of the envs itself. From now on an env that is put into it, or its `step`, acts at once."""
        self._late = True
        for local in self.all:
            self.renew(local)
        return self.envs

    def renew(self, local: int, *, begun: bool = False) -> None:
        """Look up the env's `step` anew, as a function that was called on the env may have changed it.

        With `begun` an env that must be reset first counts as reset: the caller has done so, or wants it as it is.
        """
        act = self._act[local]
        stands_in = act.func if isinstance(act, partial) else None
        if stands_in not in (_refuse, _lost_step, self._first_step) or (begun and stands_in is _refuse):
            self._act[local] = self._step_of(local)

    def _step_of(self, local: int) -> Callable[[Any], StepResult]:
        return partial(self._late_step, local) if self._late else direct_step(self.envs[local])

    def _late_step(self, local: int, action: Any) -> StepResult:
        if self._reader is not None:
            self._reader.notice(local)
        row: StepResult = self.envs[local].step(action)
        return row

    # Resetting

    def try_reset(self, local: int, *, asked: bool = False) -> ResetOutcome:
        """Reset one env: give its observation and info, or how it has failed."""
        try:
            return self._reset(local, asked=asked), self._reset_infos.pop(local, {})
        except BaseException as exc:
            self._act[local] = partial(_refuse, self.first + local, "failed in reset", RESET_FIRST)
            if not isinstance(exc, ENV_ERRORS):
                self._interrupted(exc)
            return self._capture(local, "reset", exc)

    def first_row(self, local: int, outcome: ResetOutcome) -> RowsBody | None:
        """Write the first row of an episode, with reward 0; give the body of its ROW."""
        slot = self.first + local
        self._flags[local] = FIRST
        self.flagged = True
        self._rewards[local] = 0.0
        extras: list[RowExtras] = []
        if isinstance(outcome, RemoteFailure):
            self._flags[local] = 0
            extras.append(RowExtras(slot, {}, None, outcome))
        else:
            obs, info = outcome
            try:
                self._batch.observations.store_row(slot, obs)
                if info:
                    extras.append(RowExtras(slot, self._row_info(info), info))
                if self._batch.info and self._reader is not None:
                    self._reader.collect([local], extras, {})
            except Exception as exc:
                self._fail(local, "reset", exc, extras)
        objects = self._objects(slot, 1) if self._has_objects else None
        return RowsBody(extras, objects) if extras or objects else None

    def hold(self, local: int, seed: Any, options: Any) -> None:
        """Keep what the env's next reset is to get: options of its own, which it may change."""
        held = self._held.setdefault(local, {})
        if seed is not None:
            held["seed"] = seed
        if options is not None:
            held["options"] = copy_containers(options)

    def resume(self, lost: dict[int, tuple[Any, int | None]]) -> None:
        """Take over slots whose episodes ended with another worker: their next step gives a truncated row."""
        for slot, (row, seed) in lost.items():
            self._act[slot - self.first] = partial(_lost_step, row)
            self.hold(slot - self.first, seed, None)

    def open_info(self, specs: Specs) -> None:
        """Write attributes into columns from now on."""
        self._batch.open_info(specs)
        if self._reader is not None:
            self._reader.open(self._batch.info, self._batch.first_info)


def _number(reward: Any) -> float:
    try:
        return float(array("d", [reward])[0])
    except Exception:  # TypeError; before numpy 2.4 a DeprecationWarning of arrays, where warnings are errors
        given = np.asarray(reward)
        if given.dtype.kind not in "biuf":  # text, None
            raise
    return float(given.item())


def _refuse(slot: int, why: str, remedy: str, _: Any) -> StepResult:
    raise ResetNeededError(f"env {slot} {why}", remedy.format(slot))


def _lost_step(row: Any, _: Any) -> StepResult:
    return row, 0.0, False, True, {"worker_restarted": True}
