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
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import Env
from numpy.typing import NDArray

from vecenvs import calls
from vecenvs.arguments import parse_indices, parse_options, parse_seeds
from vecenvs.board import TERMINATED, TRUNCATED, Arena, Board
from vecenvs.errors import (
    AlreadySteppingError,
    ClosedError,
    NotSteppingError,
    SpaceMismatch,
    StepTimeout,
    VecEnvError,
    WorkerDied,
    describe_indices,
)
from vecenvs.images import tile
from vecenvs.layout import parse_actions
from vecenvs.protocol import Answer, Command, Extra, Failure, MadeEnvs, RowBody, kind_of, slot_of, tag
from vecenvs.rows import env_error, finish_info, gather, lock_step
from vecenvs.transport import Message, Transport
from vecenvs.transport.shared import SharedBoard
from vecenvs.vec_env import Batch, Indices, Options, Seeds, StepReturn, VecEnv
from vecenvs.worker import AUTORESET_MODES

EnvFn = Callable[[], "Env[Any, Any]"]

LIVENESS = 0.2  # seconds between looks at whether the workers live, while waiting for them
START_TIMEOUT = 300.0  # seconds for the envs of one worker to be made
CLOSE_GRACE = 5.0  # seconds for workers to close their envs, before force
EXIT_GRACE = 1.0


