"""The one concrete VecEnv: it turns calls about envs into commands to the workers that own them.

Backends subclass `PoolVecEnv` and say how a worker is launched. `Commands` has what is under way, `Workers` the
workers, `Recovery` replaces them, the `BatchColumns` has the rows; here is what callers see.
"""

from __future__ import annotations

import abc
import errno
import warnings
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from gymnasium import Env
from numpy.typing import NDArray

from vecenvs import env_calls
from vecenvs.arguments import (
    arguments_of,
    check_arguments,
    check_choice,
    check_env_fns,
    check_function,
    check_names,
    check_portion,
    deadline_of,
    listed,
    parse_flag,
    parse_indices,
    parse_int,
    parse_limit,
    parse_options,
    parse_seeds,
    parse_timeout,
    split,
)
from vecenvs.batch.actions import parse_actions
from vecenvs.batch.batch_columns import TERMINATED, TRUNCATED, Allocator, BatchColumns
from vecenvs.errors import AlreadySteppingError, ClosedError, EnvError, NotSteppingError, VecEnvError
from vecenvs.pool.commands import NO_RESETS, Commands, Resets, copied
from vecenvs.pool.episodes import Episodes
from vecenvs.pool.finalizers import Finalizer
from vecenvs.pool.info_columns import InfoColumns
from vecenvs.pool.recovery import Recovery
from vecenvs.pool.remote_calls import RemoteCalls
from vecenvs.pool.rows import Row, env_error
from vecenvs.pool.step_results import StepResults
from vecenvs.pool.workers import CLOSE_GRACE, Workers
from vecenvs.transport import Transport
from vecenvs.transport.memory import new_name
from vecenvs.transport.protocol import Command
from vecenvs.transport.shared import SharedBatchColumns
from vecenvs.vec_env import Batch, Indices, Options, Seeds, StepReturn, VecEnv
from vecenvs.worker.env_shard import AUTORESET_MODES

EnvFn = Callable[[], "Env[Any, Any]"]

# How a system says that there is no more: descriptors, processes, memory, room.
_SCARCE = {errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM, errno.ENOSPC, errno.EFBIG, errno.EROFS}


_T = TypeVar("_T")


class _Result(NamedTuple, Generic[_T]):
    """What a call is to return or raise, the slots whose rows that hands out, and the async resets that begin then."""

    value: _T | EnvError
    slots: Collection[int]
    resets: Resets


_SIGNS_OF_LIFE = 4  # in step_timeout seconds, at least


