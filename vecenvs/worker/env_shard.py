"""Stepping and resetting the envs of one worker, their *shard*; the same for every engine.

Their slots are first, first + 1, ... An `EnvShard` writes rows into the batch's columns (see `RowWriter`) and returns
what rows have besides. `Autoreset` resets the envs.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from vecenvs import _native
from vecenvs._native import forks
from vecenvs.batch.batch_columns import FIRST, BatchColumns
from vecenvs.errors import VecEnvError
from vecenvs.transport.protocol import RemoteFailure, RowExtras, RowsBody, Slots, rows_of, shifted
from vecenvs.transport.reset_arguments import NONE_GIVEN, ResetArguments
from vecenvs.worker.autoreset import Autoreset, RowFlags, named
from vecenvs.worker.coroutines import TaskAutoreset
from vecenvs.worker.env_errors import ENV_ERRORS, EnvErrors, Remake
from vecenvs.worker.info_reader import InfoReader
from vecenvs.worker.outcomes import outcome_of
from vecenvs.worker.row_writer import RowWriter
from vecenvs.worker.rules import Rules
from vecenvs.worker.slow_envs import SlowEnvs

# Of a command that an exception has ended while Python's own code ran.
BROKEN_OFF = VecEnvError("ended by an exception that was not the env's (a KeyboardInterrupt, say)")

Body = RowsBody | None

FirstRow = Callable[[], RowsBody | None]  # writes the first row of an episode; returns what it has besides columns


def raise_or_defer(exc: BaseException, deferred: list[int | BaseException], *, remote: bool) -> None:
    """Handle an exception that is not an env's error, such as a Ctrl-C.

    In the caller's process it is raised after the answer, so that no command stays unanswered. In a process of its
    own the worker ends by it (SIGTERM raises one), and the caller is to see just that; the thread of an async reset
    cannot end the worker, so there, too, the exception waits.
    """
    if remote and threading.current_thread() is threading.main_thread():
        raise exc
    deferred.append(exc)


class _Arguments:
    """The keyword arguments of `reset`, by env of a shard: made for those that a portion gets to."""

    def __init__(self, given: ResetArguments, first: int) -> None:
        self._given, self._first = given, first

    def __getitem__(self, local: int) -> dict[str, Any]:
        return named(*self._given.of(self._first + local))


class Loop(NamedTuple):
    """What the loop over envs does: of each env what takes its action, and what follows the end of an episode."""

    doing: str
    acts: list[Callable[[Any], Any]]
    end_episode: Callable[..., tuple[Any, dict[str, Any]]]


def _as_it_is(_: int, obs: Any, terminated: Any, truncated: Any, info: dict[str, Any]) -> tuple[Any, dict[str, Any]]:  # noqa: ARG001
    """Return the row of an episode whose end has been seen to."""
    return obs, info


class EnvShard:
    """A shard of envs and their rows.

    With `remote`, all that is returned is to be pickled, and exceptions are made fit for that. `flags.some` tells
    whether a row of the shard has flags.

    `try_step` steps all envs in as few calls as possible. Mostly that is all; otherwise `finish_step` does the rest.

    `deferred` is what has to wait until the step has been answered: envs whose async reset is to begin, and
    exceptions to raise that are not an env's own, such as a Ctrl-C.
    """

    def __init__(
        self,
        envs: list[Any],
        first: int,
        batch: BatchColumns,
        rules: Rules,
        *,
        remote: bool,
        errors: EnvErrors | None = None,
        remake: Remake | None = None,
    ) -> None:
        self.envs = envs  # in this very list envs may be exchanged
        self.first = first
        self.all = range(len(self.envs))
        given_actions = batch.actions.shard(first, len(self.envs))
        self.read_actions, self._action_rows = given_actions.given, given_actions.view
        self.done: Sequence[Any] = ()  # one item for each env that has done its part of the current command
        # The last step of all envs: the number of its command, where it is, and how its loop has ended: an exception,
        # or whether the rewards are written.
        self._step_number = -1
        self._actions: Any = ()
        self._stepped: list[Any] = []  # the rewards of the envs that have been stepped
        self._infos: list[tuple[int, dict[str, Any]]] = []
        self._outcome: BaseException | bool = False
        self.deferred: list[int | BaseException] = []
        self._slow_steps, self._slow_resets = SlowEnvs(), SlowEnvs()
        self.flags = RowFlags(batch, first, len(self.envs))
        self._batch = batch
        self._remote = remote
        self._waits = rules.concurrency is not None  # then each env has an exception of its own
        self._reader = InfoReader(batch.info_attrs, self.envs, first) if batch.info_attrs else None
        kind = TaskAutoreset if rules.concurrency == "asyncio" else Autoreset
        self._autoreset = kind(
            self.envs,
            first,
            batch,
            rules,
            self.flags,
            self.deferred,
            self._reader,
            errors,
            None if rules.concurrency == "asyncio" else remake,
        )
        self.errors = errors
        self._rows = RowWriter(
            self.envs, first, batch, self._autoreset, self.flags, self.deferred, self._reader, remote=remote
        )
        self.info_writer, self.fail = self._rows.info_writer, self._rows.fail_all
        self.hold, self.resume, self.renew = self._autoreset.hold, self._autoreset.resume, self._autoreset.renew
        self.retire = self._autoreset.retire
        self._states = self._autoreset.states
        self.state_of, self.spares = self._states.read, self._autoreset.spares
        self._has_objects = batch.observations.layout.has_objects
        self._objects = batch.observations.objects
        self._rewards: Any = batch.rewards[first : first + len(self.envs)].data
        self._step_envs = _native.chosen.step_envs
        # The loop writes each observation to its row at once, by item assignment where it is Python.
        self._cells, self._where = batch.observations.shard(first, len(self.envs)).targets()
        # Whether a row without flags and infos is complete with what the loop writes.
        self._plain = not batch.info_attrs and not self._has_objects
        self._steps = Loop("step", self._autoreset.acts, self._autoreset.end_episode)
        self._resets = self._steps._replace(doing="reset", acts=self._autoreset.resets)

    # Stepping

    def try_step(self, number: int, actions: Any) -> bool:
        """Step all envs, for command `number`. Return True if that is all: the rows are complete with their columns.

        Otherwise, also after an exception of a signal's handler in here, `finish_step` has to follow.
        """
        if self.flags.some:
            self.flags.clear(self.all)
        rewards: list[Any] = []
        infos: list[tuple[int, dict[str, Any]]] = []
        self._actions, self._infos, self._outcome = actions, infos, BROKEN_OFF
        self._stepped = self.done = rewards
        self._step_number = number
        autoreset, before = self._autoreset, forks.count
        try:
            self._outcome = written = self._step_envs(
                autoreset.acts, actions, self._cells, self._where, rewards, infos, autoreset.end_episode,
                self._store, None, self._rewards, math.inf,
            )  # fmt: skip
        except BaseException as exc:
            forks.leave(before, exc)
            self._outcome = exc
            return False
        return written and self._plain and not (infos or autoreset.reset_infos or self.info_writer.marked)

    def was_tried(self, number: int) -> bool:
        """Tell whether `try_step` was called for this command."""
        return self._step_number == number

    def finish_step(self) -> Body:
        """Do what the last `try_step` has left; return what there is besides columns."""
        return self._step(self.all, self._steps, self._actions, self._stepped, self._infos, self._outcome, math.inf)

    def step_some(self, some: Slots) -> tuple[int, Body]:
        """Step the first of these envs, in this order, and write their rows: those that travel together (`SlowEnvs`).

        Return how many were stepped, and what there is besides columns.
        """
        return self._slow_steps.carry_out(
            some, lambda some, until: self._portion(some, self._steps, self._actions_of(some), until)
        )

    def _actions_of(self, some: Slots) -> Any:
        """Return these envs' actions as `step_envs` takes them."""
        if self._action_rows is not None:
            return self._action_rows
        return dict(zip(some, self._batch.actions.rows_at(rows_of(shifted(some, self.first)), len(some)), strict=True))

    def _portion(self, some: Slots, loop: Loop, actions: Any, until: float) -> tuple[int, Body]:
        """Step these envs, or reset them, up to the one at whose end `clock()` has reached `until`."""
        if self.flags.some:
            self.flags.clear(some)
        rewards: list[Any] = []
        self.done = rewards
        body = self._step(some, loop, actions, rewards, [], None, until)
        return len(rewards), body

    def _step(
        self,
        shard: Slots,
        loop: Loop,
        actions: Any,
        rewards: list[Any],
        infos: list[tuple[int, dict[str, Any]]],
        outcome: BaseException | bool | None,
        until: float,
    ) -> Body:
        """Step those of the envs `shard` that have not been stepped, up to the time `until`, and write their rows.

        `outcome` is that of a loop before, if there was one.
        """
        extras: list[RowExtras] = []
        autoreset = self._autoreset
        doing, acts, end_episode = loop
        if isinstance(outcome, BaseException):
            self._fail_at(shard, doing, outcome, rewards, infos, extras)
            outcome = None
        chosen, before = None if shard is self.all else list(shard), forks.count
        written = outcome
        while written is None:
            try:
                written = self._step_envs(
                    acts, actions, self._cells, self._where, rewards, infos, end_episode,
                    self._store, chosen, self._rewards, until,
                )  # fmt: skip
            except BaseException as exc:
                forks.leave(before, exc)
                self._fail_at(shard, doing, exc, rewards, infos, extras)
        if len(rewards) < len(shard):
            shard = shard[: len(rewards)]
        if not written:
            self._rows.write_rewards(shard, rewards, extras)
        whole = None
        if infos or self._reader is not None or autoreset.reset_infos or self.info_writer.marked:
            whole = self._rows.write_infos(shard, infos, doing, extras, together=shard is self.all)
        objects = self._objects(rows_of(shifted(shard, self.first))) if self._has_objects else None
        forms = self.info_writer.new_forms()
        return RowsBody(extras, objects, whole, forms) if extras or objects or whole or forms else None

    def _fail_at(
        self,
        shard: Sequence[int],
        doing: str,
        exc: BaseException,
        rewards: list[Any],
        infos: list[Any],
        extras: list[RowExtras],
    ) -> None:
        """Note the exception at which the loop has stopped, as a failure of its env; a Ctrl-C, of all envs left."""
        failed = shard[len(rewards) :]
        if isinstance(exc, ENV_ERRORS):
            failed = failed[:1]
        else:
            failed = failed[:1] if self._waits else failed
            raise_or_defer(exc, self.deferred, remote=self._remote)
        if infos and infos[-1][0] in failed:
            infos.pop()
        for local in failed:
            self._rows.fail(local, doing, exc, extras)
            rewards.append(0.0)

    def _store(self, local: int, obs: Any) -> None:
        """Write an observation of another dtype or type than its space's. Raise an error if it cannot be cast."""
        self._batch.observations.store_row(self.first + local, obs)

    # Resetting

    def reset_some(self, some: Slots, given: ResetArguments) -> tuple[int, Body]:
        """Reset the first of these envs for the caller and write their rows, as `step_some` does.

        `given` has the seed and the options of each, by slot.
        """
        arguments = _Arguments(given, self.first)
        return self._slow_resets.carry_out(
            some, lambda some, until: self._portion(some, self._resets, arguments, until)
        )

    def try_reset(self, local: int) -> FirstRow:
        """Reset one env, in the thread of an async reset; return what writes its first row, or its failure."""
        return self.first_row(local, partial(forks.run, self._autoreset.reset, local))

    def first_row(self, local: int, reset: Callable[[], Any]) -> FirstRow:
        """Return what writes the first row that `reset` returns, or its failure."""
        outcome: RemoteFailure | tuple[Any, dict[str, Any]]
        try:
            obs = self._batch.observations.layout.copied(reset())
            outcome = obs, self._autoreset.reset_infos.pop(local, {})
        except BaseException as exc:
            self._autoreset.refuse(local, "failed in reset")
            self._autoreset.reset_infos.pop(local, None)
            if not isinstance(exc, ENV_ERRORS):
                raise_or_defer(exc, self.deferred, remote=self._remote)
            outcome = self._rows.capture(local, "reset", exc)
        return partial(self._first_row, local, outcome)

    def _first_row(self, local: int, outcome: RemoteFailure | tuple[Any, dict[str, Any]]) -> RowsBody | None:
        """Write the first row after a reset; return what there is besides columns."""
        slot, extras = self.first + local, list[RowExtras]()
        self._rewards[local] = 0.0
        if isinstance(outcome, RemoteFailure):
            self.flags.set(local, 0)
            extras.append(RowExtras(slot, {}, None, outcome))
        else:
            self.flags.set(local, FIRST)
            self._rows.write_first_row(local, *outcome, extras)
        objects = self._objects(slice(slot, slot + 1)) if self._has_objects else None
        return RowsBody(extras, objects) if extras or objects else None

    # Envs that wait: what is done outside of the shard, and how its outcome is written

    def work(self, some: Slots, given: ResetArguments | None) -> dict[int, Callable[[], Any]]:
        """Return what resets each of these envs for the caller, or else steps it, and returns its row."""
        if self.flags.some:
            self.flags.clear(some)
        values: Any = _Arguments(given or NONE_GIVEN, self.first)
        if given is None:
            rows = self._batch.actions.rows_at(rows_of(shifted(some, self.first)), len(some))
            values = dict(zip(some, rows, strict=True))
        acts = self._steps.acts if given is None else self._resets.acts
        return {local: partial(self._autoreset.row, local, acts, values[local]) for local in some}

    def begin_episode(self, local: int, wanted: Callable[[], bool]) -> Callable[[], Any]:
        """Return what resets an env in async mode, whose outcome `first_row` takes if it is still `wanted`."""
        return partial(self._autoreset.begin_wanted, local, wanted)

    def cut_short(self, local: int, exc: BaseException) -> Callable[[], Any]:
        """Return what ends the episode of an env whose step was too late; raise `exc` if it was so too often."""
        errors = self._autoreset.errors
        told = None if errors is None else errors.happened(local, "step", exc)
        return partial(self._autoreset.cut_short, local, told)

    def reset_again(self, local: int, step: Callable[[], Any]) -> Callable[[], Any]:
        """Return what resets an env once more whose reset within `step` was too late; a row that this had is kept."""
        return partial(self._autoreset.end_again, local) if local in self._autoreset.ended else step

    def write(self, some: Slots, outcomes: Sequence[Any], doing: str) -> Body:
        """Write the rows of these envs, by the outcomes of their work; return what there is besides columns."""
        loop = Loop(doing, [outcome_of] * len(self.envs), _as_it_is)
        given = outcomes if some is self.all else dict(zip(some, outcomes, strict=True))
        return self._step(some, loop, given, [], [], None, math.inf)

    # The envs themselves

    def targets(self, some: Sequence[int]) -> Sequence[tuple[Sequence[Any], int]]:
        """Return where these envs are once a function is run on them: others may have taken their places by then."""
        return [(self.envs, local) for local in some]

    def note_call(self, local: int, function: Any, args: tuple[Any, ...] = (), *, succeeded: bool = True) -> None:
        """Take note that a function was called on the env."""
        self._states.note_call(local, function, args, succeeded=succeeded)
        if self.spares is not None and succeeded:
            self.spares.note_call(local, function, args)

    def owned(self) -> dict[int, Any]:
        """Return what has to be closed, by the env that it belongs to."""
        spares = self.spares.envs if self.spares is not None and self._waits else []
        return dict(enumerate([*self.envs, *spares, *(twin for twin, _ in self._states.twins.values())]))

    def close_spares(self, grace: float) -> None:
        """Close the spares, unless they are among what is `owned`."""
        if self.spares is not None:
            self.spares.close(grace)

    def show_envs(self) -> list[Any]:
        """Return the list of envs itself. From now on steps use the envs that the caller puts into it."""
        self._autoreset.make_exchangeable()
        return self.envs
