"""What a worker process does about being a process: signals, a caller that ends, threads and environment variables."""

from __future__ import annotations

# What `signal` wraps: without a look for each handler among its enums, in a seventh of the time.
import _signal  # type: ignore[import-not-found]
import _thread
import contextlib
import gc
import io
import math
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from multiprocessing import process, resource_tracker
from types import FrameType
from typing import Any, Protocol

import threadpoolctl

from vecenvs.transport.memory import unlink_semaphores

# An MPI launcher's variables would make a child that imports mpi4py take itself for its parent's rank.
LAUNCHER_VARIABLES = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "HYDI_", "HYDRA_", "MPI_LOCAL")
# One thread per worker: the workers themselves fill the cores.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
CLOSE_TIMEOUT = 2.0  # seconds for a worker to close its envs when it has to end

# What terminals and schedulers send to whole process groups, and which is for the caller to act upon.
_TOLD = [getattr(signal, name) for name in ("SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2") if hasattr(signal, name)]
_GROUP = {*_TOLD, signal.SIGTERM}
_SIGNALS = [number for number in map(int, signal.valid_signals()) if number < 32]  # those that have names


class HasFileno(Protocol):
    """One end of a connection, by its descriptor."""

    def fileno(self) -> int:
        """Return the descriptor."""


_environment_lock = threading.Lock()
_environment_owner = 0  # the thread that has this lock
_handlers: dict[int, Any] = {}  # of the signals that are held back now
_holder: HeldSignals | None = None  # the block that holds them back
_held_in: dict[int, Any] = {}  # by thread that forks now: the signals that it had held back before
_boot: HasFileno | None = None  # the boot channel of this worker
_alone = False  # whether the caller of this worker is known to have ended
_leaves = False  # whether this worker is about to end
_collects = True  # whether the caller has its garbage collected


def _handle(number: int, _: object) -> None:
    """Leave a signal to the caller. Raise Terminated for SIGTERM if the caller of this worker has hung up or ended."""
    if number == signal.SIGTERM and (_alone or (_boot is not None and has_hung_up(_boot))):
        signal.signal(number, signal.SIG_IGN)
        timer = threading.Timer(CLOSE_TIMEOUT, os._exit, (1,))
        timer.daemon = True
        timer.start()
        if not _leaves:
            raise Terminated


def leave() -> None:
    """Close envs and end from here on: SIGTERM, which whatever watches the caller may still send, is no exception."""
    global _leaves  # noqa: PLW0603
    _leaves = True


def has_hung_up(channel: HasFileno) -> bool:
    """Tell whether the other end of a channel has been closed."""
    poll = select.poll()
    poll.register(channel.fileno(), 0)  # which leaves POLLHUP
    return bool(poll.poll(0))


def take_signals(*, sigterm: bool = False) -> None:
    """Leave the signals of whole process groups to the caller; with `sigterm` that one, too, while there is a caller.

    What this process starts has the usual handlers: after SIG_IGN it would have that.
    """
    for number in _GROUP if sigterm else _TOLD:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _handle)
            signal.siginterrupt(number, False)
    let_signals_through()


def let_signals_through() -> set[signal.Signals]:
    """Hold the signals of process groups back no longer; return those that were held back."""
    return signal.pthread_sigmask(signal.SIG_UNBLOCK, _GROUP)  # type: ignore[return-value]


def _begin_fork() -> None:
    """Hold back what a fork may be sent before it has the usual handlers: Python would forget it."""
    if any(signal.getsignal(number) is _handle for number in _GROUP):
        _held_in[threading.get_ident()] = signal.pthread_sigmask(signal.SIG_BLOCK, _GROUP)


def _end_fork() -> None:
    mask = _held_in.pop(threading.get_ident(), None)
    if mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _begin_anew() -> None:
    """Make a fork able to start processes, as an env may have a VecEnv inside, and to be ended by signals."""
    global _environment_lock, _environment_owner
    _environment_lock, _environment_owner = threading.Lock(), 0
    _restore_handlers()
    for number in _GROUP:
        if signal.getsignal(number) is _handle:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    _end_fork()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(before=_begin_fork, after_in_parent=_end_fork, after_in_child=_begin_anew)


def _restore_handlers() -> None:
    """Set the handler of every signal again. What a handler raises meanwhile is raised at the end."""
    raised: BaseException | None = None
    while _handlers:
        try:
            number = next(iter(_handlers))
            _signal.signal(number, _handlers[number])
            del _handlers[number]
        except BaseException as exc:
            raised = exc
    if raised is not None:
        raise raised


