"""What a worker process does about being a process: signals, a caller that ends, threads and environment variables."""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from multiprocessing import process, resource_tracker
from typing import Any, Protocol

import threadpoolctl

from vecenvs.transport.memory import unlink_semaphores

# An MPI launcher's variables would make a child that imports mpi4py take itself for its parent's rank.
LAUNCHER_VARIABLES = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "HYDI_", "HYDRA_", "MPI_LOCAL")
# One thread per worker: the workers themselves fill the cores.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
CLOSE_TIMEOUT = 2.0  # seconds for a worker to close its envs when it has to end

_environment_lock = threading.Lock()
_handlers: dict[int, Any] = {}  # of the signals that are held back now


def _begin_anew() -> None:
    """Make a worker, forked inside `child_environment`, able to start processes: an env may have a VecEnv inside."""
    global _environment_lock  # noqa: PLW0603
    _environment_lock = threading.Lock()
    _restore_handlers()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_begin_anew)


def _restore_handlers() -> None:
    """Set the handler of every signal again. What a handler raises meanwhile is raised at the end."""
    raised: BaseException | None = None
    while _handlers:
        try:
            number = next(iter(_handlers))
            signal.signal(number, _handlers[number])
            del _handlers[number]
        except BaseException as exc:
            raised = exc
    if raised is not None:
        raise raised


class HeldSignals:
    """A block in which no signal's handler raises: all are called after it.

    Has no effect outside the main thread, nor within another such block.
    """

    def __init__(self) -> None:
        self._noted: list[int] = []
        self._holds = False

    def __enter__(self) -> None:
        if _handlers or threading.current_thread() is not threading.main_thread():
            return
        self._holds = True
        try:
            for number in signal.valid_signals():
                handler = signal.getsignal(number)
                if callable(handler):
                    _handlers[number] = handler
                    signal.signal(number, lambda number, _: self._noted.append(number))
        except BaseException:
            _restore_handlers()
            raise

    def __exit__(self, *_: object) -> None:
        with contextlib.ExitStack() as calls:  # the last one first, and each whatever the others raise
            calls.callback(self._call_handlers)
            if self._holds:
                calls.callback(_restore_handlers)

    def _call_handlers(self) -> None:
        """Raise the held signals again, once the handlers are restored: signals until then are still noted."""
        with contextlib.ExitStack() as calls:
            for number in self._noted:
                calls.callback(signal.raise_signal, number)


@contextlib.contextmanager
def child_environment() -> Iterator[None]:
    """Start processes inside this block with an environment without MPI's launcher, and with one thread each.

    Thread counts that the user has set stay. The caller's own environment is changed for the time of the block, since a
    child inherits it before any of our code runs there. Signals are held back for the same time. A child that is still
    importing would answer a Ctrl-C with a traceback. What any handler raises in the middle of a fork is lost, or sends
    the child into the caller's program.
    """
    with HeldSignals(), _environment_lock, _main_without_false_file(), _openblas_with_one_thread():
        resource_tracker.ensure_running()  # multiprocessing would do so later, and let Ctrl-C through again
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        removed = {k: v for k, v in os.environ.items() if k.startswith(LAUNCHER_VARIABLES)}
        added = [name for name in THREAD_VARIABLES if name not in os.environ]
        try:
            for name in removed:
                del os.environ[name]
            for name in added:
                os.environ[name] = "1"
            yield
        finally:
            os.environ.update(removed)
            for name in added:
                del os.environ[name]
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextlib.contextmanager
def _main_without_false_file() -> Iterator[None]:
    """Keep children from importing a `__main__` whose file does not exist: that of `python - < script` has "<stdin>".

    They do not need it, since what `__main__` defines is pickled by value.
    """
    main = vars(sys.modules["__main__"])
    file, where = main.get("__file__"), getattr(process, "ORIGINAL_DIR", None) or ""
    false = main.get("__spec__") is None and file is not None and not os.path.exists(os.path.join(where, file))
    if false:
        del main["__file__"]
    try:
        yield
    finally:
        if false:
            main["__file__"] = file


class HasFileno(Protocol):
    """One end of a connection, by its descriptor."""

    def fileno(self) -> int:
        """Return the descriptor."""


def watch_caller(pid: int, names: Sequence[str] = (), channel: HasFileno | None = None) -> None:
    """End this process soon after process `pid` has ended, for whatever reason. Unlink the semaphores `names` before.

    The envs get CLOSE_TIMEOUT seconds to close, as they may have processes of their own. A caller that replaces its
    program (`os.execv`) goes on as the same process, but closes the other end of `channel`. So does a caller that has
    no use for this worker any more.
    """

    def watch() -> None:
        if not wait_for_end(pid, channel):
            wait_for_end(pid, None, CLOSE_TIMEOUT)  # it may have been told to close
        unlink_semaphores(names)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(CLOSE_TIMEOUT)
        os._exit(1)

    threading.Thread(target=watch, name="vecenvs-watch-caller", daemon=True).start()


def wait_for_end(pid: int, channel: HasFileno | None, seconds: float = math.inf) -> bool:
    """Wait until process `pid` has ended (True), or the other end of `channel` is closed, or for `seconds` (False)."""
    deadline = time.monotonic() + seconds
    poll = select.poll()
    if channel is not None:
        poll.register(channel.fileno(), 0)  # which leaves POLLHUP
    with contextlib.suppress(AttributeError, OSError):  # not here, not in this kernel, not in this container
        descriptor = os.pidfd_open(pid)
        poll.register(descriptor, select.POLLIN)
        return descriptor in dict(poll.poll(None if seconds == math.inf else 1e3 * seconds))
    while True:  # also where there is no such process any more
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:  # it is there, and has another user now
            pass
        if poll.poll(min(500, 1e3 * seconds)) or time.monotonic() >= deadline:
            return False


@contextlib.contextmanager
def _openblas_with_one_thread() -> Iterator[None]:
    """Let a fork find OpenBLAS with one thread, unless the user has set OMP_NUM_THREADS.

    To set that in the fork would start the threads that it has not inherited. Each of them then polls for 2**28 cycles
    (THREAD_TIMEOUT in OpenBLAS's driver/others/blas_server.c).
    """
    pools = [each for each in _thread_pools() if each.internal_api == "openblas" and each.threading_layer == "pthreads"]
    before = [pool.num_threads for pool in pools]
    try:
        for pool in pools:
            pool.set_num_threads(1)
        yield
    finally:
        for pool, threads in zip(pools, before, strict=True):
            pool.set_num_threads(threads)


def _thread_pools() -> list[Any]:
    """Return the libraries here that compute with more than one thread; none if the user has set OMP_NUM_THREADS."""
    if os.environ.get("OMP_NUM_THREADS", "1") != "1":
        return []
    return [each for each in threadpoolctl.ThreadpoolController().lib_controllers if each.num_threads != 1]


def limit_threads() -> None:
    """Keep libraries that a fork has inherited to one thread, unless the user has set OMP_NUM_THREADS."""
    for pool in _thread_pools():
        pool.set_num_threads(1)
    if "torch" in sys.modules and os.environ.get("OMP_NUM_THREADS", "1") == "1":
        sys.modules["torch"].set_num_threads(1)


class Terminated(BaseException):
    """SIGTERM has come: the worker closes its envs and ends."""


def leave_on_sigterm(_: int, __: object) -> None:
    """Handle SIGTERM: raise Terminated, and end the process if closing its envs takes longer than CLOSE_TIMEOUT."""
    timer = threading.Timer(CLOSE_TIMEOUT, os._exit, (1,))
    timer.daemon = True
    timer.start()
    raise Terminated