class PoolVecEnv(VecEnv):
    """A VecEnv over workers, each the owner of a contiguous shard of slots."""

    def __init__(
        self,
        env_fns: Sequence[EnvFn],
        num_workers: int,
        *,
        autoreset: str = "same_step",
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
        self._env_fns = list(env_fns)
        self._copy = copy
        self._step_timeout = step_timeout
        self._restarts_left = max_restarts if on_failure == "restart" else 0
        self._pid = os.getpid()
        self._shards = split(n, num_workers)
        self._owner = [worker for worker, shard in enumerate(self._shards) for _ in shard]
        self._transports: list[Transport] = []
        self._pending: dict[int, float] = {}
        self._autoresetting: set[int] = set()
        self._ready: dict[int, Extra | None] = {}
        self._stepping: dict[int, float] = {}
        self._step_slots: set[int] | None = None
        self._extras: list[Extra] = []
        self._restarted: set[int] = set()
        self._resting: dict[int, Any] = {}
        self._last_flags: NDArray[np.uint8] = np.zeros(n, np.uint8)
        self._inactive: list[int] = []
        self._counters = dict.fromkeys(("steps", "rows", "resets", "restarts"), 0)
        self.reset_infos = [{} for _ in range(n)]
        try:
            for worker in range(num_workers):
                self._transports.append(self._launch(worker, self._shards[worker]))
            made = self._made()
            self.observation_space, self.action_space = made.observation_space, made.action_space
            self.spec, self.metadata, self.render_mode = made.spec, made.metadata, made.render_mode
            self._board = self._lay_out()
            for transport in self._transports:
                transport.attach(self._board)
            if isinstance(self._board, SharedBoard) and not self._restarts_left:
                self._board.forget()
        except BaseException:
            _stop_all(self._transports, 0.0)
            raise
        self._wake = self._board.wake if isinstance(self._board, SharedBoard) else None
        self.closed = False
        _open.add(self)
        self._finalizer = weakref.finalize(self, _abandon, self._transports, self._pid, type(self).__name__)
        self._finalizer.atexit = False  # _close_all does it then, in the right order

    @abc.abstractmethod
    def _launch(self, worker: int, shard: range) -> Transport:
        """Start a worker that makes the envs of `shard`, and return without waiting for it."""

    @abc.abstractmethod
    def _lay_out(self) -> Board:
        """Give the columns, now that the spaces are known: shared if any worker lives in another process."""

    def _made(self) -> MadeEnvs:
        """Wait until every worker has made its envs; check that their spaces agree."""
        first: MadeEnvs | None = None
        for worker in range(len(self._transports)):
            made = self._wait_made(worker)
            first = first or made
            self._check_spaces(first, made, self._shards[worker][0])
        if first is None:
            raise VecEnvError("a VecEnv without workers")
        return first

    def _wait_made(self, worker: int) -> MadeEnvs:
        message = self._get(worker, time.monotonic() + START_TIMEOUT)
        if message is None:
            raise StepTimeout(self._shards[worker], START_TIMEOUT, "making")
        made = message[1]
        if isinstance(made, Failure):
            raise made.to_error()
        assert isinstance(made, MadeEnvs)
        return made

    def _check_spaces(self, first: MadeEnvs, made: MadeEnvs, slot: int) -> None:
        if made.mismatch is not None:
            index, which, theirs, ours = made.mismatch
            raise SpaceMismatch(index, which, theirs, ours)
        for which in ("observation", "action"):
            theirs, ours = getattr(made, f"{which}_space"), getattr(first, f"{which}_space")
            if theirs != ours:
                raise SpaceMismatch(slot, which, theirs, ours)

    # Stepping in lock-step

    def step_async(self, actions: Any) -> None:
        self._check_idle("step_async", autoresets=False)
        self._board.actions.assign(parse_actions(self._board.actions.layout, actions, self.num_envs))
        now = time.monotonic()
        if self._autoresetting or self._restarted:
            self._step_slots = set(range(self.num_envs)) - self._autoresetting
            self._put_slots(sorted(self._step_slots), now)
            return
        for worker in range(len(self._transports)):
            self._put_step(worker, now)

    def _put_step(self, worker: int, now: float) -> None:
        shard = self._shards[worker]
        self._stepping[worker] = now
        self._put(worker, Command.STEP, self._board.actions.objects(shard.start, len(shard)))

    def step_wait(self, timeout: float | None = None) -> StepReturn:
        self._check_open("step_wait")
        if not self._stepping and self._step_slots is None:
            raise NotSteppingError("step_wait without a step_async before it")
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._stepping:
            worker = next(reversed(self._stepping))  # the caller's own shard is the last one
            message = self._get(worker, self._limit(deadline, self._stepping[worker]))
            if message is None:
                slots = [slot for w in sorted(self._stepping) for slot in self._shards[w]]
                raise self._timed_out(slots, timeout)
            self._take_rows(worker, message)
        if self._step_slots is not None:
            return self._finish_slots(deadline, timeout)
        return self._finish_step()

    def _take_rows(self, worker: int, message: Message) -> None:
        """Take the answer to STEP."""
        del self._stepping[worker]
        body: RowBody | None = message[1]
        if body is not None:
            self._extras.extend(body.extras)
            shard = self._shards[worker]
            self._board.observations.take_objects(shard.start, len(shard), body.objects)

    def _finish_step(self) -> StepReturn:
        extras, self._extras = self._extras, []
        self._inactive = []
        for extra in extras:
            if extra.reset_info is not None:
                self.reset_infos[extra.slot] = extra.reset_info
                if not self._board.flags[extra.slot]:
                    self._inactive.append(extra.slot)
        self._last_flags = self._board.flags.copy()
        self._counters["steps"] += 1
        self._counters["rows"] += self.num_envs
        error = env_error(extras)
        if error is not None:
            failed = {e.index for e in error.errors}
            found = {extra.slot: extra for extra in extras}
            rows = [(slot, found.get(slot)) for slot in range(self.num_envs) if slot not in failed]
            error.batch = gather(self._board, rows)
            self._begin_autoresets(rows)
            raise error
        result = lock_step(self._board, extras, copy=self._copy)
        if self.autoreset == "async":
            self._begin_autoresets([(extra.slot, extra) for extra in extras])
        return result

    def _finish_slots(self, deadline: float | None, timeout: float | None) -> StepReturn:
        """Finish a step in which some envs take no part, since they are being reset."""
        wanted = self._step_slots or set()
        self._gather(lambda: wanted <= self._ready.keys(), deadline, timeout, wanted)
        if not wanted:
            self._gather(lambda: bool(self._ready), deadline, timeout, set(self._autoresetting))
        self._poll()
        self._step_slots = None
        resting = sorted(self._autoresetting - self._ready.keys())
        fresh = set(self._ready) - wanted
        self._autoresetting -= fresh
        self._extras = [extra for extra in self._ready.values() if extra is not None]
        self._ready.clear()
        for slot in resting:
            self._extras.append(Extra(slot, {"resetting": True}))
        for slot in fresh:
            self._resting.pop(slot, None)
        obs, rewards, dones, infos = self._finish_step()
        for slot in resting:
            for array, part in zip(
                self._board.observations.layout.flatten(obs), self._resting[slot], strict=True
            ):
                array[slot] = part
            rewards[slot] = 0.0
            dones[slot] = False
            self._last_flags[slot] = 0
            infos[slot] = finish_info({"resetting": True}, 0)
        self._inactive.extend(resting)
        return obs, rewards, dones, infos

    # Any subset

    def send(self, actions: Any, indices: Indices = None) -> None:
        slots = self._check_slots("send", indices)
        parts = parse_actions(self._board.actions.layout, actions, len(slots))
        self._board.actions.assign(parts, np.array(slots, dtype=np.int64))
        self._put_slots(slots, time.monotonic())

    def _put_slots(self, slots: Sequence[int], now: float) -> None:
        actions = self._board.actions
        for slot in slots:
            if slot in self._restarted:
                self._restarted.discard(slot)
                self._ready[slot] = self._restarted_row(slot)
                continue
            self._pending[slot] = now
            self._put(self._owner[slot], tag(Command.STEP_ONE, slot), actions.objects(slot, 1))

    def reset_async(self, indices: Indices = None, *, seed: Seeds = None, options: Options = None) -> None:
        slots = parse_indices(indices, self.num_envs)
        seeds, all_options = parse_seeds(seed, slots), parse_options(options, slots)
        self._settle(slots, "reset")
        self._check_slots("reset", slots)
        now = time.monotonic()
        for worker, shard in self._by_worker(slots).items():
            for slot in shard:
                self._pending[slot] = now
                self._restarted.discard(slot)
            self._put(worker, Command.RESET, {slot: (seeds[slot], all_options[slot]) for slot in shard})
        self._counters["resets"] += len(slots)

    def recv(self, min_envs: int = 1, max_envs: int | None = None, timeout: float | None = None) -> Batch:
        self._check_open("recv")
        if self._stepping or self._step_slots is not None:
            raise NotSteppingError("recv after step_async: finish with step_wait, or use send")
        due = len(self._pending) + len(self._ready)
        if not due:
            raise NotSteppingError("recv while nothing is pending: send or reset_async first")
        if not 1 <= min_envs <= due:
            raise ValueError(f"min_envs={min_envs} while {due} envs have a command pending: give 1 to {due}")
        if max_envs is not None and max_envs < min_envs:
            raise ValueError(f"max_envs={max_envs} is less than min_envs={min_envs}")
        deadline = None if timeout is None else time.monotonic() + timeout
        self._gather(lambda: len(self._ready) >= min_envs, deadline, timeout, self._pending.keys())
        rows: list[tuple[int, Extra | None]] = []
        for slot, extra in list(self._ready.items())[:max_envs]:
            if extra is not None and extra.failure is not None:
                if rows:
                    break
                del self._ready[slot]
                self._autoresetting.discard(slot)
                raise extra.failure.to_error()
            rows.append((slot, extra))
        return self._hand_out(rows)

    def reset(self, indices: Indices = None, *, seed: Seeds = None, options: Options = None) -> Any:
        slots = parse_indices(indices, self.num_envs)
        self.reset_async(slots, seed=seed, options=options)
        wanted = set(slots)
        self._gather(lambda: wanted <= self._ready.keys(), None, None, wanted)
        extras = [extra for slot in slots if (extra := self._ready[slot]) is not None]
        error = env_error(extras)
        failed = {e.index for e in error.errors} if error else set()
        for slot in failed:
            del self._ready[slot]
        batch = self._hand_out([(slot, self._ready[slot]) for slot in slots if slot not in failed])
        if error is not None:
            error.batch = batch
            raise error
        return batch.obs

    def _hand_out(self, rows: list[tuple[int, Extra | None]]) -> Batch:
        for slot, extra in rows:
            del self._ready[slot]
            self._autoresetting.discard(slot)
            if extra is not None and extra.reset_info is not None:
                self.reset_infos[slot] = extra.reset_info
        batch = gather(self._board, rows)
        self._counters["rows"] += len(rows)
        self._begin_autoresets(rows)
        return batch

    def _begin_autoresets(self, rows: Sequence[tuple[int, Extra | None]]) -> None:
        """In async mode, ask for the first rows of the episodes that follow those which have just ended.

        Only now may the worker write these slots' rows again: the last ones have been copied.
        """
        if self.autoreset != "async":
            return
        now = time.monotonic()
        for slot, extra in rows:
            if extra is not None and self._board.flags[slot] and "worker_restarted" not in extra.info:
                self._resting[slot] = [array[slot].copy() for array in self._board.observations.arrays]
                self._autoresetting.add(slot)
                self._pending[slot] = now
                self._put(self._owner[slot], tag(Command.AWAIT_RESET, slot))

    # Waiting

    def _gather(
        self, enough: Callable[[], bool], deadline: float | None, timeout: float | None, waited_for: Any
    ) -> None:
        """Take rows as they come until `enough`; StepTimeout names those of `waited_for` that are missing."""
        self._poll()
        while not enough():
            since = min(self._pending.values(), default=None)
            limit = self._limit(deadline, since)
            if limit is not None and time.monotonic() >= limit:
                raise self._timed_out([slot for slot in sorted(waited_for) if slot not in self._ready], timeout)
            self._rest(LIVENESS if limit is None else min(LIVENESS, max(limit - time.monotonic(), 0.0)))
            if not self._poll():
                for worker in {self._owner[slot] for slot in self._pending}:
                    self._check_alive(worker)

    def _poll(self) -> bool:
        """Take every row that is there; tell whether there was any."""
        found = False
        if self._wake is not None:
            while self._wake.acquire(False):
                continue
        for worker in {self._owner[slot] for slot in self._pending}:
            while (message := self._transports[worker].get(0)) is not None:
                self._take_row(message)
                found = True
        return found

    def _rest(self, seconds: float) -> None:
        """Sleep until a worker has something, at most `seconds`."""
        workers = {self._owner[slot] for slot in self._pending}
        if len(workers) == 1:
            message = self._transports[workers.pop()].get(seconds)
            if message is not None:
                self._take_row(message)
        elif self._wake is not None and all(self._transports[worker].wakes for worker in workers):
            self._wake.acquire(True, seconds)
        else:
            time.sleep(min(seconds, 2e-4))

    def _take_row(self, message: Message) -> None:
        """Take the answer about one slot."""
        if kind_of(message[0]) != Answer.ROW:
            raise VecEnvError(f"a worker answered {message[0]} out of turn")
        slot = slot_of(message[0])
        body: RowBody | None = message[1]
        del self._pending[slot]
        extra = None
        if body is not None:
            extra = body.extras[0] if body.extras else None
            self._board.observations.take_objects(slot, 1, body.objects)
        self._ready[slot] = extra

    def _limit(self, deadline: float | None, since: float | None) -> float | None:
        """When to give up: the caller's deadline or the step_timeout of a command sent at `since`."""
        if self._step_timeout is None or since is None:
            return deadline
        own = since + self._step_timeout
        return own if deadline is None else min(own, deadline)

    def _timed_out(self, slots: list[int], timeout: float | None) -> StepTimeout:
        seconds = self._step_timeout if timeout is None else timeout
        return StepTimeout(slots, seconds or 0.0)

    def _get(self, worker: int, limit: float | None) -> Message | None:
        """Wait for a worker's next message; None once `limit` has passed. WorkerDied if none can come any more."""
        transport = self._transports[worker]
        while True:
            rest = LIVENESS if limit is None else min(LIVENESS, limit - time.monotonic())
            message = transport.get(max(rest, 0.0))
            if message is not None:
                return message
            if limit is not None and time.monotonic() >= limit:
                return None
            self._check_alive(worker)

    def _check_alive(self, worker: int) -> None:
        transport = self._transports[worker]
        gone, exitcode = transport.exit_status()
        if gone:
            message = transport.get(0)  # what it said before it died
            if message is not None and kind_of(message[0]) == Answer.ROW:
                self._take_row(message)
                return
            raise WorkerDied(worker, self._shards[worker], exitcode)

    def _put(self, worker: int, tag: int, body: object = None) -> None:
        try:
            self._transports[worker].put(tag, body)
        except (BrokenPipeError, ConnectionError):
            raise WorkerDied(worker, self._shards[worker], self._transports[worker].exit_status()[1]) from None

    def _restarted_row(self, slot: int) -> Extra:
        raise NotImplementedError

    # State

    def _check_open(self, what: str) -> None:
        if self.closed:
            raise ClosedError(what)

    def _check_idle(self, what: str, *, autoresets: bool = True) -> None:
        """Raise unless no command is unanswered; autoresets under way count only if `autoresets`."""
        self._check_open(what)
        if self._stepping or self._step_slots is not None:
            raise AlreadySteppingError(f"{what} after a step_async: step_wait first")
        busy = {*self._pending, *self._ready}
        if not autoresets:
            busy -= self._autoresetting
        if busy:
            raise AlreadySteppingError(f"{what} while envs {describe_indices(sorted(busy))} have a command: recv first")

    def _check_slots(self, what: str, indices: Indices) -> list[int]:
        self._check_open(what)
        slots = parse_indices(indices, self.num_envs)
        if self._stepping or self._step_slots is not None:
            raise AlreadySteppingError(f"{what} after a step_async: step_wait first")
        busy = [slot for slot in slots if slot in self._pending or slot in self._ready]
        if busy:
            raise AlreadySteppingError(f"{what} while envs {describe_indices(busy)} have a command pending: recv first")
        return slots

    def _settle(self, slots: Sequence[int], what: str) -> None:
        """Wait out the async autoresets of some slots, and drop their first rows: they are overtaken by `what`."""
        self._check_open(what)
        waiting = self._autoresetting.intersection(slots)
        if waiting and not self._stepping and self._step_slots is None:
            self._gather(lambda: waiting <= self._ready.keys(), None, None, waiting)
            for slot in waiting:
                del self._ready[slot]
                self._autoresetting.discard(slot)
                self._resting.pop(slot, None)

    def _by_worker(self, slots: Sequence[int]) -> dict[int, list[int]]:
        groups: dict[int, list[int]] = {}
        for slot in slots:
            groups.setdefault(self._owner[slot], []).append(slot)
        return groups

    @property
    def active(self) -> NDArray[np.bool_]:
        active = np.ones(self.num_envs, dtype=bool)
        active[self._inactive] = False
        return active

    @property
    def terminated(self) -> NDArray[np.bool_]:
        return (self._last_flags & TERMINATED) != 0

    @property
    def truncated(self) -> NDArray[np.bool_]:
        return (self._last_flags & TRUNCATED) != 0

    # Asking the envs

    def _call(self, function: Callable[..., Any], indices: Indices, *args: Any, **kwargs: Any) -> list[Any]:
        """Run a function on some envs, where they live; give its results in the order of `indices`."""
        slots = parse_indices(indices, self.num_envs)
        self._check_open(function.__name__)
        self._wait_autoresets(slots)
        self._check_slots(function.__name__, [slot for slot in slots if slot not in self._autoresetting])
        groups = self._by_worker(slots)
        for worker, shard in groups.items():
            self._put(worker, Command.CALL, (function, shard, args, kwargs))
        results: dict[int, Any] = {}
        for worker, shard in groups.items():
            results.update(zip(shard, self._reply(worker), strict=True))
        error = env_error(Extra(s, {}, None, r) for s, r in results.items() if isinstance(r, Failure))
        if error is not None:
            raise error
        return [results[slot] for slot in slots]

    def _wait_autoresets(self, slots: Sequence[int]) -> None:
        """Let the async autoresets of some slots finish; their first rows stay to be handed out."""
        waiting = self._autoresetting.intersection(slots)
        if waiting and not self._stepping and self._step_slots is None:
            self._gather(lambda: waiting <= self._ready.keys(), None, None, waiting)

    def _reply(self, worker: int) -> Any:
        while True:
            message = self._get(worker, None)
            if message is not None and kind_of(message[0]) == Answer.REPLY:
                return message[1]
            if message is not None:
                self._take_row(message)

    def _prepare(self, seeds: dict[int, Any], options: dict[int, Any]) -> None:
        self._check_idle("seed or set_options", autoresets=False)
        slots = sorted({*seeds, *options})
        self._wait_autoresets(slots)
        groups = self._by_worker(slots)
        for worker, shard in groups.items():
            body = [{slot: values[slot] for slot in shard if slot in values} for values in (seeds, options)]
            self._put(worker, Command.PREPARE, tuple(body))
        for worker in groups:
            self._reply(worker)

    def seed(self, seed: Seeds = None) -> list[int | None]:
        seeds = parse_seeds(seed, range(self.num_envs))
        self._prepare(seeds, {})
        return [seeds[slot] for slot in range(self.num_envs)]

    def set_options(self, options: Options = None) -> None:
        self._prepare({}, parse_options(options, range(self.num_envs)))

    def get_attr(self, name: str, indices: Indices = None) -> list[Any]:
        return self._call(calls.get_attr, indices, name)

    def set_attr(self, name: str, value: Any, indices: Indices = None) -> None:
        self._call(calls.set_attr, indices, name, value)

    def has_attr(self, name: str) -> bool:
        return all(self._call(calls.has_attr, None, name))

    def env_method(self, name: str, *args: Any, indices: Indices = None, **kwargs: Any) -> list[Any]:
        return self._call(calls.env_method, indices, name, *args, **kwargs)

    def env_is_wrapped(self, wrapper_class: type, indices: Indices = None) -> list[bool]:
        return self._call(calls.env_is_wrapped, indices, wrapper_class)

    def get_images(self) -> list[Any]:
        if self.render_mode is None:
            raise VecEnvError("these envs were made without a render_mode: make them with render_mode='rgb_array'")
        if self.render_mode not in ("rgb_array", "human"):
            raise VecEnvError(
                f"render_mode {self.render_mode!r} gives no images: make the envs with render_mode='rgb_array', "
                "or call env_method('render')"
            )
        return self._call(calls.render, None)

    def render(self) -> NDArray[np.uint8] | None:
        images = self.get_images()
        return tile(images) if self.render_mode == "rgb_array" else None

    def stats(self) -> dict[str, Any]:
        return {
            "backend": type(self).__name__,
            "num_envs": self.num_envs,
            "num_workers": len(self._transports),
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
        failures = _ask_to_close(self._transports, CLOSE_GRACE)
        _stop_all(self._transports, EXIT_GRACE)
        if isinstance(self._board, SharedBoard):
            self._board.forget()
        for failure in failures:
            warnings.warn(f"{failure.summary} while being closed", RuntimeWarning, stacklevel=2)


def split(n: int, num_workers: int) -> list[range]:
    """Divide n slots into contiguous shards whose sizes differ by one at most, larger ones first."""
    if isinstance(num_workers, bool) or not isinstance(num_workers, int):
        raise TypeError(f"num_workers must be an int, not {num_workers!r}")
    if not 1 <= num_workers <= n:
        raise ValueError(f"num_workers={num_workers} for {n} envs: give 1 to {n}, or None for one per usable core")
    size, rest = divmod(n, num_workers)
    starts = [worker * size + min(worker, rest) for worker in range(num_workers + 1)]
    return [range(a, b) for a, b in zip(starts, starts[1:], strict=False)]


def check_env_fns(env_fns: Any) -> None:
    """Refuse what is no list of functions, naming the entry."""
    if callable(env_fns) or not isinstance(env_fns, Sequence):
        raise TypeError(f"env_fns must be a list of functions that make an env each, not {env_fns!r}")
    if not env_fns:
        raise ValueError("env_fns is empty: give one function per env")
    for i, env_fn in enumerate(env_fns):
        if not callable(env_fn):
            raise TypeError(f"env_fns[{i}] is {env_fn!r}: give a function that makes an env (lambda: gym.make(...))")


def plain_board(vec: PoolVecEnv) -> Board:
    """Columns in the caller's own memory."""
    return Board(vec.observation_space, vec.action_space, vec.num_envs, Arena())


def _ask_to_close(transports: list[Transport], grace: float) -> list[Failure]:
    """Tell every worker to close its envs, all at once; give what their close() raised."""
    deadline = time.monotonic() + grace
    asked = []
    for transport in transports:
        try:
            transport.put(Command.CLOSE)
            asked.append(transport)
        except Exception:  # it is gone already, or never stood: `stop` sees to it
            continue
    failures: list[Failure] = []
    for transport in asked:
        while True:
            message = transport.get(min(0.05, max(deadline - time.monotonic(), 0.0)))
            if message is None:
                if transport.exit_status()[0] or time.monotonic() >= deadline:
                    break
            elif kind_of(message[0]) == Answer.REPLY and isinstance(message[1], list):
                failures.extend(message[1])
                break
    return failures


def _stop_all(transports: list[Transport], grace: float) -> None:
    deadline = time.monotonic() + grace
    for transport in transports:
        transport.stop(max(deadline - time.monotonic(), 0.0))


def _abandon(transports: list[Transport], pid: int, name: str) -> None:
    """What happens to a VecEnv that is collected without close()."""
    if pid == os.getpid():
        warnings.warn(f"{name} was not closed: call close() or use it in a with-statement", ResourceWarning, stacklevel=2)
        _ask_to_close(transports, EXIT_GRACE)
        _stop_all(transports, EXIT_GRACE)


_open: weakref.WeakSet[PoolVecEnv] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    # multiprocessing joins its children at exit. Its hook is older than this one, so it runs later.
    for vec in list(_open):
        vec.close()
