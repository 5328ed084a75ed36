"""Rank 0's side: one `Session` per communicator, with a `Line` to each hosted worker."""

from __future__ import annotations

import atexit
import itertools
import os
import signal
import sys
import threading
import weakref
from collections import deque
from types import TracebackType
from typing import Any

from vecenvs.errors import BackendUnavailable, VecEnvError
from vecenvs.mpi.hosting import Order
from vecenvs.mpi.library import explain_size_one, load_mpi
from vecenvs.mpi.mail import CONTROL, Mail
from vecenvs.mpi.nodes import ARRIVAL_TIMEOUT, Peer, ProbeTarget, private_copy
from vecenvs.mpi.serving import serve
from vecenvs.mpi.waiting import wait_for
from vecenvs.process import watch_caller
from vecenvs.protocol import dumps, loads

STOP_MARGIN = 2.0  # seconds beyond what a stop may take by its own rules


class Line:
    """What rank 0 knows of one hosted worker: messages it has sent, whether it lives."""

    def __init__(self, session: Session, number: int, peer: Peer) -> None:
        self.session = session
        self.number = number
        self.peer = peer
        self.inbox: deque[bytearray] = deque()
        self.gone = False
        self.exitcode: int | None = None
        self.stopped = False

    def send(self, data: bytes) -> None:
        """Send to the worker, in order; BrokenPipeError if it is gone."""
        if self.gone:
            raise BrokenPipeError(f"the worker on {self.peer} is gone")
        self.session.send(self.peer.rank, self.number, data)

    def receive(self, timeout: float | None) -> bytearray | None:
        """Take the next message, waiting up to `timeout` seconds. None if there is none, early if none can come."""
        if not self.inbox:
            wait_for(self._heard, timeout)
        return self.inbox.popleft() if self.inbox else None

    def _heard(self) -> bool:
        self.session.poll()
        return bool(self.inbox) or self.gone

    def exit_status(self) -> tuple[bool, int | None]:
        self.session.poll()
        return self.gone, self.exitcode

    def stop(self, grace: float) -> None:
        """Have the worker's process ended, and wait until it is."""
        if self.stopped:
            return
        self.stopped = True
        if not self.gone:
            grace = max(grace, 0.1)
            self.session.control(self.peer.rank, "stop", self.number, grace)
            wait_for(lambda: self.exit_status()[0], 2 * grace + STOP_MARGIN)
        self.session.hang_up(self)


