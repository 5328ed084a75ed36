"""The one concrete VecEnv: it turns calls about envs into commands to the workers that own them.

Backends subclass `PoolVecEnv` and say how a worker is launched. The `Ledger` keeps what is under way, the `Crew` the
workers, the `Board` the rows; here is what callers see.
"""

from __future__ import annotations

import abc
import errno
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import Env
from numpy.typing import NDArray

from vecenvs import calls
from vecenvs.actions import parse_actions
from vecenvs.arguments import (
    arguments_of,
    check_arguments,
    check_env_fns,
    check_function,
    check_names,
    check_portion,
    deadline_of,
    parse_indices,
    parse_int,
    parse_options,
    parse_seeds,
    parse_timeout,
    split,
)
from vecenvs.asking import Asking
from vecenvs.board import DONE, FIRST, TERMINATED, TRUNCATED, Arena, Board
from vecenvs.crew import CLOSE_GRACE, Crew
from vecenvs.errors import (
    AlreadySteppingError,
    ClosedError,
    NotSteppingError,
    VecEnvError,
    WorkerDied,
)
from vecenvs.host import AUTORESET_MODES
from vecenvs.info_columns import InfoColumns
from vecenvs.infos import blank_info, copies
from vecenvs.ledger import Ledger
from vecenvs.lifetime import Lifetime
from vecenvs.protocol import Command, Extra
from vecenvs.rows import Row, all_rows, complete, env_error, gather
from vecenvs.transport import Transport
from vecenvs.transport.shared import SharedBoard
from vecenvs.vec_env import Batch, Indices, Options, Seeds, StepReturn, VecEnv

EnvFn = Callable[[], "Env[Any, Any]"]

# How a system says that there is no more: descriptors, processes, memory, room.
_SCARCE = {errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM, errno.ENOSPC, errno.EFBIG, errno.EROFS}


