"""This process as a rank of an MPI job: what it becomes, and how it ends."""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import os
import signal
import sys
import threading
from types import TracebackType
from typing import Any

from vecenvs.backends.mpi import status_file
from vecenvs.backends.mpi.abort import abort, flush
from vecenvs.backends.mpi.library import HOW_TO_LAUNCH, explain_size_one, load_mpi, was_launched
from vecenvs.backends.mpi.nodes import ARRIVAL_TIMEOUT, is_running, private_copy
from vecenvs.backends.mpi.polling import wait_for
from vecenvs.backends.mpi.rank_server import serve_rank
from vecenvs.backends.mpi.ranks import FAILURE_TIMEOUT, PING_TIMEOUT, WorkerRanks
from vecenvs.errors import BackendUnavailable, VecEnvError
from vecenvs.worker.process import watch_caller

FINALIZE_PATIENCE = 1.0

_known: list[tuple[Any, WorkerRanks]] = []
_we_initialised = False
_told_to_leave = _ends = False
_pid = 0


def worker_ranks(comm: Any = None, patience: float = ARRIVAL_TIMEOUT) -> WorkerRanks:
    """Return the worker ranks of a communicator (default: all ranks). On those ranks this serves, and never returns.

    Raises:
        VecEnvError: not all ranks of the communicator come here, or do not answer, within `patience` seconds.
        BackendUnavailable: MPI is missing, was not launched, or was launched by another MPI's mpirun.
    """
    global _we_initialised  # noqa: PLW0603  a fact about the process
    if importlib.util.find_spec("mpi4py") is not None and not was_launched():
        raise BackendUnavailable(HOW_TO_LAUNCH)
    _we_initialised = _we_initialised or "mpi4py.MPI" not in sys.modules
    mpi = load_mpi()
    comm = mpi.COMM_WORLD if comm is None else comm
    if comm == mpi.COMM_NULL or (comm.Get_size() < 2 <= mpi.COMM_WORLD.Get_size()):
        what = "MPI.COMM_NULL, which has no rank" if comm == mpi.COMM_NULL else "a communicator of this rank alone"
        raise BackendUnavailable(
            f"comm is {what}: envs need one more rank at least (in this process SubprocVecEnv has workers without any)"
        )
    for known, ranks in _known:
        if mpi.Comm.Compare(known, comm) == mpi.IDENT and not ranks.ended:
            return ranks
    if comm.Get_size() < 2:
        raise BackendUnavailable(explain_size_one(mpi))
    if comm.Get_size() < mpi.COMM_WORLD.Get_size() and not _known:
        abort_on_exception(mpi)  # ranks that are not ours to end would wait for this one
    try:
        private, node = private_copy(mpi, comm, patience)
        if private.Get_rank() != 0:
            serve_rank(mpi, private, node)
        ranks = WorkerRanks(mpi, private, patience)
    except VecEnvError:
        abort_on_exception(mpi)  # unless the script handles it
        raise
    if not _known:
        _end_with_this_process()
    _known.append((comm, ranks))
    return ranks


def has_ranks() -> bool:
    """Tell whether ranks serve this process already; they know no fork of it."""
    return bool(_known) and os.getpid() == _pid


def _end_with_this_process() -> None:
    """Have the worker ranks let go, or the job aborted, however rank 0 ends: nothing waits for ever."""
    global _pid  # noqa: PLW0603
    _pid = os.getpid()
    atexit.register(_end_all)
    watch_caller(os.getppid())  # the launcher: if it is killed, nothing else ends this rank
    if threading.current_thread() is threading.main_thread():
        # Under Open MPI there is a handler of SIGHUP that Python does not see; a script without one would go on by it.
        for number, handler in ((signal.SIGTERM, _leave), (signal.SIGHUP, signal.SIG_DFL)):
            if signal.getsignal(number) == signal.SIG_DFL:
                signal.signal(number, handler)


def _end_all() -> None:
    global _ends  # noqa: PLW0603
    if os.getpid() != _pid:  # a fork of rank 0: no rank
        return
    _ends = True
    mpi = load_mpi()
    patience = FAILURE_TIMEOUT if _told_to_leave else PING_TIMEOUT
    broken = not all(ranks.can_finalize(patience) for _, ranks in _known)
    if broken:
        outcome = "" if status_file.has_reader() else " and ends as failed"
        texts = [
            *(text for _, ranks in _known for text in ranks.report_lost()),
            f"the job has lost a rank{outcome}",
        ]
        print("".join(f"vecenvs: {text}\n" for text in texts), end="", file=sys.stderr, flush=True)  # noqa: T201
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the launcher's answer to ranks that end without MPI
    for _, ranks in _known:
        ranks.end("abandon" if broken else "end")
    status_file.end()
    if broken:
        if _told_to_leave:  # the launcher is ending the job already; asked to abort it as well, srun gets stuck
            flush()
            os._exit(128 + signal.SIGTERM)
        abort(mpi.COMM_WORLD)
    if _we_initialised:
        mpi.Finalize()
        # A rank 0 that fails has the others killed by the launcher: let them remove their files first.
        peers = [peer for _, ranks in _known for peer in ranks.peers.values() if peer.shares]
        wait_for(lambda: not any(is_running(peer.pid) for peer in peers), FINALIZE_PATIENCE)


def abort_on_exception(mpi: Any) -> None:
    """From here on an uncaught exception in this process ends the whole job, once it has been shown."""
    show = sys.excepthook

    def show_and_abort(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        show(kind, value, trace)
        abort(mpi.COMM_WORLD)

    sys.excepthook = show_and_abort


def _leave(number: int, _: object) -> None:
    """Handle SIGTERM, which a launcher sends if it has lost a rank, or on Ctrl-C."""
    global _told_to_leave  # noqa: PLW0603
    _told_to_leave = True
    for _, ranks in _known:
        for text in ranks.report_lost():
            with contextlib.suppress(OSError):  # of a launcher that is gone
                os.write(2, f"vecenvs: {text}\n".encode())
    status_file.say_no_more()
    if _ends:  # what is raised within exit handlers is shown with its traceback, and nothing else
        flush()
        os._exit(128 + number)
    raise SystemExit(128 + number)
