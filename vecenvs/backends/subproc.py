"""Workers as child processes of the caller."""

from __future__ import annotations

import errno
import multiprocessing
import os
import threading
import time
import weakref
from collections.abc import Iterable, Sequence
from multiprocessing import process
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any

from vecenvs.arguments import check_choice, parse_flag
from vecenvs.backends.in_process import LocalTransport
from vecenvs.cpus import allowed_cpus, usable_cores, worker_cores
from vecenvs.errors import GUARD, UNGUARDED, BackendUnavailable, VecEnvError
from vecenvs.pool.pool_vec_env import EnvFn, PoolVecEnv
from vecenvs.transport import Transport
from vecenvs.transport.memory import check_system, unlink_semaphores
from vecenvs.transport.pickling import PickledFns
from vecenvs.transport.shared import Names, SharedTransport
from vecenvs.transport.spinning import spins
from vecenvs.worker import descendants, preload
from vecenvs.worker.output import Output
from vecenvs.worker.process import HeldSignals, child_environment, has_hung_up, keep_garbage
from vecenvs.worker.rules import Rules
from vecenvs.worker.serve import serve_worker

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from vecenvs.pool.pool_base import CommonArguments

START_METHODS = ("fork", "forkserver", "spawn")
REMEDY = ", or use start_method='fork'"  # for env functions that cannot be pickled
_NO_SOCKET = "multiprocessing's fork server has no place for its socket"
_TMPDIR = "set TMPDIR to a directory that can be written to, of at most 70 characters, or use start_method='spawn'"
_MOMENT = 1.0  # seconds in which a process that has hung up can be waited for, unless it goes on
UNKNOWN = 255  # the exit code of a process that other code has waited for