class Session:
    """The worker ranks of one communicator."""

    def __init__(self, mpi: Any, private: Any) -> None:
        self.ended = False
        self.vec_envs: weakref.WeakSet[Any] = weakref.WeakSet()
        self._mpi = mpi
        self._comm = private
        self._size = private.Get_size()
        self._mail = Mail(mpi, private, mpi.ANY_SOURCE)
        self._numbers = itertools.count(1)
        self._most = private.Get_attr(mpi.TAG_UB)
        self._lines: dict[int, Line] = {}
        self.peers: dict[int, Peer] = {}
        self._meet()

    def _meet(self) -> None:
        """Learn who the worker ranks are."""
        target = ProbeTarget()
        try:
            for rank in range(1, self._size):
                self.control(rank, "probe", target.probe)
            wait_for(lambda: self.poll() or len(self.peers) == self._size - 1, ARRIVAL_TIMEOUT)
        finally:
            target.forget()
        missing = sorted(set(range(1, self._size)) - self.peers.keys())
        if missing:
            raise VecEnvError(f"no answer from rank {', '.join(map(str, missing))} within {ARRIVAL_TIMEOUT:g} s")

    def host(self, peer: Peer, order: Order) -> Line:
        """Have a worker started on a rank, without waiting for it."""
        number = 1 + next(self._numbers) % (self._most - 1)
        line = self._lines[number] = Line(self, number, peer)
        self.control(peer.rank, "host", number, order)
        return line

    def least_busy(self, own: list[Peer]) -> Peer:
        """Choose a rank for a worker: with the fewest of `own` (the same VecEnv's), then with the fewest of all."""
        self.poll()
        if not self.peers:
            raise VecEnvError("no worker rank is left")
        hosting = [line.peer for line in self._lines.values()]
        return min(self.peers.values(), key=lambda peer: (own.count(peer), hosting.count(peer), peer.rank))

    def hang_up(self, line: Line) -> None:
        self._lines.pop(line.number, None)

    def send(self, rank: int, tag: int, data: bytes) -> None:
        try:
            self._mail.send(rank, tag, data)
        except self._mpi.Exception as exc:
            self._note_failure(exc)
            if rank not in self.peers:
                raise BrokenPipeError(f"rank {rank} is gone") from exc

    def control(self, rank: int, *what: Any) -> None:
        self.send(rank, CONTROL, dumps(what))

    def poll(self) -> bool:
        """Sort what has arrived into the lines. Always False, for use in conditions."""
        try:
            while not self.ended and (message := self._mail.take()) is not None:
                _, tag, data = message
                if tag == CONTROL:
                    self._hear(*loads(data))
                elif tag in self._lines:
                    self._lines[tag].inbox.append(data)
        except self._mpi.Exception as exc:
            self._note_failure(exc)
        return False

    def _hear(self, what: str, *rest: Any) -> None:
        if what == "hello":
            (peer,) = rest
            self.peers[peer.rank] = peer
        elif what == "exited":
            number, code = rest
            if number in self._lines:
                self._lines[number].gone = True
                self._lines[number].exitcode = code

    def _note_failure(self, exc: Any) -> None:
        raise VecEnvError(f"MPI failed between rank 0 and its worker ranks: {exc}") from exc

    def end(self) -> None:
        """Close what is open and let the worker ranks go. Repeatable."""
        if self.ended:
            return
        for vec_env in list(self.vec_envs):
            vec_env.close()
        for rank in self.peers:
            self.control(rank, "end")
        wait_for(lambda: self.poll() or not self._mail.has_unsent, STOP_MARGIN)
        self.ended = True


_sessions: list[tuple[Any, Session]] = []


def session_of(comm: Any = None) -> Session:
    """Give the session of a communicator (default: all ranks). On a rank other than its 0 this serves and never returns.

    BackendUnavailable if MPI is missing, was not launched, or was launched by another MPI's mpirun.
    """
    mpi = load_mpi()
    comm = mpi.COMM_WORLD if comm is None else comm
    for known, session in _sessions:
        if mpi.Comm.Compare(known, comm) == mpi.IDENT and not session.ended:
            return session
    if comm.Get_size() < 2:
        raise BackendUnavailable(explain_size_one(mpi))
    covers_world = comm.Get_size() == mpi.COMM_WORLD.Get_size()
    if not covers_world and not _sessions:
        abort_on_exception(mpi)  # ranks that are not ours to end would wait for this one
    private, root_here = private_copy(mpi, comm)
    if private.Get_rank() != 0:
        serve(mpi, private, root_here)
    session = Session(mpi, private)
    if not _sessions:
        _take_care_of_the_end()
    _sessions.append((comm, session))
    return session


def _take_care_of_the_end() -> None:
    """However rank 0 ends, its worker ranks are let go or the job is aborted: nobody waits for ever."""
    atexit.register(_end_all)
    watch_caller(os.getppid(), [])  # the launcher: if it is killed, nobody else ends this rank
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _leave)


def _end_all() -> None:
    for _, session in _sessions:
        session.end()


def abort_on_exception(mpi: Any) -> None:
    """From here on an uncaught exception in this process ends the whole job, once it has been shown."""
    show = sys.excepthook

    def show_and_abort(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        show(kind, value, trace)
        sys.stdout.flush()
        sys.stderr.flush()
        mpi.COMM_WORLD.Abort(1)

    sys.excepthook = show_and_abort


def _leave(number: int, _: object) -> None:
    raise SystemExit(128 + number)