class PoolVecEnv(VecEnv):
    """A VecEnv over workers, each the owner of a contiguous shard of slots.

    Common to all engines: `autoreset` (see `vec_env`); `copy=False` lets `step` give views that are valid until the
    next call; `step_timeout` seconds in which no env of a worker finishes a step, a reset or a call raise StepTimeout
    (envs in the caller's process never time out); a worker that has not made its envs after `start_timeout` seconds
    raises StartTimeout; `on_failure="restart"` replaces a dead worker, or one over `step_timeout`, at most
    `max_restarts` times: its envs give a truncated row with info["worker_restarted"] and begin new episodes;
    `observation_mode="different"`, as in Gymnasium, takes envs whose observation spaces differ in their bounds, with
    the space of env 0.
    """

    def __init__(
        self,
        env_fns: Iterable[EnvFn],
        num_workers: int | None = 1,
        /,
        *,
        autoreset: str = "same_step",
        info_attrs: Sequence[str] = (),
        copy: bool = True,
        step_timeout: float | None = None,
        on_failure: str = "raise",
        max_restarts: int = 10,
        start_timeout: float = 300.0,
        observation_mode: str = "same",
        **unknown: Any,
    ) -> None:
        self.closed = True  # until everything stands
        called = type(self)  # Python's own error would name this class, which nobody calls
        check_arguments(called.__name__, unknown, [name for name in arguments_of(called) if name not in unknown])
        check_choice("autoreset", autoreset, AUTORESET_MODES)
        check_choice("on_failure", on_failure, ("raise", "restart"))
        check_choice("observation_mode", observation_mode, ("same", "different"))
        if parse_timeout(step_timeout, "step_timeout") == 0:
            raise ValueError("step_timeout must be more than 0 seconds, or None")
        self.autoreset = autoreset
        self._asynchronous = autoreset == "async"
        self._info_attrs = check_names("info_attrs", info_attrs)
        self.copy = parse_flag("copy", copy)
        self.observation_mode = observation_mode
        restarts = parse_int("max_restarts", max_restarts, 0) * (on_failure == "restart")
        fns: Sequence[EnvFn] = listed(env_fns)
        num_workers = self._begin(fns, num_workers)
        check_env_fns(fns)
        self.num_envs = n = len(fns)
        self._env_fns = list(fns)
        self._shards = split(n, num_workers)
        self._wake = new_name()  # of a shared batch's semaphore, for workers to know from the start
        self._step_result: _Result[StepReturn] | None = None  # of a step_wait that is to return it
        self._held: _Result[Batch] | None = None  # of a recv or reset that is to return it
        self._step_timeout = step_timeout
        self._steps = 0
        self._counters = dict.fromkeys(("received", "resets"), 0)
        self._workers = Workers(self._shards, self._launch, parse_limit(start_timeout, "start_timeout"))
        self._workers.any_bounds = observation_mode == "different"
        self._finalizer = Finalizer(self, self._workers)  # from the first worker on, whatever comes between
        batch: BatchColumns | None = None
        try:
            made = self._workers.start()
            self.observation_space, self.action_space = made.observation_space, made.action_space
            self.spec, self.metadata, self.render_mode = made.spec, made.metadata, made.render_mode
            self._batch = batch = self._lay_out()
            self._workers.attach(batch, batch.wake if isinstance(batch, SharedBatchColumns) else None)
            batch.forget(memory=not restarts)  # a worker launched later still has to open it
            self._infos = InfoColumns(self._info_attrs, batch)
            self._episodes = Episodes(self._shards, batch, self._infos)
            self.reset_infos = self._episodes.reset_infos
            self._recovery = Recovery(self._workers, batch, restarts, self._briefing)
            self._commands = Commands(self._workers, batch, step_timeout, self._recovery)
            self._step_results = StepResults(
                batch, self._commands, self._infos, self._episodes, asynchronous=self._asynchronous
            )
            self._calls = RemoteCalls(self._commands, self._shards)
            if restarts:
                self._episodes.keep_rows()
                self._step_results.keep_rows = True
            if step_timeout is not None:
                self._calls.ask(self._report_progress(range(len(self._shards))))
            self.closed = False
        except BaseException as exc:
            self.closed = True
            self._workers.close(0.0)
            self._finalizer.end()
            if batch is not None:
                batch.forget()
            if isinstance(exc, OSError) and exc.errno in _SCARCE:
                raise _refused(called.__name__, n, num_workers, exc) from exc
            raise

    def _report_progress(self, workers: Iterable[int]) -> dict[int, tuple[Command, Any]]:
        """Return the commands by which workers tell of each env that they have stepped: for `step_timeout`."""
        seconds = (self._step_timeout or 0.0) / _SIGNS_OF_LIFE
        elsewhere = [worker for worker in workers if not self._workers.transports[worker].inline]
        return dict.fromkeys(elsewhere, (Command.REPORT, seconds))

    def _briefing(self, worker: int, restarts: int) -> list[tuple[Command, Any]]:
        """Return the first commands of a worker that replaces another."""
        ready = {slot for slot, extra in self._commands.ready.items() if extra is None or extra.failure is None}
        briefing = self._episodes.briefing(worker, ready, restarts)
        return briefing if self._step_timeout is None else [*briefing, *self._report_progress([worker]).values()]

    def _begin(self, env_fns: Sequence[EnvFn], num_workers: int | None) -> int:
        """Start what workers need beforehand, now that all other arguments are right; give the number of workers."""
        return parse_int("num_workers", num_workers)

    @abc.abstractmethod
    def _launch(self, worker: int, shard: range) -> Transport:
        """Start a worker that makes the envs of `shard`, and return without waiting for it."""

    def _lay_out(self) -> BatchColumns:
        """Give the columns, now that the spaces are known: shared, for workers in other processes."""
        return SharedBatchColumns(
            self.observation_space, self.action_space, self.num_envs, self._info_attrs, self._wake
        )

    # Stepping in lock-step

    def step_async(self, actions: Any) -> None:
        commands = self._commands
        if self.closed or self._calls.slots is not None or self._step_result or self._held or commands.busy():
            self._check_free("step_async", range(self.num_envs), autoresets=False)
        columns = self._batch.actions
        if not columns.take(actions):
            columns.assign(self._parse_actions(actions, self.num_envs))
        if self._info_attrs and self._infos.closed:
            self._open_infos()
        if not commands.resetting:
            commands.step_all()
        else:
            commands.step_some(set(range(self.num_envs)) - commands.resetting.keys())

    def step_wait(self, timeout: float | None = None) -> StepReturn:
        commands = self._commands
        if self._step_result is not None:  # of a step_wait that an exception (Ctrl-C) has ended
            return self._end_step(self._step_result)
        deadline = None if timeout is None else deadline_of(timeout)
        if self.closed or commands.stepping is None or self._recovery.lost:
            self._check_stepping()
        if commands.resetting:
            self._step_result = result = self._finish_some(deadline, timeout)
            return self._end_step(result)
        prepared = self._step_results.prepare()
        commands.finish_step(deadline, timeout)
        try:
            rows = self._step_results.take(prepared, copy=self.copy)
        except EnvError as exc:
            self._step_result = result = _Result(exc, (), self._step_results.resets)
            return self._end_step(result)
        if self._asynchronous:
            self._step_result = result = _Result(rows, (), self._step_results.resets)
            return self._end_step(result)
        self._steps += 1
        commands.stepping = None
        return rows

    def _end_step(self, result: _Result[StepReturn]) -> StepReturn:
        """Return the result of a step, or raise it. After an exception in here, the next step_wait does so."""
        value, struck, resets = result
        failed = isinstance(value, EnvError)
        self._commands.strike(struck)
        self._commands.begin_resets(*resets)
        self._steps += 1
        self._commands.end_step()
        self._step_result = None  # no call after this one, at whose end a signal's handler might raise
        if failed:
            raise value  # type: ignore[misc]
        return value  # type: ignore[return-value]

    def _finish_some(self, deadline: float | None, timeout: float | None) -> _Result[StepReturn]:
        """Finish a step in which some envs take no part, since they are being reset."""
        commands = self._commands
        if commands.step_slots:
            commands.await_rows(commands.step_slots, deadline, timeout)
        else:
            commands.gather(lambda: bool(commands.ready), commands.resetting.keys(), deadline, timeout)
        commands.collect()
        try:
            result: StepReturn | EnvError = self._step_results.take_some(copy=self.copy)
        except EnvError as exc:
            result = exc
        return _Result(result, list(commands.ready), self._step_results.resets)

    # Any subset

    def send(self, actions: Any, indices: Indices = None) -> None:
        slots = self._parse_slots("send", indices)
        self._check_free("send", slots)
        parts = self._parse_actions(actions, len(slots))
        if self._infos.closed and not self._commands.due:
            self._open_infos()
        self._batch.actions.assign(parts, np.array(slots, dtype=np.int64))
        self._commands.give(self._commands.steps(slots))

    def reset_async(self, indices: Indices = None, *, seed: Seeds = None, options: Options = None) -> None:
        slots = self._parse_slots("reset", indices)
        seeds, all_options = parse_seeds(seed, slots), parse_options(options, slots)
        self._check_free("reset", slots, autoresets=False)
        if options is not None:
            self._workers.check_portable("options", all_options)
        self._commands.settle(slots, drop=True)
        self._episodes.note_seeds(seeds)
        self._episodes.hold(seeds, all_options, ())
        wanted = {slot: (Command.RESET, {slot: (seeds[slot], all_options[slot])}) for slot in slots}
        self._commands.give(self._commands.numbered(wanted))
        self._counters["resets"] += len(slots)

    def recv(self, min_envs: int = 1, max_envs: int | None = None, timeout: float | None = None) -> Batch:
        self._check_open("recv")
        if self._calls.slots is not None:
            raise AlreadySteppingError("recv after a call_async: call_wait first")
        commands = self._commands
        if self._step_result is not None or (commands.in_step and not self._recovery.lost):
            raise NotSteppingError("recv after step_async: finish it with step_wait, or use send instead")
        if self._held is None:
            due = commands.due
            if type(min_envs) is not int or not 1 <= min_envs <= due or max_envs is not None:
                check_portion(due, min_envs, max_envs)
            deadline = deadline_of(timeout)
            commands.gather(lambda: len(commands.ready) >= min_envs, range(self.num_envs), deadline, timeout)
            rows: list[Row] = []
            for slot, extra in list(commands.ready.items())[:max_envs]:
                if extra is not None and extra.failure is not None:
                    if not rows:
                        self._held = _Result(extra.failure.to_error(), [slot], NO_RESETS)
                    break
                rows.append((slot, extra))
            if self._held is None:
                batch = self._step_results.hand_out(rows)
                self._held = _Result(batch, [slot for slot, _ in rows], self._step_results.resets)
        return self._hand_over(self._held)

    def _hand_over(self, held: _Result[Batch]) -> Batch:
        """Return rows that have been copied, or raise. After an exception in here, the next recv does so."""
        result, slots, resets = held
        self._commands.strike(slots)
        self._commands.begin_resets(*resets)
        self._counters["received"] += len(slots)
        failed = isinstance(result, EnvError)
        self._held = None  # no call after this one, at whose end a signal's handler might raise
        if failed:
            raise result  # type: ignore[misc]
        return result  # type: ignore[return-value]

    def reset(self, indices: Indices = None, *, seed: Seeds = None, options: Options = None) -> Any:
        slots = self._parse_slots("reset", indices)
        self.reset_async(slots, seed=seed, options=options)
        self._commands.await_rows(slots)
        ready = self._commands.ready
        error = env_error(extra for slot in slots if (extra := ready[slot]) is not None)
        failed = {each.index for each in error.errors} if error else ()
        batch = self._step_results.hand_out([(slot, ready[slot]) for slot in slots if slot not in failed])
        if error is not None:
            error.batch = batch
        self._held = held = _Result(error or batch, slots, self._step_results.resets)
        return self._hand_over(held).obs

    def info_array(self, name: str) -> NDArray[Any]:
        return self._infos.stacked(name)

    def _open_infos(self) -> None:
        """Once every env has been reset, and so has shown its attributes, give the numeric ones columns."""
        if all(self.reset_infos):
            specs = self._infos.open(self.reset_infos)
            living = [worker for worker in range(len(self._shards)) if worker not in self._recovery.lost]
            self._commands.ask(dict.fromkeys(living, (Command.OPEN_INFO, specs)))  # carried out before what follows
            self._infos.closed = False

    # Checks

    def _parse_actions(self, actions: Any, n: int) -> list[NDArray[Any]]:
        layout = self._batch.actions.layout
        parts = parse_actions(layout, actions, n)
        if layout.has_objects:
            self._workers.check_portable("actions", [part for part in parts if part.dtype == object])
        return parts

    def _check_open(self, what: str) -> None:
        if self.closed:
            raise ClosedError(what, self._finalizer.forked)

    def _check_stepping(self) -> None:
        """Raise if there is no step to wait for."""
        self._check_open("step_wait")
        if not self._commands.in_step:
            raise NotSteppingError("step_wait without a step_async before it")
        for error in self._recovery.lost.values():  # the step has failed: what is still to come of it comes by recv
            raise copied(error)

    def _parse_slots(self, what: str, indices: Indices) -> list[int]:
        self._check_open(what)
        return parse_indices(indices, self.num_envs)

    def _check_free(self, what: str, slots: Sequence[int], *, autoresets: bool = True) -> None:
        """Raise unless these slots can take a command."""
        self._check_open(what)
        if self._calls.slots is not None:
            raise AlreadySteppingError(f"{what} after a call_async: call_wait first")
        if self._step_result is not None:
            raise AlreadySteppingError(f"{what} after a step_async: step_wait first")
        if self._held is not None:
            raise AlreadySteppingError(f"{what} while rows of a call that was interrupted are there: recv first")
        self._commands.check_free(what, slots, autoresets=autoresets)

    @property
    def active(self) -> NDArray[np.bool_]:
        return self._step_results.active

    @property
    def terminated(self) -> NDArray[np.bool_]:
        return self._step_results.flagged(TERMINATED)

    @property
    def truncated(self) -> NDArray[np.bool_]:
        return self._step_results.flagged(TRUNCATED)

    @property
    def rewards64(self) -> NDArray[np.float64]:
        return self._step_results.rewards64

    # Asking the envs

    def call(self, function: Callable[..., Any], indices: Indices, *args: Any, **kwargs: Any) -> list[Any]:
        free = self._calls.slots is None
        try:
            self.call_async(function, indices, *args, **kwargs)
            return self.call_wait()
        finally:
            if free:
                self._calls.slots = None  # after a Ctrl-C

    def call_async(self, function: Callable[..., Any], indices: Indices, *args: Any, **kwargs: Any) -> None:
        check_function(function)
        what = env_calls.name_for(function)
        slots = self._parse_slots(what, indices)
        self._check_free(what, slots, autoresets=False)
        self._workers.check_portable(f"the function {what}", function)
        self._workers.check_portable(f"an argument of {what}", (args, kwargs))
        self._commands.settle(slots, drop=False)
        self._calls.begin(slots, function, args, kwargs)

    def call_wait(self, timeout: float | None = None) -> list[Any]:
        self._check_open("call_wait")
        return self._calls.finish(timeout)

    def seed(self, seed: Seeds = None) -> list[int | None]:
        seeds = parse_seeds(seed, range(self.num_envs))
        self._prepare("seed", seeds, {})
        self._episodes.note_seeds(seeds)
        return [seeds[slot] for slot in range(self.num_envs)]

    def set_options(self, options: Options = None) -> None:
        self._prepare("set_options", {}, parse_options(options, range(self.num_envs)))

    def _prepare(self, what: str, seeds: dict[int, Any], options: dict[int, Any]) -> None:
        everyone = range(self.num_envs)
        self._check_free(what, everyone, autoresets=False)
        if options:
            self._workers.check_portable("options", options)
        self._commands.settle(everyone, drop=False)
        self._calls.prepare(seeds, options)
        self._episodes.hold(seeds, options, self._commands.ready)

    def stats(self) -> dict[str, Any]:
        return {
            "backend": type(self).__name__,
            "num_envs": self.num_envs,
            "num_workers": len(self._shards),
            "autoreset": self.autoreset,
            "restarts": self._recovery.restarts,
            "steps": self._steps,
            **self._counters,
        }

    def __reduce__(self) -> Any:
        raise TypeError(
            f"a {type(self).__name__} holds envs that are running, and can be neither copied nor pickled: "
            "make another one from the same env functions"
        )

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        if not self._finalizer.end():  # in a fork of the caller: the workers are not its own
            return
        try:
            failures = self._workers.close(CLOSE_GRACE)
        finally:
            self._batch.forget()
        for failure in failures:
            warnings.warn(f"{failure.summary} while being closed", RuntimeWarning, stacklevel=2)


def _refused(called: str, num_envs: int, num_workers: int, why: OSError) -> VecEnvError:
    return VecEnvError(
        f"the system does not give {called} what {num_envs} envs in {num_workers} workers need ({why}): take fewer, or "
        "raise its limits (ulimit -n for open files, -u for processes, -v for memory; room in /dev/shm)"
    )


def plain_batch(vec: PoolVecEnv, info_attrs: Sequence[str]) -> BatchColumns:
    """Columns in the caller's own memory."""
    return BatchColumns(vec.observation_space, vec.action_space, vec.num_envs, Allocator(), info_attrs)
