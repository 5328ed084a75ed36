"""The one concrete VecEnv: it turns calls about envs into commands to the workers that own them.

Backends subclass `PoolVecEnv` and say how a worker is launched. For each slot at most one command is unanswered:
`_pending` holds those of single slots, `_stepping` the workers whose whole shard is being stepped. Rows that have
arrived and were not yet handed out wait in `_ready`; their columns do not change before the slot's next command.
"""

from __future__ import annotations

import abc
import atexit
import os
import time
import warnings
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium import Env
from numpy.typing import NDArray

from vecenvs.arguments import check_env_fns, check_names, parse_indices, parse_options, parse_seeds, split
from vecenvs.board import TERMINATED, TRUNCATED, Arena, Board, Specs
from vecenvs.crew import CLOSE_GRACE, EXIT_GRACE, LIVENESS, Crew
from vecenvs.errors import (
    AlreadySteppingError,
    ClosedError,
    NotSteppingError,
    StepTimeout,
    VecEnvError,
    WorkerDied,
    describe_indices,
)
from vecenvs.info_channel import specs_of, stack
from vecenvs.layout import parse_actions
from vecenvs.protocol import Answer, Command, Extra, Failure, RowBody, kind_of, own, slot_of, tag
from vecenvs.rows import env_error, gather, lock_step, plain_lock_step
from vecenvs.transport import Message, Transport
from vecenvs.transport.shared import SharedBoard
from vecenvs.vec_env import Batch, Indices, Options, Seeds, StepReturn, VecEnv
from vecenvs.worker import AUTORESET_MODES

EnvFn = Callable[[], "Env[Any, Any]"]
Row = tuple[int, "Extra | None"]
_ROW, _ROWS, _STEP = int(Answer.ROW), int(Answer.ROWS), int(Command.STEP)  # plain ints: they compare faster


class Pending(NamedTuple):
    """An unanswered command for one slot, kept so that it can be given to a replaced worker again."""

    since: float
    kind: Command
    body: Any


class Call(NamedTuple):
    """An unanswered `call_async`: its slots in order, those of each worker still to answer, the results so far."""

    slots: list[int]
    groups: dict[int, list[int]]
    results: dict[int, Any]


