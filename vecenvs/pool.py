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
from vecenvs.board import TERMINATED, TRUNCATED, Arena, Board
from vecenvs.crew import CLOSE_GRACE, Crew
from vecenvs.episodes import Episodes
from vecenvs.errors import AlreadySteppingError, ClosedError, NotSteppingError, VecEnvError, WorkerDied
from vecenvs.host import AUTORESET_MODES
from vecenvs.info_columns import InfoColumns
from vecenvs.ledger import Ledger
from vecenvs.lifetime import Lifetime
from vecenvs.outcomes import Outcomes
from vecenvs.protocol import Command, Extra
from vecenvs.rows import Row, env_error
from vecenvs.transport import Transport
from vecenvs.transport.memory import new_name
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
        self._wake = new_name()  # of a shared board's semaphore, for workers to know from the start
        self._step_slots: set[int] | None = None  # of a lock-step in which the others are being reset
        self._counters = dict.fromkeys(("steps", "received", "resets"), 0)
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
            if shared is not None and restarts:  # a worker launched later still has to find it
                self._lifetime.keep(shared)
            elif shared is not None:
                shared.forget()
            self._infos = InfoColumns(self._info_attrs, board)
            self._episodes = Episodes(self._shards, board, self._infos)
            self.reset_infos = self._episodes.reset_infos
            self._ledger = Ledger(self._crew, board, step_timeout, restarts, self._episodes.briefing)
            self._outcomes = Outcomes(
                board, self._ledger, self._infos, self._episodes, asynchronous=autoreset == "async"
            )
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
        return SharedBoard(self.observation_space, self.action_space, self.num_envs, self._info_attrs, self._wake)

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
            return self._outcomes.of_some(extras, copy=self.copy)
        if self.closed or not ledger.stepping or ledger.dead:
            self._check_open("step_wait")
            if ledger.stepping:  # the step has failed: what is still to come of it comes by recv
                raise next(iter(ledger.dead.values()))
            raise NotSteppingError("step_wait without a step_async before it")
        prepared = self._outcomes.prepare()
        ledger.finish_step(deadline, timeout)
        self._counters["steps"] += 1
        return self._outcomes.take(prepared, copy=self.copy)

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
        self._episodes.note_seeds(seeds)
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
        self._counters["received"] += len(rows)
        return self._outcomes.hand_out(rows)

    def reset(self, indices: Indices = None, *, seed: Seeds = None, options: Options = None) -> Any:
        slots = self._parse_slots("reset", indices)
        self.reset_async(slots, seed=seed, options=options)
        ready = self._ledger.ready
        self._ledger.await_rows(slots)
        error = env_error(extra for slot in slots if (extra := ready[slot]) is not None)
        for failed in error.errors if error else ():
            self._ledger.drop(failed.index)
        rows = [(slot, ready[slot]) for slot in slots if slot in ready]
        self._counters["received"] += len(rows)
        batch = self._outcomes.hand_out(rows)
        if error is not None:
            error.batch = batch
            raise error
        return batch.obs

    def info_array(self, name: str) -> NDArray[Any]:
        return self._infos.stacked(name)

    def _open_infos(self) -> None:
        """Once every env has been reset, and so has shown its attributes, give the numeric ones columns."""
        if all(self.reset_infos):
            specs = self._infos.open(self.reset_infos)
            self._asking.ask(dict.fromkeys(range(len(self._shards)), (Command.OPEN_INFO, specs)))

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
        return self._outcomes.active

    @property
    def terminated(self) -> NDArray[np.bool_]:
        return self._outcomes.flagged(TERMINATED)

    @property
    def truncated(self) -> NDArray[np.bool_]:
        return self._outcomes.flagged(TRUNCATED)

    @property
    def rewards64(self) -> NDArray[np.float64]:
        return self._outcomes.rewards64

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
        self._episodes.note_seeds(seeds)
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
        self._episodes.hold(seeds, options)

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
        try:
            failures = self._crew.close(CLOSE_GRACE)
        finally:
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
