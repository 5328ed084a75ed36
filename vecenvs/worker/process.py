"""What a worker process does about being a process: signals, a vanished caller, threads and environment variables."""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from multiprocessing import process, resource_tracker
from typing import Any, Protocol

import cloudpickle

from vecenvs.errors import VecEnvError
from vecenvs.transport.memory import unlink_semaphores
from vecenvs.transport.protocol import Answer, RemoteFailure, ShardSpec, can_pickle, dumps, loads
from vecenvs.transport.shared import Names, Wiring, serve
from vecenvs.worker.make_envs import make_envs
from vecenvs.worker.worker import close_envs

# An MPI launcher's variables would make a child that imports mpi4py take itself for its parent's rank.
LAUNCHER_VARIABLES = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "HYDI_", "HYDRA_", "MPI_LOCAL")
# One thread per worker: the workers themselves fill the cores.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
LEAVE = 2.0  # seconds for a worker that is to go to close its envs
MOMENT = 0.05  # seconds from when a process that ends has closed its descriptors until it has ended

_environment_lock = threading.Lock()
_handlers: dict[int, Any] = {}  # of the signals that are held back now


def _begin_anew() -> None:
    """A worker is forked inside `child_environment`, and may start processes itself: an env with a VecEnv inside."""
    global _environment_lock  # noqa: PLW0603
    _environment_lock = threading.Lock()
    _restore_handlers()


os.register_at_fork(after_in_child=_begin_anew)


def _restore_handlers() -> None:
    """Give every signal its handler back; what one of these raises meanwhile is raised at the end."""
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


class _HeldSignals:
    """A block in which no signal's handler raises: all are called after it. Does nothing but in the main thread."""

    def __init__(self) -> None:
        self._noted: list[int] = []

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
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
            if threading.current_thread() is threading.main_thread():
                calls.callback(_restore_handlers)

    def _call_handlers(self) -> None:
        """Only when they are back: what comes before that is still noted."""
        with contextlib.ExitStack() as calls:
            for number in self._noted:
                calls.callback(signal.raise_signal, number)


@contextlib.contextmanager
def child_environment() -> Iterator[None]:
    """Give processes started inside this block an environment without MPI's launcher and with one thread each.

    Thread counts that the user has set stay. It is the caller's own environment for the time of the block, since that
    is what a child inherits before any of our code runs in it. So it is with Ctrl-C, which is held back meanwhile: a
    child that is still importing would answer it with a traceback. So is every signal that has a handler: in the midst
    of a fork what it raises is lost, or sends the child into the caller's program.
    """
    with _HeldSignals(), _environment_lock, _main_without_false_file():
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
    """Keep children from importing again a `__main__` that has no such file: that of `python - < script` has "<stdin>".

    Nobody needs it, since what `__main__` defines is pickled by value.
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


class Pipe(Protocol):
    """What a worker needs of its way to the caller: a Connection of multiprocessing has it, and so has a Channel."""

    def send_bytes(self, data: bytes, /) -> None: ...
    def recv_bytes(self) -> bytes | bytearray: ...
    def fileno(self) -> int: ...


def run_worker(pipe: Pipe, payload: list[Any], first: int, autoreset: str, caller: int, names: Names) -> None:
    """Make the envs, report them over `pipe`, and serve until told to close."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the caller closes its workers
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # held back by `child_environment`
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)  # a fork has the caller's: its asyncio loop would take our signals for its own
    all_names = list(names)
    watch_caller(caller, all_names, pipe)
    limit_threads()
    envs: list[Any] = []
    try:
        signal.signal(signal.SIGTERM, _leave)
        try:
            env_fns = [partial(_load_and_call, item) if isinstance(item, bytes) else item for item in payload]
            envs, made = make_envs(env_fns, first, remote=True)
            pipe.send_bytes(made_message(made, first, forked=not isinstance(payload[0], bytes)))
            wiring: Wiring = loads(pipe.recv_bytes())
            if isinstance(made, RemoteFailure):
                return
            serve(envs, made, first, autoreset, wiring, lambda: pipe.send_bytes(dumps((0, int(Answer.REPLY), None))))
            envs = []  # closed, as told
        except Exception as exc:
            if _wait_for_end(caller, None, MOMENT):  # else this process may end before its thread that watches is told
                unlink_semaphores(all_names)
            elif not isinstance(exc, (EOFError, ConnectionError)):  # the caller gave up while starting
                raise
    except Terminated:
        sys.exit(1)
    finally:
        close_envs(envs, first, remote=True)


def _load_and_call(env_fn: bytes) -> Any:
    return cloudpickle.loads(env_fn)()


def made_message(made: ShardSpec | RemoteFailure, first: int, *, forked: bool) -> bytes:
    """The message MADE; instead of what no pickle takes, a RemoteFailure that says so.

    What a fork has of `__main__` goes by name: by value, spaces of each worker would be of a class of their own.
    """
    if forked and isinstance(made, ShardSpec):
        with contextlib.suppress(Exception):  # what has no name
            return pickle.dumps((0, int(Answer.MADE), made), protocol=5)
    try:
        return dumps((0, int(Answer.MADE), made))
    except Exception as exc:
        which = next((name for name, value in made._asdict().items() if not can_pickle(value)), "description")
        problem = VecEnvError(f"env {first} has an {which} that cannot be pickled ({exc}): use DummyVecEnv")
        return dumps((0, int(Answer.MADE), RemoteFailure.capture(first, "its env function", problem, portable=True)))


def watch_caller(pid: int, names: list[str], pipe: Pipe | None = None) -> None:
    """End this process soon after process `pid` has ended, however that happened; remove `names` before.

    The envs get LEAVE seconds to close, as they may have processes of their own. A process that goes on as another
    program (`os.execv`) ends only its side of `pipe`; so does one that has no use for this worker any more.
    """

    def watch() -> None:
        if not _wait_for_end(pid, pipe):
            time.sleep(LEAVE)  # it may have been told to close
        unlink_semaphores(names)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(LEAVE)
        os._exit(1)

    threading.Thread(target=watch, name="vecenvs-watch-caller", daemon=True).start()


def _wait_for_end(pid: int, pipe: Pipe | None, seconds: float = math.inf) -> bool:
    """Wait until process `pid` has ended (True), or the other side of `pipe`, or so many seconds."""
    deadline = time.monotonic() + seconds
    poll = select.poll()
    if pipe is not None:
        poll.register(pipe.fileno(), 0)  # which leaves POLLHUP
    with contextlib.suppress(AttributeError, OSError):  # not here, not in this kernel, not in this container
        descriptor = os.pidfd_open(pid)
        poll.register(descriptor, select.POLLIN)
        return descriptor in dict(poll.poll(None if seconds == math.inf else 1e3 * seconds))
    while True:  # also where there is no such process any more
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        if poll.poll(min(500, 1e3 * seconds)) or time.monotonic() >= deadline:
            return False


def limit_threads() -> None:
    """Keep libraries that a fork has inherited to one thread, unless the user has set OMP_NUM_THREADS."""
    if os.environ.get("OMP_NUM_THREADS", "1") != "1":
        return
    from threadpoolctl import threadpool_limits

    threadpool_limits(1)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


class Terminated(BaseException):
    """SIGTERM has come: the worker leaves, closing its envs."""


def _leave(_: int, __: object) -> None:
    timer = threading.Timer(LEAVE, os._exit, (1,))
    timer.daemon = True
    timer.start()
    raise Terminated