class PoolVecEnv(VecEnv):
    """A VecEnv over workers, each the owner of a contiguous shard of slots.

    Common to all engines: `autoreset` (see `vec_env`); `copy=False` lets `step` give views that are valid until the
    next call; `step_timeout` seconds without an answer from an env raise StepTimeout (what a worker spends on its other
    envs does not count, and envs in the caller's process are never late); `on_failure="restart"` replaces a dead
    worker, or one over `step_timeout`, at most `max_restarts` times: its envs give a truncated row with
    info["worker_restarted"] and begin new episodes.
    """

    def __init__(
        self,
        env_fns: Sequence[EnvFn],
        num_workers: int | None = 1,
        /,
        *,
        autoreset: str = "same_step",
        info_attrs: Sequence[str] = (),
        copy: bool = True,
        step_timeout: float | None = None,
        on_failure: str = "raise",
        max_restarts: int = 10,
        **unknown: Any,
    ) -> None:
        self.closed = True  # until everything stands
        called = type(self)  # Python's own error would name this class, which nobody calls
        check_arguments(called.__name__, unknown, [name for name in arguments_of(called) if name not in unknown])
        if autoreset not in AUTORESET_MODES:
            raise ValueError(f"autoreset {autoreset!r} is none of {', '.join(AUTORESET_MODES)}")
        if on_failure not in ("raise", "restart"):
            raise ValueError(f"on_failure must be 'raise' or 'restart', not {on_failure!r}")
        if parse_timeout(step_timeout, "step_timeout") == 0:
            raise ValueError("step_timeout must be more than 0 seconds, or None")
        self.autoreset = autoreset
        self._info_attrs = check_names("info_attrs", info_attrs)
        self.copy = copy
        restarts = parse_int("max_restarts", max_restarts, 0) * (on_failure == "restart")
        num_workers = self._begin(env_fns, num_workers)
        check_env_fns(env_fns)
        self.num_envs = n = len(env_fns)
        self._env_fns = list(env_fns)
        self._shards = split(n, num_workers)
        self._step_slots: set[int] | None = None  # of a lock-step in which the others are being reset
        self._informed = False  # whether the last step brought infos of whole shards
        self._seeds: dict[int, int] = {}  # the last seed given to each slot: what a restart's seeds derive from
        # Seeds and options that wait for a slot's next reset.
        self._held: tuple[dict[int, Any], dict[int, Any]] = ({}, {})
        self._no_flags = bytes(n)
        self._last_flags = self._no_flags
        self._inactive: list[int] = []
        self._rewards64: NDArray[np.float64] | None = None  # kept where the columns may be written again
        self._counters = dict.fromkeys(("steps", "received", "resets"), 0)
        self.reset_infos = [{} for _ in range(n)]
        self._crew = Crew(self._shards, self._launch)
        self._lifetime = Lifetime(self, self._crew)  # from the first worker on, whatever comes between
        board: Board | None = None
        try:
            made = self._crew.start()
            self.observation_space, self.action_space = made.observation_space, made.action_space
            self.spec, self.metadata, self.render_mode = made.spec, made.metadata, made.render_mode
            self._board = board = self._lay_out()
            shared = board if isinstance(board, SharedBoard) else None
            self._crew.attach(self._board, shared.wake if shared else None)
            if shared is not None and not restarts:  # a worker launched later still has to find it
                shared.forget()
            self._infos = InfoColumns(self._info_attrs, self._board)
            self._ledger = Ledger(self._crew, self._board, step_timeout, restarts, self._briefing)
            self._asking = Asking(self._ledger, self._shards)
            self.closed = False
        except BaseException as exc:
            self.closed = True
            self._crew.close(0.0)
            self._lifetime.end()
            if isinstance(board, SharedBoard):
                board.forget()
            if isinstance(exc, OSError) and exc.errno in _SCARCE:
                raise _refused(called.__name__, n, num_workers, exc) from exc
            raise

    def _begin(self, env_fns: Sequence[EnvFn], num_workers: int | None) -> int:
        """Start what workers need beforehand, now that all other arguments are right; give the number of workers."""
        return parse_int("num_workers", num_workers)

    @abc.abstractmethod
    def _launch(self, worker: int, shard: range) -> Transport:
        """Start a worker that makes the envs of `shard`, and return without waiting for it."""

    def _lay_out(self) -> Board:
        """Give the columns, now that the spaces are known: shared, for workers in other processes."""
        return SharedBoard(self.observation_space, self.action_space, self.num_envs, self._info_attrs)

    # Stepping in lock-step

    def step_async(self, actions: Any) -> None:
        ledger = self._ledger
        if self.closed or self._asking.call is not None or self._step_slots is not None or ledger.busy():
            self._check_free("step_async", range(self.num_envs), autoresets=False)
        columns = self._board.actions
        if not columns.take(actions):
            columns.assign(self._parse_actions(actions, self.num_envs))
        if self._info_attrs and self._infos.closed:
            self._open_infos()
        if not ledger.resting:
            ledger.step_all()
            return
        self._step_slots = set(range(self.num_envs)) - ledger.resting.keys()
        ledger.step_slots(sorted(self._step_slots))

    def step_wait(self, timeout: float | None = None) -> StepReturn:
        ledger = self._ledger
        deadline = None if timeout is None else deadline_of(timeout)
        if self._step_slots is not None:
            self._check_open("step_wait")
            extras = self._wait_slots(self._step_slots, deadline, timeout)
            self._step_slots = None
            self._counters["steps"] += 1
            return self._finish_step(extras, copies(blank_info(), self.num_envs), filled=False)
        if self.closed or not ledger.stepping or ledger.dead:
            self._check_open("step_wait")
            if ledger.stepping:  # the step has failed: what is still to come of it comes by recv
                raise next(iter(ledger.dead.values()))
            raise NotSteppingError("step_wait without a step_async before it")
        columns = self._infos
        # While the workers are busy, dicts for what they will say: unless it was whole infos last time.
        prepared = None if self._informed or columns.whole else columns.blank()
        ledger.finish_step(deadline, timeout)
        self._counters["steps"] += 1
        came = ledger.lock_step
        if prepared is not None and not (came.extras or came.infos):
            extras, infos, filled = [], prepared, False
        else:
            extras, infos, filled = self._informed_step(prepared)
        if not came.plain:
            return self._finish_step(extras, infos, filled=filled)
        # No episode has ended: most steps of most envs.
        self._last_flags, self._inactive, self._rewards64 = self._no_flags, [], None
        if self._info_attrs and not filled:
            columns.fill(range(self.num_envs), infos)
        return all_rows(self._board, infos, copy=self.copy)

    def _informed_step(self, prepared: list[dict[str, Any]] | None) -> tuple[list[Extra], list[dict[str, Any]], bool]:
        """Give the extras of a lock-step and its infos, and whether these have the attributes, where there are some."""
        came, columns = self._ledger.lock_step, self._infos
        extras, self._informed = came.take_extras(), bool(came.infos)
        if self._informed:
            return extras, came.all_infos(), False
        if columns.whole and not extras:
            return extras, columns.filled(), True
        return extras, prepared or columns.blank(), False

    def _wait_slots(self, wanted: set[int], deadline: float | None, timeout: float | None) -> list[Extra]:
        """Finish a step in which some envs take no part, since they are being reset."""
        ledger = self._ledger
        try:
            if wanted:
                ledger.await_rows(wanted, deadline, timeout)
            else:
                ledger.gather(lambda: bool(ledger.ready), ledger.resting.keys(), deadline, timeout)
            ledger.sweep()
        except WorkerDied:
            self._step_slots = None  # the other rows come by recv
            raise
        extras = [extra for extra in ledger.ready.values() if extra is not None]
        for slot in list(ledger.ready):
            ledger.drop(slot)
        return extras

    def _finish_step(self, extras: list[Extra], infos: list[dict[str, Any]], *, filled: bool) -> StepReturn:
        """Add to the rows what is more than columns; `filled` tells whether `infos` have the attributes already."""
        board, flags, resting = self._board, self._board.flags, self._ledger.resting
        self._inactive = list(resting)
        if resting:
            flags = flags.copy()
            flags[self._inactive] = 0
            extras.extend(Extra(slot, {"resetting": True, **self._infos.kept(slot)}) for slot in resting)
        # In async mode the rows of ended episodes are written again before this returns.
        result = all_rows(board, infos, copy=self.copy or self.autoreset == "async")
        flagged = flags.nonzero()[0].tolist()
        self._last_flags = of_all = flags.tobytes()
        complete([infos[slot] for slot in flagged], board, flagged, [of_all[slot] for slot in flagged])
        dones = result[2]
        for slot in flagged:
            flag = of_all[slot]
            if flag & DONE:
                dones[slot] = True
            if flag & FIRST:
                self._begin_episode(slot)
                if not flag & DONE:
                    self._inactive.append(slot)
        if self.autoreset == "async":
            self._rewards64 = board.rewards.copy()
            self._rewards64[list(resting)] = 0.0
        if extras:
            self._take_extras(extras, infos)
        for slot, parts in resting.items():
            board.observations.layout.set_row(result[0], slot, parts)
            result[1][slot] = 0.0
        if self._info_attrs and not filled:
            self._infos.fill(range(self.num_envs), infos)
        if self.autoreset == "async":
            self._begin_autoresets(flagged, [infos[slot] for slot in flagged])
        return result

    def _take_extras(self, extras: list[Extra], infos: list[dict[str, Any]]) -> None:
        """Take what came besides the columns; raise if an env has failed, with the others' rows."""
        for extra in extras:
            if extra.info:
                infos[extra.slot] = {**extra.info, **infos[extra.slot]}
            if extra.reset_info:
                self._begin_episode(extra.slot, extra.reset_info)
        error = env_error(extras)
        if error is not None:
            failed = {e.index for e in error.errors} | self._ledger.resting.keys()
            found = self._ledger.lock_step.by_slot(extras)
            slots = [slot for slot in range(self.num_envs) if slot not in failed]
            error.batch = self._batch([(slot, found.get(slot)) for slot in slots])
            self._begin_autoresets(slots, error.batch.infos)
            raise error

    # Any subset

    def send(self, actions: Any, indices: Indices = None) -> None:
        slots = self._parse_slots("send", indices)
        self._check_free("send", slots)
        parts = self._parse_actions(actions, len(slots))
        if self._infos.closed and not self._ledger.due:
            self._open_infos()
        self._board.actions.assign(parts, np.array(slots, dtype=np.int64))
        self._ledger.step_slots(slots)

    def reset_async(self, indices: Indices = None, *, seed: Seeds = None, options: Options = None) -> None:
        slots = self._parse_slots("reset", indices)
        seeds, all_options = parse_seeds(seed, slots), parse_options(options, slots)
        self._check_free("reset", slots, autoresets=False)
        if options is not None:
            self._crew.check_portable("options", all_options)
        self._ledger.settle(slots, drop=True)
        self._note_seeds(seeds)
        for slot in slots:
            self._ledger.command(slot, Command.RESET, {slot: (seeds[slot], all_options[slot])})
        self._counters["resets"] += len(slots)

    def recv(self, min_envs: int = 1, max_envs: int | None = None, timeout: float | None = None) -> Batch:
        self._check_open("recv")
        if self._asking.call is not None:
            raise AlreadySteppingError("recv after a call_async: call_wait first")
        ledger = self._ledger
        if self._step_slots is not None or (ledger.stepping and not ledger.dead):
            raise NotSteppingError("recv after step_async: finish it with step_wait, or use send instead")
        due = ledger.due
        if type(min_envs) is not int or not 1 <= min_envs <= due or max_envs is not None:
            check_portion(due, min_envs, max_envs)
        deadline = deadline_of(timeout)
        ledger.gather(lambda: len(ledger.ready) >= min_envs, range(self.num_envs), deadline, timeout)
        rows: list[Row] = []
        for slot, extra in list(ledger.ready.items())[:max_envs]:
            if extra is not None and extra.failure is not None:
                if rows:
                    break
                ledger.drop(slot)
                raise extra.failure.to_error()
            rows.append((slot, extra))
        return self._hand_out(rows)

    def reset(self, indices: Indices = None, *, seed: Seeds = None, options: Options = None) -> Any:
        slots = self._parse_slots("reset", indices)
        self.reset_async(slots, seed=seed, options=options)
        ready = self._ledger.ready
        self._ledger.await_rows(slots)
        error = env_error(extra for slot in slots if (extra := ready[slot]) is not None)
        for failed in error.errors if error else ():
            self._ledger.drop(failed.index)
        batch = self._hand_out([(slot, ready[slot]) for slot in slots if slot in ready])
        if error is not None:
            error.batch = batch
            raise error
        return batch.obs

    def _hand_out(self, rows: list[Row]) -> Batch:
        for slot, extra in rows:
            self._ledger.drop(slot)
            if self._board.flags[slot] & FIRST:
                self._begin_episode(slot, extra.reset_info if extra is not None else None)
        batch = self._batch(rows)
        self._counters["received"] += len(rows)
        self._begin_autoresets([slot for slot, _ in rows], batch.infos)
        return batch

    def _begin_episode(self, slot: int, reset_info: dict[str, Any] | None = None) -> None:
        info = dict(reset_info) if reset_info else {}
        if self._info_attrs:
            info |= {name: value for name, value in self._infos.first(slot).items() if name not in info}
        for held in self._held:
            if held:
                held.pop(slot, None)
        info["episode_start"] = True
        self.reset_infos[slot] = info

    def _begin_autoresets(self, slots: Sequence[int], infos: Sequence[dict[str, Any]]) -> None:
        """In async mode the envs whose episodes end with these rows, which have been copied, are being reset."""
        if self.autoreset != "async":
            return
        for slot, info in zip(slots, infos, strict=True):
            if self._board.flags[slot] & DONE:
                self._infos.keep(slot, info)
        self._ledger.end_episodes(slots)

    def _batch(self, rows: Sequence[Row]) -> Batch:
        batch = gather(self._board, rows)
        if self._info_attrs:
            self._infos.fill([slot for slot, _ in rows], batch.infos)
        return batch

    def info_array(self, name: str) -> NDArray[Any]:
        return self._infos.stacked(name)

    def _open_infos(self) -> None:
        """Once every env has been reset, and so has shown its attributes, give the numeric ones columns."""
        if all(self.reset_infos):
            specs = self._infos.open(self.reset_infos)
            self._asking.ask(dict.fromkeys(range(len(self._shards)), (Command.OPEN_INFO, specs)))

    # What a replaced worker is told

    def _briefing(self, worker: int) -> list[tuple[Command, Any]]:
        """Its envs that were in an episode go through `Host.resume`, with the rows last seen and new seeds."""
        shard = self._shards[worker]
        rows = self._board.observations.rows(shard.start, len(shard))
        ready = {slot for slot, extra in self._ledger.ready.items() if extra is None or extra.failure is None}
        begun = [(slot, row) for slot, row in zip(shard, rows, strict=True) if self.reset_infos[slot] or slot in ready]
        briefing: list[tuple[Command, Any]] = [
            (Command.RESUME, {slot: (row, self._next_seed(slot)) for slot, row in begun})
        ]
        held = tuple({slot: given[slot] for slot in shard if slot in given} for given in self._held)
        if any(held):
            briefing.append((Command.PREPARE, held))
        if self._infos.specs is not None:
            briefing.append((Command.OPEN_INFO, self._infos.specs))
        return briefing

    def _next_seed(self, slot: int) -> int | None:
        """A seed for an env whose generator is lost: a new one, but a function of what was seeded."""
        if slot not in self._seeds:
            return None
        return int(np.random.SeedSequence([self._seeds[slot], self._ledger.restarts]).generate_state(1)[0])

    def _note_seeds(self, seeds: dict[int, int | None]) -> None:
        self._seeds.update((slot, seed) for slot, seed in seeds.items() if seed is not None)

    # Checks

    def _parse_actions(self, actions: Any, n: int) -> list[NDArray[Any]]:
        layout = self._board.actions.layout
        parts = parse_actions(layout, actions, n)
        if layout.has_objects:
            self._crew.check_portable("actions", [part for part in parts if part.dtype == object])
        return parts

    def _check_open(self, what: str) -> None:
        if self.closed:
            raise ClosedError(what, self._lifetime.forked)

    def _parse_slots(self, what: str, indices: Indices) -> list[int]:
        self._check_open(what)
        return parse_indices(indices, self.num_envs)

    def _check_free(self, what: str, slots: Sequence[int], *, autoresets: bool = True) -> None:
        """Raise unless these slots can take a command."""
        self._check_open(what)
        if self._asking.call is not None:
            raise AlreadySteppingError(f"{what} after a call_async: call_wait first")
        if self._step_slots is not None:
            raise AlreadySteppingError(f"{what} after a step_async: step_wait first")
        self._ledger.check_free(what, slots, autoresets=autoresets)

    @property
    def active(self) -> NDArray[np.bool_]:
        active = np.ones(self.num_envs, dtype=bool)
        active[self._inactive] = False
        return active

    @property
    def terminated(self) -> NDArray[np.bool_]:
        return self._last_flagged(TERMINATED)

    @property
    def truncated(self) -> NDArray[np.bool_]:
        return self._last_flagged(TRUNCATED)

    def _last_flagged(self, flag: int) -> NDArray[np.bool_]:
        return (np.frombuffer(self._last_flags, np.uint8) & flag).astype(bool)

    @property
    def rewards64(self) -> NDArray[np.float64]:
        return self._board.rewards.copy() if self._rewards64 is None else self._rewards64.copy()

    # Asking the envs

    def call(self, function: Callable[..., Any], indices: Indices, *args: Any, **kwargs: Any) -> list[Any]:
        self.call_async(function, indices, *args, **kwargs)
        try:
            return self.call_wait()
        finally:
            self._asking.forget()  # after a Ctrl-C

    def call_async(self, function: Callable[..., Any], indices: Indices, *args: Any, **kwargs: Any) -> None:
        check_function(function)
        what = calls.name_for(function)
        slots = self._parse_slots(what, indices)
        self._check_free(what, slots, autoresets=False)
        self._crew.check_portable(f"the function {what}", function)
        self._crew.check_portable(f"an argument of {what}", (args, kwargs))
        self._ledger.settle(slots, drop=False)
        self._asking.begin(slots, function, args, kwargs)

    def call_wait(self, timeout: float | None = None) -> list[Any]:
        self._check_open("call_wait")
        return self._asking.finish(timeout)

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
        if options:
            self._crew.check_portable("options", options)
        self._ledger.settle(everyone, drop=False)
        self._asking.prepare(seeds, options)
        for held, given in zip(self._held, (seeds, options), strict=True):
            held.update((slot, value) for slot, value in given.items() if value is not None)

    def stats(self) -> dict[str, Any]:
        return {
            "backend": type(self).__name__,
            "num_envs": self.num_envs,
            "num_workers": len(self._shards),
            "autoreset": self.autoreset,
            "restarts": self._ledger.restarts,
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
        if not self._lifetime.end():  # in a fork of the caller: the workers are not its own
            return
        failures = self._crew.close(CLOSE_GRACE)
        if isinstance(self._board, SharedBoard):
            self._board.forget()
        for failure in failures:
            warnings.warn(f"{failure.summary} while being closed", RuntimeWarning, stacklevel=2)


def _refused(called: str, num_envs: int, num_workers: int, why: OSError) -> VecEnvError:
    return VecEnvError(
        f"the system does not give {called} what {num_envs} envs in {num_workers} workers need ({why}): take fewer, or "
        "raise its limits (ulimit -n for open files, -u for processes, -v for memory; room in /dev/shm)"
    )


def plain_board(vec: PoolVecEnv, info_attrs: Sequence[str]) -> Board:
    """Columns in the caller's own memory."""
    return Board(vec.observation_space, vec.action_space, vec.num_envs, Arena(), info_attrs)
