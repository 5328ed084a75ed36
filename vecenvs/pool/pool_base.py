"""Start the workers of a VecEnv, lay out its columns, and close it: all but the calls (see `pool_vec_env`)."""

from __future__ import annotations

import abc
import itertools
import math
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from inspect import Signature
from typing import Any, NamedTuple, TypedDict

import numpy as np
from gymnasium import Env

from vecenvs import _native
from vecenvs.arguments import (
    arguments_of,
    check_arguments,
    check_callback,
    check_choice,
    check_env_fns,
    check_names,
    check_observation_mode,
    listed,
    observation_space_of,
    parse_directory,
    parse_flag,
    parse_int,
    parse_limit,
    parse_rates,
)
from vecenvs.batch.batch_columns import BatchColumns
from vecenvs.errors import VecEnvError
from vecenvs.identity import ThisWorker
from vecenvs.pool.batched_results import BatchedResults
from vecenvs.pool.commands import Commands, Resets
from vecenvs.pool.episodes import Episodes
from vecenvs.pool.finalizers import Finalizer
from vecenvs.pool.hosts import Hosts, shares_of
from vecenvs.pool.info_columns import InfoColumns
from vecenvs.pool.recorder import Recorder
from vecenvs.pool.recovery import Recovery
from vecenvs.pool.recycling import Recycle, Recycling, check_recycle
from vecenvs.pool.remote_calls import RemoteCalls
from vecenvs.pool.start_limit import StartLimit
from vecenvs.pool.step_results import StepResults
from vecenvs.pool.subsets import Subsets, slots_in
from vecenvs.pool.tally import totals
from vecenvs.pool.tasks import TaskFn, Tasks
from vecenvs.pool.waiting import Waiting
from vecenvs.pool.workers import CLOSE_GRACE, EXIT_GRACE, Workers
from vecenvs.transport import Transport
from vecenvs.transport.memory import SCARCE, new_name, unlink_semaphores
from vecenvs.transport.protocol import Command, RemoteFailure
from vecenvs.transport.shared import SharedBatchColumns
from vecenvs.vec_env import VecEnv, described
from vecenvs.worker.autoreset import AUTORESET_MODES
from vecenvs.worker.identity import UNKNOWN, Told
from vecenvs.worker.output import Output
from vecenvs.worker.rules import Rules, TimeLimits

EnvFn = Callable[[], "Env[Any, Any]"]

_launches = itertools.count(1)  # of workers, by all VecEnvs
_REPORTS = 4  # from each worker in the time of the shortest limit, at least


class Result(NamedTuple):
    """What a call will return or raise, the slots whose rows that returns, and the async resets that begin then.

    A step_wait (`of_step`) that an exception has ended returns it the next time, and recv that of a recv or reset.
    """

    value: Any  # what the call returns, or an EnvError; no type variable: Python 3.10 has no generic NamedTuple
    slots: int
    resets: Resets
    of_step: bool = False


class CommonArguments(TypedDict, total=False):
    """The keyword arguments of every engine, for type checkers: those of `PoolBase`. DummyVecEnv describes them."""

    autoreset: str
    info_attrs: Sequence[str]
    copy: bool
    step_timeout: float | None
    reset_timeout: float | None
    on_failure: str
    max_restarts: int
    on_restart: Callable[[list[int]], object] | None
    start_timeout: float
    log_dir: str | os.PathLike[str] | None
    observation_mode: str | tuple[Any, Any]
    episode_seeds: bool
    on_error: str
    max_errors: int
    on_episode: Callable[[dict[str, Any]], object] | None
    tasks: TaskFn | None
    concurrency: str | None
    start_limit: tuple[int | None, float | None] | None
    work_limit: tuple[int | None, float | None] | None
    recycle: Recycle | None
    record: str | os.PathLike[str] | None
    record_episodes: str
    spares: int