class SubprocVecEnv(PoolVecEnv):
    """Steps its envs in `num_workers` processes, K envs each, any remainder allowed.

    Args:
        env_fns: functions that make one env each.
        num_workers: by default one per usable core, at most one per env. A batched env has a worker of its own.
        start_method: "fork", "forkserver", "spawn" or None for Python's default. Where that is "fork" and this process
            has used JAX or CUDA, which do not work in a fork, None is "forkserver"; a line in the log says so.
        caller_steps: whether the calling process steps the last shard itself while the workers step theirs (it counts
            in `num_workers`, and takes all batched envs that are left to it): the fastest on few cores when the caller
            would only wait.
        pin_workers: whether each worker process is tied to a CPU of its own (Linux). Only where these CPUs have no
            other work: two programs that pin use the same ones.
        **common: the arguments that every engine takes (see `DummyVecEnv`).

    Raises:
        BackendUnavailable: on Windows; or `pin_workers` elsewhere than on Linux.
        ValueError: `pin_workers` with more worker processes than CPUs.
    """

    def __init__(
        self,
        env_fns: Iterable[EnvFn],
        num_workers: int | None = None,
        start_method: str | None = None,
        caller_steps: bool = False,
        pin_workers: bool = False,
        **common: Unpack[CommonArguments],
    ) -> None:
        check_system("SubprocVecEnv")
        if start_method is not None:
            check_choice("start_method", start_method, START_METHODS)
        self._context = multiprocessing.get_context(preload.choose(start_method))
        self._caller_steps = parse_flag("caller_steps", caller_steps)
        self._made_here: set[int] = set()  # see `make_envs`
        self._pins_workers = parse_flag("pin_workers", pin_workers)
        super().__init__(env_fns, num_workers, **common)

    def _begin(self, num_workers: int | None) -> int:
        cores = worker_cores()
        workers = self._hosts.default_workers(cores) if num_workers is None else num_workers
        self._processes = workers - self._caller_steps
        self._cores = max(1, cores // workers)
        self._spin = spins(usable_cores() - self._processes)
        self._cpus = self._cpus_to_pin() if self._pins_workers else []
        return workers

    def _engine_stats(self) -> dict[str, Any]:
        return {"start_method": self._context.get_start_method(), "caller_steps": bool(self._caller_steps)}

    def _launch(self, worker: int, shard: range) -> Transport:
        env_fns = self._hosts.functions_of(shard)
        rules, cores = self._rules_of(worker), self._cores
        if worker >= self._processes:
            return LocalTransport(env_fns, shard.start, rules, cores, self._made_here)
        cpu = self._cpus[worker] if self._cpus else None
        names, output = Names.new(self._wake), self._output(worker, shard)
        return ProcessTransport(self._context, worker, shard, env_fns, rules, names, self._spin, cpu, cores, output)

    def _cpus_to_pin(self) -> list[int]:
        """Return one CPU per worker process: the last ones, as most programs begin on the first."""
        if not hasattr(os, "sched_setaffinity"):
            raise BackendUnavailable("pin_workers needs Linux: leave it out here")
        cpus = allowed_cpus()
        if self._processes > len(cpus):
            raise ValueError(f"pin_workers: {self._processes} worker processes on {len(cpus)} CPUs: use fewer workers")
        return cpus[::-1][: self._processes]


class ProcessTransport(SharedTransport):
    """One child process, reached by a pipe until its rings stand."""

    def __init__(
        self,
        context: Any,
        worker: int,
        shard: range,
        env_fns: Sequence[EnvFn],
        rules: Rules,
        names: Names,
        spin: tuple[float, float],
        cpu: int | None,
        cores: int,
        output: Output,
    ) -> None:
        super().__init__(shard, names, spin)
        # A fork inherits the functions as they are; the others need them pickled, by value what no import reaches.
        forks = context.get_start_method() == "fork"
        payload = list(env_fns) if forks else PickledFns(env_fns, shard.start, REMEDY)
        if not forks:
            _leave_if_unguarded()
            _check_directory()
        if multiprocessing.current_process().daemon:
            raise VecEnvError(
                "this is a daemonic process (of multiprocessing.Pool, say), which may start no others: use "
                "DummyVecEnv here, or processes that are not (concurrent.futures.ProcessPoolExecutor)"
            )
        beside = preload.unfit_for_forks() or ("threads" if threading.active_count() > 1 else "")
        if forks and beside:
            self.cause = (
                f". They are in a fork of a process with {beside}: start_method='forkserver' if locks hang there"
            )
        self._mark = descendants.new_mark()  # 0 once it has been seen to have ended
        self._stopped = False
        self._lost = False  # whether other code has waited for it, and knows its exit code
        with HeldSignals():  # what a handler raises within multiprocessing's own code leaves descriptors open
            self._pipe, theirs = context.Pipe()
        _caller_ends.add(self._pipe)
        self._process = context.Process(
            target=_main,
            args=(theirs, payload, shard.start, rules, os.getpid(), names, cpu, cores, output, self._mark),
            name=f"{preload.WORKER}{worker}",
            daemon=False,  # so that envs may have children
        )
        _children.add(self._process)
        # Where an exception (Ctrl-C) comes before anything else has a reference to this.
        self._finalizer = weakref.finalize(self, _end, self._process, self._pipe, os.getpid(), self._mark)
        self._finalizer.atexit = False
        try:
            with child_environment(), preload.preloading(context.get_start_method()):
                descendants.guardian.add(self._mark)
                self._process.start()
                theirs.close()
        except (EOFError, ConnectionError) as exc:  # Process.start, of a fork server that has ended
            theirs.close()
            self.stop(0.0)
            raise VecEnvError(
                f"multiprocessing's fork server has ended as it started: {GUARD}. If it has, what the server has "
                "printed may tell why"
            ) from exc
        except BaseException as exc:  # a Ctrl-C held back until now, say
            theirs.close()
            self.stop(0.0)
            served = context.get_start_method() == "forkserver"
            if served and isinstance(exc, OSError) and exc.errno in (None, errno.ENOENT, errno.EACCES):
                raise VecEnvError(
                    f"multiprocessing's fork server has no place for its socket ({exc}): {_TMPDIR}"
                ) from exc
            raise

    def boot_send(self, data: bytes) -> None:
        self._pipe.send_bytes(data)

    def boot_get(self, timeout: float | None) -> bytes | None:
        try:
            if self._pipe in wait([self._pipe, self._process.sentinel], timeout):
                data: bytes = self._pipe.recv_bytes()
                return data
        except (EOFError, OSError):
            return None
        return None

    def exit_status(self) -> tuple[bool, int | None]:
        if self._stopped:
            return True, None
        gone = not self._is_alive()
        exitcode = None if self._lost else self._process.exitcode
        if gone and self._mark:
            descendants.release(self._mark, killed=exitcode != 0)
            self._mark = 0
        return gone, exitcode

    def _is_alive(self) -> bool:
        """Tell whether the process runs, also where the program ignores SIGCHLD or waits for any child."""
        process = self._process
        if self._lost or not process.is_alive():
            return False
        try:
            os.kill(process.pid, 0)
        except PermissionError:  # an env has made it another user's
            return True
        except ProcessLookupError:
            process.join(0.1)  # a fork server may be about to tell
            self._lost = process.is_alive()
            return False
        if not self._pipe.closed and has_hung_up(self._pipe):  # it ends, or an env has replaced its program
            end = time.monotonic() + _MOMENT
            while process.is_alive():  # not `join`, which would take it for one that has ended, and wait for ever
                if time.monotonic() >= end:
                    self.where, self._lost = " (an env has replaced its program, as os.execv does)", True
                    process.kill()
                    break
                time.sleep(0.01)
            return False
        return True

    def stop(self, grace: float) -> None:
        if self._stopped:
            return
        if self._process.pid is not None:
            self._is_alive()  # one that has replaced its program is ended by this
        with HeldSignals():
            self._pipe.close()
        _caller_ends.discard(self._pipe)
        unlink_semaphores(self._names)
        if self._process.pid is None:  # it could not be started
            descendants.guardian.remove(self._mark)
            return
        for end in (lambda: None, self._process.terminate, self._process.kill):
            end()
            self._process.join(max(grace, 0.1))
            if not self._is_alive():
                break
        else:
            return
        self.exit_status()  # what its envs have started ends, too
        if self._lost:
            self._process._popen.returncode = UNKNOWN  # noqa: SLF001  else it is kept for ever
        self._stopped = True
        with HeldSignals():
            self._process.close()
            self._finalizer.detach()


def _end(process: Any, pipe: Connection, caller: int, mark: int) -> None:
    """End a process that nothing refers to any more."""
    pipe.close()
    if process.pid is not None and os.getpid() == caller:
        process.kill()
        process.join()
        descendants.release(mark, killed=True)
        with HeldSignals():
            process.close()


# The caller's ends of all pipes: a fork closes them, else it would keep them open when the caller has gone.
_caller_ends: weakref.WeakSet[Connection] = weakref.WeakSet()
_children: weakref.WeakSet[process.BaseProcess] = weakref.WeakSet()


def _disown() -> None:
    """Forget, in a fork, the parent's pipes and children. multiprocessing would try to join these at its exit."""
    for end in list(_caller_ends):
        end.close()
    _caller_ends.clear()
    for child in list(_children):
        process._children.discard(child)  # type: ignore[attr-defined]  # noqa: SLF001
    _children.clear()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_disown)


def _leave_if_unguarded() -> None:
    """End a worker, or a fork server, that is still importing the caller's script, which has no guard.

    The script starts processes once more there. multiprocessing would raise in each worker, at length, and before the
    caller can say what to do. So this process ends at once and silently: the caller explains its exit code.
    """
    this = process.current_process()
    if getattr(this, "_inheriting", False) and (this.name.startswith(preload.WORKER) or preload.in_server):
        os._exit(UNGUARDED)


def _check_directory() -> None:
    """Raise where other processes cannot begin in the current directory, as multiprocessing has them do."""
    try:
        os.getcwd()
    except FileNotFoundError as exc:
        raise VecEnvError(
            "the current directory, in which worker processes are to begin, has been deleted: os.chdir to another one, "
            "or use start_method='fork'"
        ) from exc


def _main(
    pipe: Connection,
    env_fns: Iterable[Any],
    first: int,
    rules: Rules,
    caller: int,
    names: Names,
    cpu: int | None,
    cores: int,
    output: Output,
    mark: int,
) -> None:
    descendants.put_on(mark)
    keep_garbage()
    if cpu is not None:
        os.sched_setaffinity(0, {cpu})
    serve_worker(pipe, env_fns, first, rules, caller, names, cores, output)