class PoolVecEnv(VecEnv):
    """A VecEnv over workers, each the owner of a contiguous shard of slots.

    Common to all engines: `autoreset` (see `vec_env`); `copy=False` lets `step` give views that are valid until the
    next call; `step_timeout` seconds without an answer from an env raise StepTimeout; `on_failure="restart"` replaces
    a dead worker, or one over `step_timeout`, at most `max_restarts` times: its envs give a truncated row with
    info["worker_restarted"] and begin new episodes.
    """

    def __init__(
        self,
        env_fns: Sequence[EnvFn],
        num_workers: int,
        *,
        autoreset: str = "same_step",
        info_attrs: Sequence[str] = (),
        copy: bool = True,
        step_timeout: float | None = None,
        on_failure: str = "raise",
        max_restarts: int = 10,
    ) -> None:
        self.closed = True  # until everything stands
        check_env_fns(env_fns)
        if autoreset not in AUTORESET_MODES:
            raise ValueError(f"autoreset {autoreset!r} is none of {', '.join(AUTORESET_MODES)}")
        if on_failure not in ("raise", "restart"):
            raise ValueError(f"on_failure must be 'raise' or 'restart', not {on_failure!r}")
        if step_timeout is not None and not step_timeout > 0:
            raise ValueError(f"step_timeout must be positive seconds or None, not {step_timeout!r}")
        self.num_envs = n = len(env_fns)
        self.autoreset = autoreset
        self._info_attrs = check_names("info_attrs", info_attrs)
        self._info_specs: Specs | None = None
        self._odd_infos: dict[str, dict[int, Any]] = {name: {} for name in self._info_attrs}
        self._env_fns = list(env_fns)
        self._copy = copy
        self._step_timeout = step_timeout
        self._restarts_left = max_restarts if on_failure == "restart" else 0
        self._pid = os.getpid()
        self._shards = split(n, num_workers)
        self._owner = [worker for worker, shard in enumerate(self._shards) for _ in shard]
        self._pending: dict[int, Pending] = {}
        self._stepping: dict[int, float] = {}  # worker -> when its STEP was sent
        self._ready: dict[int, Extra | None] = {}
        self._extras: list[Extra] = []  # of the lock-step under way
        self._step_slots: set[int] | None = None  # the slots of a lock-step that goes by single slots
        self._autoresetting: dict[int, list[Any]] = {}  # async mode: slot -> the row it repeats
        self._dead: dict[int, WorkerDied] = {}
        self._call: Call | None = None
        self._seeds: dict[int, int] = {}  # the last seed given to each slot: what a restart's seeds derive from
        self._no_flags: NDArray[np.uint8] = np.zeros(n, np.uint8)
        self._last_flags = self._no_flags
        self._inactive: list[int] = []
        self._counters = dict.fromkeys(("steps", "received", "resets", "restarts"), 0)
        self.reset_infos = [{} for _ in range(n)]
        self._crew = Crew(self._shards, self._launch)
        try:
            made = self._crew.start()
            self.observation_space, self.action_space = made.observation_space, made.action_space
            self.spec, self.metadata, self.render_mode = made.spec, made.metadata, made.render_mode
            self._board = self._lay_out()
            shared = self._board if isinstance(self._board, SharedBoard) else None
            self._crew.attach(self._board, shared.wake if shared else None)
            if shared is not None and not self._restarts_left:
                shared.forget()
        except BaseException:
            self._crew.close(0.0)
            raise
        self.closed = False
        _open.add(self)
        self._finalizer = weakref.finalize(self, _abandon, self._crew, self._pid, type(self).__name__)
        self._finalizer.atexit = False  # _close_all does it then, in the right order

    @abc.abstractmethod
    def _launch(self, worker: int, shard: range) -> Transport:
        """Start a worker that makes the envs of `shard`, and return without waiting for it."""

    def _lay_out(self) -> Board:
        """Give the columns, now that the spaces are known: shared, for workers in other processes."""
        return SharedBoard(self.observation_space, self.action_space, self.num_envs, self._info_attrs)

    # Stepping in lock-step

    def step_async(self, actions: Any) -> None:
        self._check_free("step_async", range(self.num_envs), autoresets=False)
        board = self._board
        parts = parse_actions(board.actions.layout, actions, self.num_envs)
        if self._info_attrs and self._info_specs is None:
            self._open_info()
        board.actions.assign(parts)
        if self._autoresetting:
            self._step_slots = set(range(self.num_envs)) - self._autoresetting.keys()
            self._put_slots(sorted(self._step_slots))
            return
        now = time.monotonic()
        for worker in range(len(self._shards)):
            self._stepping[worker] = now
            self._put_step(worker)

    def _put_step(self, worker: int) -> None:
        shard = self._shards[worker]
        self._put(worker, _STEP, self._board.actions.objects(shard.start, len(shard)))

    def step_wait(self, timeout: float | None = None) -> StepReturn:
        self._check_open("step_wait")
        deadline = None if timeout is None else time.monotonic() + timeout
        if self._step_slots is not None:
            return self._wait_slots(self._step_slots, deadline, timeout)
        if not self._stepping:
            raise NotSteppingError("step_wait without a step_async before it")
        while self._stepping:
            worker = next(reversed(self._stepping))  # the caller's own shard is the last one: it steps here
            message = self._get(worker, self._limit(deadline, self._stepping[worker]))
            if message is not None:
                self._take(worker, message)
            elif self._stepping:
                slots = [slot for w in sorted(self._stepping) for slot in self._shards[w]]
                self._time_out(slots, deadline, timeout)
        return self._finish_step()

    def _wait_slots(self, wanted: set[int], deadline: float | None, timeout: float | None) -> StepReturn:
        """Finish a step in which some envs take no part, since they are being reset."""
        if wanted:
            self._gather(lambda: wanted <= self._ready.keys(), wanted, deadline, timeout)
        else:
            self._gather(lambda: bool(self._ready), self._autoresetting.keys(), deadline, timeout)
        self._take_all(self._crew.sweep(self._busy_workers()))
        self._step_slots = None
        for slot in self._ready.keys() - wanted:
            del self._autoresetting[slot]
        self._extras = [extra for extra in self._ready.values() if extra is not None]
        self._ready.clear()
        return self._finish_step()

    def _finish_step(self) -> StepReturn:
        self._counters["steps"] += 1
        extras, self._extras = self._extras, []
        if not extras and not self._autoresetting:  # no episode ended, no env had infos: most steps of most envs
            self._last_flags, self._inactive = self._no_flags, []
            result = plain_lock_step(self._board, copy=self._copy)
            if self._info_attrs:
                self._fill_infos(range(self.num_envs), result[3])
            return result
        flags = self._last_flags = self._board.flags.copy()
        resting, self._inactive = dict(self._autoresetting), list(self._autoresetting)
        for extra in extras:
            if extra.reset_info is not None:
                self.reset_infos[extra.slot] = extra.reset_info
                if not flags[extra.slot]:
                    self._inactive.append(extra.slot)
        for slot in resting:
            flags[slot] = 0
            extras.append(Extra(slot, {"resetting": True, **{k: odd[slot] for k, odd in self._odd_infos.items()}}))
        error = env_error(extras)
        if error is not None:
            failed = {e.index for e in error.errors} | resting.keys()
            found = {extra.slot: extra for extra in extras}
            rows = [(slot, found.get(slot)) for slot in range(self.num_envs) if slot not in failed]
            error.batch = self._batch(rows)
            self._begin_autoresets(rows)
            raise error
        result = lock_step(self._board, flags, extras, resting, copy=self._copy)
        if self._info_attrs:
            self._fill_infos(range(self.num_envs), result[3])
        if self.autoreset == "async":
            self._begin_autoresets([(extra.slot, extra) for extra in extras if extra.slot not in resting])
        return result

    # Any subset

    def send(self, actions: Any, indices: Indices = None) -> None:
        slots = self._parse_slots("send", indices)
        self._check_free("send", slots)
        parts = parse_actions(self._board.actions.layout, actions, len(slots))
        if self._info_attrs and self._info_specs is None and not self._pending:
            self._open_info()
        self._board.actions.assign(parts, np.array(slots, dtype=np.int64))
        self._put_slots(slots)

    def _put_slots(self, slots: Iterable[int]) -> None:
        now = time.monotonic()
        for slot in slots:
            self._command(slot, Pending(now, Command.STEP_ONE, self._board.actions.objects(slot, 1)))

    def reset_async(self, indices: Indices = None, *, seed: Seeds = None, options: Options = None) -> None:
        slots = self._parse_slots("reset", indices)
        seeds, all_options = parse_seeds(seed, slots), parse_options(options, slots)
        self._check_free("reset", slots, autoresets=False)
        self._settle(slots, drop=True)
        self._note_seeds(seeds)
        now = time.monotonic()
        for slot in slots:
            self._command(slot, Pending(now, Command.RESET, {slot: (seeds[slot], all_options[slot])}))
        self._counters["resets"] += len(slots)

    def recv(self, min_envs: int = 1, max_envs: int | None = None, timeout: float | None = None) -> Batch:
        self._check_open("recv")
        if self._step_slots is not None or (self._stepping and not self._dead):
            raise NotSteppingError("recv after step_async: finish it with step_wait, or use send instead")
        due = len(self._pending) + len(self._ready) + sum(len(self._shards[worker]) for worker in self._stepping)
        if not due:
            raise NotSteppingError("recv while nothing is pending: send or reset_async first")
        if not 1 <= min_envs <= due:
            raise ValueError(f"min_envs={min_envs} while {due} envs have a command pending: give 1 to {due}")
        if max_envs is not None and max_envs < min_envs:
            raise ValueError(f"max_envs={max_envs} is less than min_envs={min_envs}")
        deadline = None if timeout is None else time.monotonic() + timeout
        self._gather(lambda: len(self._ready) >= min_envs, range(self.num_envs), deadline, timeout)
        rows: list[Row] = []
        for slot, extra in list(self._ready.items())[:max_envs]:
            if extra is not None and extra.failure is not None:
                if rows:
                    break
                self._drop(slot)
                raise extra.failure.to_error()
            rows.append((slot, extra))
        return self._hand_out(rows)

    def reset(self, indices: Indices = None, *, seed: Seeds = None, options: Options = None) -> Any:
        slots = self._parse_slots("reset", indices)
        self.reset_async(slots, seed=seed, options=options)
        wanted = set(slots)
        self._gather(lambda: wanted <= self._ready.keys(), wanted, None, None)
        error = env_error(extra for slot in slots if (extra := self._ready[slot]) is not None)
        for failed in error.errors if error else ():
            self._drop(failed.index)
        batch = self._hand_out([(slot, self._ready[slot]) for slot in slots if slot in self._ready])
        if error is not None:
            error.batch = batch
            raise error
        self._inactive = []
        return batch.obs

    def _drop(self, slot: int) -> None:
        del self._ready[slot]
        self._autoresetting.pop(slot, None)

    def _hand_out(self, rows: list[Row]) -> Batch:
        for slot, extra in rows:
            self._drop(slot)
            if extra is not None and extra.reset_info is not None:
                self.reset_infos[slot] = extra.reset_info
        batch = self._batch(rows)
        self._counters["received"] += len(rows)
        self._begin_autoresets(rows)
        return batch

    def _begin_autoresets(self, rows: Iterable[Row]) -> None:
        """In async mode, ask for the first rows of the episodes that follow those which have just ended.

        Only now may the worker write these slots' rows again: the last ones have been copied.
        """
        if self.autoreset != "async":
            return
        now = time.monotonic()
        for slot, extra in rows:
            if self._board.flags[slot]:
                if extra is not None:
                    for name, odd in self._odd_infos.items():
                        odd[slot] = extra.info[name]
                self._autoresetting[slot] = [array[slot].copy() for array in self._board.observations.arrays]
                self._command(slot, Pending(now, Command.AWAIT_RESET, None))

    def _batch(self, rows: Sequence[Row]) -> Batch:
        batch = gather(self._board, rows)
        if self._info_attrs:
            self._fill_infos([slot for slot, _ in rows], batch.infos)
        return batch

    # The info channel

    def _open_info(self) -> None:
        """Once every env has been reset, and so has shown its attributes, give the numeric ones columns."""
        if all(self.reset_infos):
            self._info_specs = specs_of(self._info_attrs, self.reset_infos)
            self._board.open_info(self._info_specs)
            self._ask(dict.fromkeys(range(len(self._shards)), (Command.OPEN_INFO, self._info_specs)))

    def _fill_infos(self, slots: Sequence[int], infos: list[dict[str, Any]]) -> None:
        """Add the columns' values to the infos of these slots' rows; note the values that came with the rows."""
        for name, odd in self._odd_infos.items():
            column = self._board.info.get(name)
            if odd:
                for slot in slots:
                    odd.pop(slot, None)
            if column is None:
                odd.update((slot, info[name]) for slot, info in zip(slots, infos, strict=True))
                continue
            rows = column if len(slots) == self.num_envs else column[list(slots)]
            for slot, info, value in zip(slots, infos, rows.tolist() if rows.ndim == 1 else rows.copy(), strict=True):
                if name in info:
                    odd[slot] = info[name]
                else:
                    info[name] = value

    def info_array(self, name: str) -> NDArray[Any]:
        if name not in self._odd_infos:
            raise VecEnvError(f"{name!r} is none of info_attrs={list(self._info_attrs)}: name it when constructing")
        column, odd = self._board.info.get(name), self._odd_infos[name]
        if column is not None and not odd:
            return column.copy()
        if column is None and len(odd) < self.num_envs:
            raise VecEnvError(f"no values of {name!r} yet: reset() first")
        return stack([odd[slot] if slot in odd else own(column[slot]) for slot in range(self.num_envs)])  # type: ignore[index]

    # Commands and answers

    def _command(self, slot: int, command: Pending) -> None:
        self._pending[slot] = command
        self._put(self._owner[slot], tag(command.kind, slot), command.body)

    def _put(self, worker: int, tag: int, body: object) -> None:
        """Send a command already noted in `_pending` or `_stepping`."""
        try:
            self._crew.put(worker, tag, body)
        except WorkerDied as died:
            self._bury(died)

    def _get(self, worker: int, limit: float | None) -> Message | None:
        try:
            return self._crew.get(worker, limit)
        except WorkerDied as died:
            self._bury(died)
            return None

    def _busy_workers(self) -> list[int]:
        return sorted({self._owner[slot] for slot in self._pending} | self._stepping.keys())

    def _gather(
        self, enough: Callable[[], bool], waited_for: Collection[int], deadline: float | None, timeout: float | None
    ) -> None:
        """Take rows as they come until `enough`; StepTimeout names those of `waited_for` that are missing."""
        self._take_all(self._crew.sweep(self._busy_workers()))
        while not enough():
            first = min((command.since for command in self._pending.values()), default=None)
            limit = self._limit(deadline, first)
            if limit is not None and time.monotonic() >= limit:
                missing = [slot for slot in waited_for if slot in self._pending]
                self._time_out(missing, deadline, timeout)
                continue
            try:
                seconds = LIVENESS if limit is None else limit - time.monotonic()
                self._take_all(self._crew.rest(self._busy_workers(), seconds))
            except WorkerDied as died:
                self._bury(died)

    def _take_all(self, messages: Iterable[tuple[int, Message]]) -> None:
        for worker, message in messages:
            self._take(worker, message)

    def _take(self, worker: int, message: Message) -> None:
        """Take an answer about rows."""
        kind, body = message[0] & 0xFF, message[1]
        if body is None:
            if kind == _ROWS and not self._dead:  # by far the most frequent answer
                del self._stepping[worker]
                return
            body = RowBody([])
        if kind == _ROW:
            slot = slot_of(message[0])
            self._board.observations.take_objects(slot, 1, body.objects)
            del self._pending[slot]
            self._ready[slot] = body.extras[0] if body.extras else None
        elif kind == _ROWS:
            shard = self._shards[worker]
            self._board.observations.take_objects(shard.start, len(shard), body.objects)
            del self._stepping[worker]
            if self._dead:  # the step has failed: its rows come by recv
                found = {extra.slot: extra for extra in body.extras}
                self._ready.update((slot, found.get(slot)) for slot in shard)
            else:
                self._extras.extend(body.extras)
        else:
            raise VecEnvError(f"worker {worker} gave an answer of kind {kind} out of turn")

    def _limit(self, deadline: float | None, since: float | None) -> float | None:
        """When to give up: at the caller's deadline, or `step_timeout` after a command was sent."""
        if self._step_timeout is None or since is None:
            return deadline
        own = since + self._step_timeout
        return own if deadline is None else min(own, deadline)

    def _time_out(self, slots: Sequence[int], deadline: float | None, timeout: float | None) -> None:
        """Raise StepTimeout; or, if an env is over `step_timeout` and restarts are left, replace its worker."""
        if deadline is not None and time.monotonic() >= deadline:
            raise StepTimeout(slots, timeout or 0.0)
        if self._step_timeout is None:
            return
        late = time.monotonic() - self._step_timeout
        hung = {worker for worker, since in self._stepping.items() if since <= late}
        hung |= {self._owner[slot] for slot, command in self._pending.items() if command.since <= late}
        if hung and not self._restarts_left:
            raise StepTimeout([slot for slot in slots if self._owner[slot] in hung] or slots, self._step_timeout)
        for worker in hung:
            self._restart(worker)

    # Deaths

    def _bury(self, died: WorkerDied) -> None:
        """Replace a dead worker; or raise its error, with its commands taken off."""
        if self._restarts_left:
            self._restart(died.worker)
            return
        self._dead[died.worker] = died
        self._stepping.pop(died.worker, None)
        for slot in died.indices:
            self._pending.pop(slot, None)
        if self._step_slots is not None:
            self._step_slots = None
        if self._extras:  # rows of this step that came before: recv hands them out
            self._extras = []
        raise died

    def _restart(self, worker: int) -> None:
        """Replace a worker. Its envs that were in an episode go through `Worker.resume`; then it gets its commands."""
        self._restarts_left -= 1
        self._counters["restarts"] += 1
        shard = self._shards[worker]
        rows = self._board.observations.rows(shard.start, len(shard))
        self._crew.replace(worker, self._board)
        begun = [(slot, row) for slot, row in zip(shard, rows, strict=True) if self.reset_infos[slot]]
        lost = {slot: (row, self._next_seed(slot)) for slot, row in begun}
        self._crew.put(worker, Command.RESUME, lost)
        self._reply(worker)
        if self._info_specs is not None:
            self._crew.put(worker, Command.OPEN_INFO, self._info_specs)
            self._reply(worker)
        now = time.monotonic()
        if worker in self._stepping:
            self._stepping[worker] = now
            self._put_step(worker)
        for slot in shard:
            command = self._pending.get(slot)
            if command is None:
                continue
            if command.kind == Command.AWAIT_RESET:  # the reset it waited for is gone
                command = Pending(now, Command.RESET, {slot: (None, None)})
            self._command(slot, command._replace(since=now))

    def _next_seed(self, slot: int) -> int | None:
        """A seed for an env whose generator is lost: a new one, but a function of what was seeded."""
        if slot not in self._seeds:
            return None
        return int(np.random.SeedSequence([self._seeds[slot], self._counters["restarts"]]).generate_state(1)[0])

    def _note_seeds(self, seeds: dict[int, int | None]) -> None:
        self._seeds.update((slot, seed) for slot, seed in seeds.items() if seed is not None)

    # Checks

    def _check_open(self, what: str) -> None:
        if self.closed:
            raise ClosedError(what)

    def _parse_slots(self, what: str, indices: Indices) -> list[int]:
        self._check_open(what)
        return parse_indices(indices, self.num_envs)

    def _check_free(self, what: str, slots: Sequence[int], *, autoresets: bool = True) -> None:
        """Raise unless these slots can take a command. With `autoresets` False a slot under autoreset can."""
        self._check_open(what)
        if self._step_slots is not None or (self._stepping and not self._dead):
            raise AlreadySteppingError(f"{what} after a step_async: step_wait first")
        if self._call is not None:
            raise AlreadySteppingError(f"{what} after a call_async: call_wait first")
        if self._dead:
            for slot in slots:
                if self._owner[slot] in self._dead:
                    raise self._dead[self._owner[slot]]
        if self._pending or self._ready or self._stepping:
            busy = [s for s in slots if s in self._pending or s in self._ready or self._owner[s] in self._stepping]
            busy = busy if autoresets else [slot for slot in busy if slot not in self._autoresetting]
            if busy:
                raise AlreadySteppingError(f"{what} while envs {describe_indices(busy)} have a command: recv first")

    def _settle(self, slots: Sequence[int], *, drop: bool) -> None:
        """Wait out the async autoresets of some slots; with `drop` forget their first rows, being overtaken."""
        waiting = self._autoresetting.keys() & set(slots)
        if waiting:
            self._gather(lambda: waiting <= self._ready.keys(), waiting, None, None)
            if drop:
                for slot in waiting:
                    self._drop(slot)

    @property
    def active(self) -> NDArray[np.bool_]:
        active = np.ones(self.num_envs, dtype=bool)
        active[self._inactive] = False
        return active

    @property
    def terminated(self) -> NDArray[np.bool_]:
        return (self._last_flags & TERMINATED).astype(bool)

    @property
    def truncated(self) -> NDArray[np.bool_]:
        return (self._last_flags & TRUNCATED).astype(bool)

    @property
    def rewards64(self) -> NDArray[np.float64]:
        rewards = self._board.rewards.copy()
        rewards[list(self._autoresetting)] = 0.0
        return rewards

    # Asking the envs

    def call(self, function: Callable[..., Any], indices: Indices, *args: Any, **kwargs: Any) -> list[Any]:
        self.call_async(function, indices, *args, **kwargs)
        return self.call_wait()

    def call_async(self, function: Callable[..., Any], indices: Indices, *args: Any, **kwargs: Any) -> None:
        slots = self._parse_slots(function.__name__, indices)
        self._check_free(function.__name__, slots, autoresets=False)
        self._settle(slots, drop=False)
        groups = self._by_worker(slots)
        try:
            for worker, group in groups.items():
                self._crew.put(worker, Command.CALL, (function, group, args, kwargs))
        except WorkerDied as died:
            self._bury(died)
            raise
        self._call = Call(slots, groups, {})

    def call_wait(self, timeout: float | None = None) -> list[Any]:
        self._check_open("call_wait")
        if self._call is None:
            raise NotSteppingError("call_wait without a call_async before it")
        slots, groups, results = self._call
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            while groups:
                worker, group = next(iter(groups.items()))
                reply = self._reply(worker, deadline)
                if reply is None:
                    raise StepTimeout([slot for late in groups.values() for slot in late], timeout or 0.0, "call")
                results.update(zip(group, reply, strict=True))
                del groups[worker]
        except WorkerDied as died:
            self._call = None
            self._bury(died)
            raise
        self._call = None
        error = env_error(Extra(slot, {}, None, r) for slot, r in results.items() if isinstance(r, Failure))
        if error is not None:
            raise error
        return [results[slot] for slot in slots]

    def seed(self, seed: Seeds = None) -> list[int | None]:
        seeds = parse_seeds(seed, range(self.num_envs))
        self._prepare("seed", seeds, {})
        self._note_seeds(seeds)
        return [seeds[slot] for slot in range(self.num_envs)]

    def set_options(self, options: Options = None) -> None:
        self._prepare("set_options", {}, parse_options(options, range(self.num_envs)))

    def _prepare(self, what: str, seeds: dict[int, Any], options: dict[int, Any]) -> None:
        everyone = range(self.num_envs)
        self._check_free(what, everyone, autoresets=False)
        self._settle(everyone, drop=False)
        bodies = {
            worker: tuple({s: given[s] for s in shard if s in given} for given in (seeds, options))
            for worker, shard in enumerate(self._shards)
        }
        self._ask({worker: (Command.PREPARE, body) for worker, body in bodies.items()})

    def _ask(self, requests: dict[int, tuple[Command, Any]]) -> dict[int, Any]:
        """Send one request to each worker, then collect the replies. A worker's death is an error in any case."""
        try:
            for worker, (command, body) in requests.items():
                self._crew.put(worker, command, body)
            return {worker: self._reply(worker) for worker in requests}
        except WorkerDied as died:
            self._bury(died)
            raise

    def _reply(self, worker: int, deadline: float | None = None) -> Any:
        """Wait for a worker's REPLY, taking rows that come before it; None once the deadline has passed."""
        while True:
            message = self._crew.get(worker, deadline)
            if message is None or kind_of(message[0]) == Answer.REPLY:
                return message and message[1]
            self._take(worker, message)

    def _by_worker(self, slots: Sequence[int]) -> dict[int, list[int]]:
        groups: dict[int, list[int]] = {}
        for slot in slots:
            groups.setdefault(self._owner[slot], []).append(slot)
        return groups

    def stats(self) -> dict[str, Any]:
        return {
            "backend": type(self).__name__,
            "num_envs": self.num_envs,
            "num_workers": len(self._shards),
            "autoreset": self.autoreset,
            **self._counters,
        }

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self._finalizer.detach()
        _open.discard(self)
        if self._pid != os.getpid():  # a fork of the caller: the workers are not its own
            return
        failures = self._crew.close(CLOSE_GRACE)
        if isinstance(self._board, SharedBoard):
            self._board.forget()
        for failure in failures:
            warnings.warn(f"{failure.summary} while being closed", RuntimeWarning, stacklevel=2)


def plain_board(vec: PoolVecEnv, info_attrs: Sequence[str]) -> Board:
    """Columns in the caller's own memory."""
    return Board(vec.observation_space, vec.action_space, vec.num_envs, Arena(), info_attrs)


def _abandon(crew: Crew, pid: int, name: str) -> None:
    """What happens to a VecEnv that is collected without close()."""
    if pid == os.getpid():
        warnings.warn(f"{name} was not closed: call close() or use a with-statement", ResourceWarning, stacklevel=2)
        crew.close(EXIT_GRACE)


_open: weakref.WeakSet[PoolVecEnv] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    # multiprocessing joins its children at exit. Its hook is older than this one, so it runs later.
    for vec in list(_open):
        vec.close()