class PoolBase(VecEnv):
    """The parts of a VecEnv over workers, each the owner of a contiguous shard of slots.

    `vecenvs.DummyVecEnv` describes the keyword arguments.

    Args:
        env_fns: functions that make one env each.
        num_workers: the number of workers; what None means is up to the engine.
    """

    _has_workers = True  # other than the calling process, so that one has to close them
    # The attributes that refer to memory, descriptors and processes: a closed VecEnv, which may be kept, has none.
    _parts: tuple[str, ...] = (
        "_batch", "_calls", "_commands", "_episodes", "_infos", "_recorder", "_recovery", "_recycling", "_step_results",
        "_subsets", "_tasks", "_waiting", "_workers",
    )  # fmt: skip
    _caller_steps = False  # whether the calling process steps the last shard, or all of them
    _moves_workers = False  # whether the engine may replace workers that have not failed: see `Transport.moving`

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Give the class the signature that `help` shows: with the common arguments in place of `**common`."""
        super().__init_subclass__(**kwargs)
        cls.__signature__ = Signature([*arguments_of(cls).values()])  # type: ignore[attr-defined]

    def __init__(
        self,
        env_fns: Iterable[EnvFn],
        num_workers: int | None = None,
        /,
        *,
        autoreset: str = "same_step",
        info_attrs: Sequence[str] = (),
        copy: bool = True,
        step_timeout: float | None = None,
        reset_timeout: float | None = None,
        on_failure: str = "raise",
        max_restarts: int = 10,
        on_restart: Callable[[list[int]], object] | None = None,
        start_timeout: float = 300.0,
        log_dir: str | os.PathLike[str] | None = None,
        observation_mode: str | tuple[Any, Any] = "same",
        episode_seeds: bool = False,
        on_error: str = "raise",
        max_errors: int = 10,
        on_episode: Callable[[dict[str, Any]], object] | None = None,
        tasks: TaskFn | None = None,
        concurrency: str | None = None,
        start_limit: tuple[int | None, float | None] | None = None,
        work_limit: tuple[int | None, float | None] | None = None,
        recycle: Recycle | None = None,
        record: str | os.PathLike[str] | None = None,
        record_episodes: str = "failed",
        spares: int = 0,
        **unknown: Any,
    ) -> None:
        self.closed = True  # until the constructor has succeeded
        called = type(self)  # Python's own error would name this class, which users do not call
        check_arguments(called.__name__, unknown, [name for name in arguments_of(called) if name not in unknown])
        check_choice("autoreset", autoreset, AUTORESET_MODES)
        check_choice("on_failure", on_failure, ("raise", "restart"))
        check_observation_mode(observation_mode)
        limits = _parse_limits(step_timeout, reset_timeout)
        self.autoreset = autoreset
        seeded = parse_flag("episode_seeds", episode_seeds)
        root = int(np.random.SeedSequence().generate_state(1)[0] // 2) if seeded else None  # room for the slots' own
        check_choice("on_error", on_error, ("raise", "reset", "renew"))
        folder = _parse_record(record, record_episodes, seeded=seeded)
        check_callback("tasks", tasks, "a slot, the number of its episode and an info")
        own = tuple(name for name in ("episode_seeds" * seeded, "tasks" * (tasks is not None)) if name)
        self._asynchronous = autoreset == "async"
        check_callback("on_episode", on_episode, "the info of an episode's last row")
        self._on_episode = on_episode
        self._info_attrs = check_names("info_attrs", info_attrs)
        self.copy = parse_flag("copy", copy)
        self._compiled = _native.is_compiled()
        self.observation_mode = observation_mode
        restarts = parse_int("max_restarts", max_restarts, 0) * (on_failure == "restart")
        errors = parse_int("max_errors", max_errors, 0)
        self._rules = Rules(autoreset, root, on_error, errors, own, None, concurrency, limits, restarts)
        check_callback("on_restart", on_restart, "the slots of new envs")
        self._rules = self._rules._replace(spares=parse_int("spares", spares, 0))
        check_recycle(recycle, seeded=seeded, has_workers=self._has_workers, concurrency=concurrency)
        if on_restart is not None and not (self._moves_workers or recycle or on_failure == "restart"):
            raise ValueError("on_restart is called for workers that are replaced: it needs on_failure='restart'")
        StartLimit(start_limit, ())
        work = parse_rates("work_limit", work_limit, "envs at work", "steps and resets", "work")
        fns: Sequence[EnvFn] = listed(env_fns)
        self._join()
        check_env_fns(fns)
        self._hosts = Hosts(fns)
        self._hosts.check_spares(self._rules)
        if recycle is not None:
            num_workers = self._hosts.check_recycled(num_workers, caller_steps=self._caller_steps)
        self._hosts.check_concurrency(concurrency, caller_steps=self._caller_steps and self._has_workers)
        if num_workers is not None:  # before workers, or what places them, are started
            self._hosts.shards_of(num_workers, caller_steps=self._caller_steps)
        num_workers = self._begin(num_workers)
        if self._asynchronous and self._hosts.batched:
            raise ValueError("autoreset='async' with a Batched: its envs cannot be reset while others are stepped")
        self.num_envs = n = self._hosts.num_envs
        self._shards = self._hosts.shards_of(num_workers, caller_steps=self._caller_steps)
        self._hosts.check_alike(self._shards, self._rules.spares)
        limit = StartLimit(start_limit, [len(self._hosts.functions_of(shard)) for shard in self._shards])
        self._rules = self._rules._replace(pace=limit.pace)
        self._work = shares_of(work, self._shards, concurrency)
        self._on_node: dict[int, tuple[object, int]] = {}  # by worker its node, and its number there
        self._wake = new_name()  # of a shared batch's semaphore: workers get it before the semaphore exists
        self._result: Result | None = None  # of a call that has not returned it yet
        # Whether the last call was a step of all envs that has ended well: then each of them can take a command.
        self._free = False
        self._cut_off = 0  # slots of resets that have not returned, as bits
        self._awaited = False  # whether a coroutine waits in `arecv`
        self._log_dir = "" if log_dir is None else parse_directory("log_dir", log_dir)
        timed = limits.shortest < math.inf
        self._report = (Command.REPORT, limits.shortest / _REPORTS) if timed else None
        self._counters = dict.fromkeys(("received", "resets"), 0)
        self._last_stats: dict[str, Any] | None = None  # of a closed VecEnv
        self._recorder: Recorder | None = None
        self._workers = workers = Workers(
            self._shards,
            self._launch,
            parse_limit(start_timeout, "start_timeout"),
            limit,
            any_bounds=observation_mode != "same",
        )
        self._tally = workers.tally
        parts = [partial(workers.close, EXIT_GRACE)]
        self._finalizer = Finalizer(self, called.close, parts, PoolBase._on_fork, self._has_workers)
        batch: BatchColumns | None = None
        try:
            made = workers.start()
            self.observation_space = observation_space_of(made.observation_space, observation_mode)
            self.action_space = made.action_space
            self.spec, self.metadata, self.render_mode = made.spec, made.metadata, made.render_mode
            self._batch = batch = self._lay_out()
            workers.attach(batch, batch.wake if isinstance(batch, SharedBatchColumns) else None)
            renews = bool(restarts) or self._moves_workers
            batch.forget(memory=not (renews or recycle))  # a replacement has to open the memory
            self._infos = InfoColumns(self._info_attrs, batch, self._shards)
            self._episodes = Episodes(self._shards, batch, self._infos, self._hosts, root)
            self.reset_infos = self._episodes.reset_infos
            self._recovery = Recovery(workers, batch, restarts, self._first_commands)
            self._recovery.on_restart = on_restart or list
            self._commands = Commands(workers, batch, self._recovery, timed=timed)
            self._subsets = Subsets(self._commands.owner, self._shards)
            self._waiting = Waiting(self._commands, workers, batch, self._infos, limits)
            results = BatchedResults if self._hosts.batched else StepResults
            self._step_results = results(
                batch, self._commands, self._infos, self._episodes, self._tally,
                asynchronous=self._asynchronous, waits=concurrency is not None,
            )  # fmt: skip
            self._tasks: Tasks | None = None
            if tasks is not None:
                self._tasks = Tasks(
                    tasks, self._episodes, self._commands, workers.check_portable, ahead=autoreset != "disabled"
                )
            self._recycling = None if recycle is None else Recycling(recycle, workers, self._commands, self._tally)
            self._step_results.notes = not (on_episode is None and tasks is None and recycle is None)
            if folder is not None:
                self._begin_recording(folder, everything=record_episodes == "all")
            self._calls = RemoteCalls(self._commands, self._waiting, self._shards)
            if renews:
                self._episodes.keep_rows()
                self._step_results.keep_rows = True
            if self._report is not None:
                others = [worker for worker, transport in enumerate(workers.transports) if not transport.untimed]
                self._calls.ask(dict.fromkeys(others, self._report))
            self.closed = False
        except BaseException as exc:
            self.closed = True
            workers.close(0.0)
            self._finalizer.cancel()
            if batch is None:
                unlink_semaphores([self._wake])  # a Ctrl-C may come when it stands and nothing refers to it yet
            else:
                batch.forget()
            if isinstance(exc, MemoryError) or (isinstance(exc, OSError) and exc.errno in SCARCE):
                raise VecEnvError(
                    f"the system does not give {called.__name__} what {n} envs in {len(self._shards)} workers need "
                    f"({exc}): take fewer, or raise its limits (ulimit -n for open files, -u for processes, -v for "
                    "memory; room in /dev/shm)"
                ) from exc
            raise

    # What engines define

    def _join(self) -> None:
        """Join the other processes of a job, where these construct the VecEnv as well: only this one's envs count."""

    @abc.abstractmethod
    def _begin(self, num_workers: int | None) -> int:
        """Start what workers need, now that all arguments are checked; return how many there are to be."""

    @abc.abstractmethod
    def _launch(self, worker: int, shard: range) -> Transport:
        """Start a worker that makes the envs of `shard`, and return without waiting for it."""

    def _rules_of(self, worker: int, node: object = "") -> Rules:
        """Return the rules for a worker that is about to be launched on a node, None if that is not known yet."""
        taken = {number for other, (there, number) in self._on_node.items() if there == node and other != worker}
        number = UNKNOWN if node is None else next(k for k in range(len(self._shards)) if k not in taken)
        self._on_node[worker] = node, number
        told = ThisWorker(worker, len(self._shards), self._shards[worker], None, "", number)
        return self._rules._replace(told=Told(told, next(_launches), self._wake), work=self._work[worker])

    def _output(self, worker: int, shard: range) -> Output:
        """Return how a worker that is about to be launched logs and prints."""
        output = self._workers.outputs[worker] = Output.of_caller(worker, shard, self._log_dir)
        return output

    def _lay_out(self) -> BatchColumns:
        """Return the columns, now that the spaces are known: shared, for workers in other processes."""
        return SharedBatchColumns(
            self.observation_space, self.action_space, self.num_envs, self._info_attrs, self._wake
        )

    def _begin_recording(self, folder: str, *, everything: bool) -> None:
        if self._hosts.batched:
            raise ValueError("record with a Batched: its envs are stepped together, so none has episodes of its own")
        self._recorder = Recorder(folder, self._hosts.fns, self._batch, self._episodes,
                                  everything=everything, any_bounds=self.observation_mode != "same")  # fmt: skip
        self._commands.recorder = self._recorder
        self._episodes.keep_options()

    # What the parts call

    def _first_commands(self, worker: int, restarts: int) -> list[tuple[Command, Any]]:
        """Return the first commands of a worker that replaces another."""
        extras = self._commands.ready_extras()
        failed = {slot for slot, extra in extras.items() if extra.failure is not None}
        ready = {*slots_in(self._commands.ready_slots())} - failed
        commands = self._episodes.first_commands(worker, ready, restarts, self._commands.handed(worker))
        return commands if self._report is None else [*commands, self._report]

    def _on_fork(self) -> None:
        """Close a fork's copy of this VecEnv if its workers are other processes: both would take their answers."""
        self.closed |= not self._workers.fork
        self._free &= not self.closed

    def stats(self) -> dict[str, Any]:
        if self._last_stats is not None:
            return dict(self._last_stats)
        return {
            "backend": type(self).__name__,
            "num_envs": self.num_envs,
            "batched": sum(map(len, self._hosts.batched)),
            "num_workers": len(self._shards),
            "workers": (workers := self._workers.describe(self._recovery.by_worker, self._waiting.errors)),
            "transports": dict(Counter(each["transport"] for each in workers)),
            "autoreset": self.autoreset,
            **({} if self._rules.concurrency is None else {"concurrency": self._rules.concurrency}),
            "compiled": self._compiled,
            **({} if self._rules.root is None else {"root_seed": self._rules.root}),
            **({} if self._tasks is None else {"tasks": True}),
            "restarts": self._recovery.restarts,
            **({} if self._recycling is None else {"recycled": self._recovery.recycled}),
            "errors": sum(self._waiting.errors),
            **totals(workers),
            "steps": self._tally.steps,
            **self._counters,
            **self._engine_stats(),
        }

    def _engine_stats(self) -> dict[str, Any]:
        """Return what this engine adds to `stats`."""
        return {}

    def __repr__(self) -> str:
        if "render_mode" not in vars(self):  # the constructor goes on, or has raised
            return f"<{type(self).__name__}: its envs are not made>"
        return described(self, len(self._shards))

    def __reduce__(self) -> Any:
        raise TypeError(
            f"a {type(self).__name__} holds envs that are running, and can be neither copied nor pickled: "
            "make another one from the same env functions"
        )

    def close(self) -> None:
        failures: list[RemoteFailure] = []
        if not self._finalizer.cancelled:
            if not self.closed:
                self._last_stats = self.stats()
            self.closed, self._free = True, False
            self._close_window()
            if not self._finalizer.forked:  # in a fork of the caller the workers are not its own
                failures = self._workers.close(CLOSE_GRACE)
            self._finalizer.cancel()  # a Ctrl-C before this leaves the rest to the next `close`, or to the finalizer
        for part in self._parts:
            vars(self).pop(part, None)
        for failure in failures:
            warnings.warn(f"{failure.summary} while being closed", RuntimeWarning, stacklevel=2)


def _parse_limits(step_timeout: float | None, reset_timeout: float | None) -> TimeLimits:
    """Return the time limits; that of steps holds for resets, too, unless these have their own."""
    step = parse_limit(step_timeout, "step_timeout")
    limits = TimeLimits(step, step if reset_timeout is None else parse_limit(reset_timeout, "reset_timeout"))
    for doing, seconds in limits._asdict().items():
        if seconds == 0:
            raise ValueError(f"{doing}_timeout must be more than 0 seconds, or None")
    return limits


def _parse_record(record: Any, which: Any, *, seeded: bool) -> str | None:
    """Return the folder for records of episodes."""
    check_choice("record_episodes", which, ("failed", "all"))
    if record is not None and not seeded:
        raise ValueError("record needs episode_seeds=True, so that each episode can be run again by itself")
    return None if record is None else parse_directory("record", record)