class HeldSignals:
    """A block in which no signal's handler raises: all are called after it.

    Has no effect outside the main thread, nor within another such block. With `first_only` a signal that comes for the
    second time is let through, except in a block without it inside: what the block waits for may never end.
    """

    def __init__(self, *, first_only: bool = False) -> None:
        self._noted: list[int] = []
        self._holds = False
        self.first_only = first_only
        self._around: HeldSignals | None = None  # a block that lets no second signal through inside this one

    def __enter__(self) -> None:
        global _holder
        if threading.current_thread() is not threading.main_thread():
            return
        if _handlers:
            if _holder is not None and _holder.first_only and not self.first_only:
                self._around, _holder.first_only = _holder, False
            return
        self._holds, _holder = True, self
        get = _signal.getsignal
        try:
            for number in _SIGNALS:  # signal.signal would make an Enum's member of each, which takes 2 us
                if callable(handler := get(number)):
                    _handlers[number] = handler
                    _signal.signal(number, self._note)
        except BaseException:
            _restore_handlers()
            raise

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.first_only and number in self._noted:
            _handlers[number](number, frame)
        else:
            self._noted.append(number)

    def __exit__(self, *_: object) -> None:
        if self._around is not None:
            self._around.first_only = True
        try:
            if self._holds:
                _restore_handlers()
        finally:
            if self._noted:
                self._call_handlers()

    def _call_handlers(self) -> None:
        """Have the handlers of the held signals called, as if these came now: all, whatever each raises."""
        tell: Any = _thread.interrupt_main
        list(map(tell, self._noted))  # at once: the first handler may raise after it


@contextlib.contextmanager
def signals_let_through() -> Iterator[None]:
    """Within `child_environment`, let what is started inside this block have no signals held back."""
    mask = let_signals_through()
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextlib.contextmanager
def child_environment() -> Iterator[None]:
    """Start processes inside this block with an environment without MPI's launcher, and with one thread each.

    Thread counts that the user has set stay. The caller's own environment is changed for the time of the block, since a
    child inherits it before any of our code runs there. Signals are held back for the same time. A child has those of
    process groups held back until it takes them (`take_signals`). One that is still importing would end, or answer a
    Ctrl-C with a traceback. What any handler raises in the middle of a fork is lost, or sends the child into the
    caller's program. Nothing collects garbage, which a fork must not free (`keep_garbage`).
    """
    global _collects, _environment_owner  # noqa: PLW0603  forks read it
    if _environment_owner == threading.get_ident():  # within another such block
        yield
        return
    with HeldSignals(), _environment_lock, _main_without_false_file(), _openblas_with_one_thread():
        removed = {k: v for k, v in os.environ.items() if k.startswith(LAUNCHER_VARIABLES)}
        added = [name for name in THREAD_VARIABLES if name not in os.environ]
        _collects = gc.isenabled()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _GROUP)
        try:
            resource_tracker.ensure_running()  # multiprocessing would do so later, and let Ctrl-C through again
            signal.pthread_sigmask(signal.SIG_BLOCK, _GROUP)
            gc.disable()
            _environment_owner = threading.get_ident()
            for name in removed:
                del os.environ[name]
            for name in added:
                os.environ[name] = "1"
            yield
        finally:
            _environment_owner = 0
            os.environ.update(removed)
            for name in added:
                os.environ.pop(name, None)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            if _collects:
                gc.enable()


def keep_garbage() -> None:
    """In a worker, leave the caller's garbage alone: an EnvPool in it waits for threads that a fork does not have."""
    gc.freeze()
    if _collects:
        gc.enable()


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


def begin_worker(caller: int, names: Sequence[str], channel: HasFileno) -> None:
    """Become a worker: handle signals as one, and end soon after the caller (see `watch_caller`).

    A scheduler sends SIGTERM to all processes of a job, and the caller may have envs to save until it is killed. So it
    ends a worker only after the caller.
    """
    global _boot  # noqa: PLW0603
    for number in _SIGNALS:  # a fork has the caller's
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        if not isinstance(getattr(sys, name), io.TextIOWrapper):  # a notebook's stream: it reads the descriptor
            setattr(sys, name, os.fdopen(descriptor, "w", 1, errors="backslashreplace", closefd=False))
    signal.set_wakeup_fd(-1)  # so that the caller's asyncio loop does not take our signals for its own
    _boot = channel
    os.set_inheritable(channel.fileno(), False)  # as a fork server's is: a program in our place would have it
    take_signals(sigterm=True)
    watch_caller(caller, names, channel)


class Terminated(BaseException):
    """A worker has to close its envs and end. If that takes more than CLOSE_TIMEOUT, its process ends all the same."""


def watch_caller(pid: int, names: Sequence[str] = (), channel: HasFileno | None = None) -> None:
    """End this process soon after process `pid` has ended, for whatever reason. Unlink the semaphores `names` before.

    The envs get CLOSE_TIMEOUT seconds to close, as they may have processes of their own. A caller that replaces its
    program (`os.execv`) goes on as the same process, but closes the other end of `channel`. So does a caller that has
    no use for this worker any more.
    """

    def watch() -> None:
        global _alone  # noqa: PLW0603
        if not wait_for_end(pid, channel):
            wait_for_end(pid, None, CLOSE_TIMEOUT)  # it may have been told to close
        _alone = True
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
