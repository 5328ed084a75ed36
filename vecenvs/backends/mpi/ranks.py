"""Rank 0's side: one `Session` per communicator, with a `Line` to each hosted worker."""

from __future__ import annotations

import contextlib
import itertools
import math
import socket
import time
import weakref
from collections import deque
from collections.abc import Iterable
from typing import Any

from vecenvs.backends.mpi import status_file
from vecenvs.backends.mpi.disconnects import HangUps
from vecenvs.backends.mpi.hosting import Order
from vecenvs.backends.mpi.nodes import Peer, ProbeTarget, is_running
from vecenvs.backends.mpi.nonblocking import CONTROL, Mail
from vecenvs.backends.mpi.polling import Habit, wait_for
from vecenvs.cpus import allowed_cpus, usable_cores
from vecenvs.errors import VecEnvError, describe_indices
from vecenvs.transport.protocol import dumps, loads
from vecenvs.transport.tcp import HEARSAY, SILENCE

STOP_MARGIN = 2.0  # seconds beyond what a stop may take by its own rules
NOTICE = 0.5  # seconds for MPI to notice that a rank is gone, if it ever does
ANSWER = 10.0  # seconds for a rank to answer: it looks for messages every 20 ms, but its machine may be busy
EAGER = 4096  # bytes: MPI hands over larger messages only when both sides look
EAGER_PATIENCE = 0.03  # as long as a rank may rest


class Line:
    """What rank 0 knows of one hosted worker: messages it has sent, whether it lives."""

    def __init__(self, session: Session, number: int, peer: Peer, slots: range) -> None:
        self.session = session
        self.number = number
        self.peer = peer
        self.slots = slots
        self.where = f" on rank {peer.rank} of {peer.host}"
        self.inbox: deque[bytearray] = deque()
        self.gone = False
        self.exitcode: int | None = None
        self.stopped = False
        self._habit = Habit()

    def describe(self) -> dict[str, Any]:
        """Where the worker is: the rank, its host and its process there."""
        return {"rank": self.peer.rank, "host": self.peer.host, "pid": self.peer.pid}

    def send(self, data: bytes) -> None:
        """Send to the worker, in order; BrokenPipeError if it is gone."""
        if self.gone:
            raise BrokenPipeError(f"the worker on {self.peer} is gone")
        self._habit.ask()
        self.session.send(self.peer.rank, self.number, data)

    def deliver(self, data: bytearray) -> None:
        """Take in what the worker has sent."""
        self._habit.answer()
        self.inbox.append(data)

    def receive(self, timeout: float | None) -> bytearray | None:
        """Return the oldest message that has not been dropped, waiting up to `timeout` seconds.

        None if there is none, early if none can come.
        """
        if not self.inbox:
            wait_for(self._heard, timeout, self._habit)
        return self.inbox[0] if self.inbox else None

    def drop(self) -> None:
        """Forget the message that `receive` returns."""
        self.inbox.popleft()

    def _heard(self) -> bool:
        self.session.poll()
        return bool(self.inbox) or self.gone

    def exit_status(self) -> tuple[bool, int | None]:
        self.session.poll()
        self.session.look_after(self.peer)
        return self.gone, self.exitcode

    def stop(self, grace: float) -> None:
        """Have the worker's process ended, and wait until it is."""
        if self.stopped:
            return
        self.stopped = True
        if not self.gone:
            grace = max(grace, 0.1)
            with contextlib.suppress(BrokenPipeError):
                self.session.control(self.peer.rank, "stop", self.number, grace)
            session = self.session
            session.ask([self.peer])
            wait_for(
                lambda: self.exit_status()[0] or session.is_silent(self.peer, STOP_MARGIN), 2 * grace + STOP_MARGIN
            )
        self.session.hang_up(self)


class Session:
    """The worker ranks of one communicator."""

    def __init__(self, mpi: Any, private: Any, patience: float) -> None:
        self.ended = False
        self.vec_envs: weakref.WeakSet[Any] = weakref.WeakSet()
        self._mpi = mpi
        self._comm = private
        self._size = private.Get_size()
        self._mail = Mail(mpi, private, mpi.ANY_SOURCE)
        self._numbers = itertools.count(1)
        self._most = mpi.COMM_WORLD.Get_attr(mpi.TAG_UB)
        self._lines: dict[int, Line] = {}
        self.peers: dict[int, Peer] = {}
        self._lost: list[Peer] = []
        self.hang_ups = HangUps()
        self._asked: dict[int, float] = {}  # ranks that have not answered -> since when
        self._heard: dict[int, float] = {}  # rank -> when it last said something
        self._meet(patience)

    def _meet(self, patience: float) -> None:
        """Learn who the worker ranks are."""
        target = ProbeTarget()
        try:
            for rank in range(1, self._size):
                self.control(rank, "probe", target.probe)
            wait_for(lambda: self.poll() or len(self.peers) == self._size - 1, patience)
        finally:
            target.forget()
        missing = sorted(set(range(1, self._size)) - self.peers.keys())
        if missing:
            raise VecEnvError(f"no answer from rank {', '.join(map(str, missing))} within {patience:g} s")

    def host(self, peer: Peer, order: Order) -> Line:
        """Have a worker started on a rank, without waiting for it."""
        number = 1 + next(self._numbers) % (self._most - 1)
        line = self._lines[number] = Line(self, number, peer, order.slots)
        try:
            self.control(peer.rank, "host", number, order)
        except BrokenPipeError:
            self.hang_up(line)
            raise
        return line

    def least_busy(self, own: list[Peer]) -> Peer:
        """Choose a rank for a worker: with the fewest of `own` (the same VecEnv's), then with the fewest of all.

        Ranks that do not answer come into question only when they do.
        """
        wait_for(lambda: bool(self._answering()) or not self.peers, ANSWER)
        answering = self._answering()
        if not answering:
            silent = "; ".join(f"{peer} does not answer" for peer in self.peers.values())
            raise VecEnvError("no worker rank is left" + (f": {silent}" if silent else ""))
        hosting = [line.peer for line in self._lines.values()]
        return min(answering, key=lambda peer: (own.count(peer), hosting.count(peer), peer.rank))

    def _answering(self) -> list[Peer]:
        self.poll()
        return [peer for peer in self.peers.values() if not self._has_waited(peer, HEARSAY)]

    def ask(self, peers: Iterable[Peer]) -> None:
        """Ask ranks whether they can be reached; whatever such a rank says from now on is an answer."""
        for peer in list(peers):
            if peer.rank in self.peers and peer.rank not in self._asked:
                self._asked[peer.rank] = time.monotonic()
                with contextlib.suppress(BrokenPipeError):
                    self.control(peer.rank, "ping")

    def ask_host(self, host: str) -> None:
        """Ask all ranks of a host."""
        self.ask(peer for peer in self.peers.values() if peer.host == host)

    def is_silent(self, peer: Peer, seconds: float) -> bool:
        """Tell whether a rank that was asked so long ago has not answered."""
        self.poll()
        return self._has_waited(peer, seconds)

    def _has_waited(self, peer: Peer, seconds: float) -> bool:
        return time.monotonic() - self._asked.get(peer.rank, math.inf) > seconds

    def is_out_of_reach(self, peer: Peer) -> bool:
        """Tell whether a rank has said nothing for SILENCE seconds, though it was asked."""
        if time.monotonic() - self._heard.get(peer.rank, 0.0) > SILENCE / 3:
            self.ask([peer])
        return self.is_silent(peer, SILENCE)

    def hang_up(self, line: Line) -> None:
        self._lines.pop(line.number, None)

    def send(self, rank: int, tag: int, data: bytes) -> None:
        try:
            self._mail.send(rank, tag, data)
        except self._mpi.Exception as exc:
            self._note_failure(exc)
            if rank not in self.peers:
                raise BrokenPipeError(f"rank {rank} is gone") from exc
        if len(data) > EAGER:  # else its receiver would spin until rank 0 finds its way back into MPI
            wait_for(lambda: self.poll() or not self._mail.has_unsent, EAGER_PATIENCE)

    def control(self, rank: int, *what: Any) -> None:
        self.send(rank, CONTROL, dumps(what))

    def poll(self) -> bool:
        """Sort what has arrived into the lines. Always False, for use in conditions."""
        try:
            while not self.ended and (message := self._mail.take()) is not None:
                rank, tag, data = message
                self._asked.pop(rank, None)
                self._heard[rank] = time.monotonic()
                if tag == CONTROL:
                    self._hear(*loads(data))
                elif tag in self._lines:
                    self._lines[tag].deliver(data)
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
                status_file.explain(number)
                self._lines[number].gone = True
                self._lines[number].exitcode = code

    def _note_failure(self, exc: Any) -> None:
        """Strike out the ranks that are gone, if MPI lives on without them (Open MPI's ULFM); else VecEnvError."""
        if exc.Get_error_class() not in (self._mpi.ERR_PROC_FAILED, self._mpi.ERR_PROC_FAILED_PENDING):
            raise VecEnvError(f"MPI failed between rank 0 and its worker ranks: {exc}") from exc
        self._strike_out(self._failed())
        self._comm.Ack_failed(self._comm.Get_failed().Get_size())

    def _failed(self) -> list[int]:
        """Give the ranks of which MPI knows that they are gone. Only Open MPI's ULFM ever knows of one."""
        try:
            failed = self._comm.Get_failed()
        except (NotImplementedError, self._mpi.Exception):
            return []
        ranks = self._mpi.Group.Translate_ranks(failed, list(range(failed.Get_size())), self._comm.Get_group())
        return [int(rank) for rank in ranks]

    def _strike_out(self, ranks: Iterable[int]) -> None:
        for rank in ranks:
            if rank in self.peers:
                self._lost.append(self.peers.pop(rank))
            self._mail.drop_unsent(rank)
            for line in self._lines.values():
                line.gone = line.gone or line.peer.rank == rank

    def look_after(self, peer: Peer) -> None:
        """Strike a rank of this node out if its process has ended: not every launcher ends the job then."""
        if peer.shares and peer.rank in self.peers and not is_running(peer.pid):
            self._strike_out([peer.rank])

    def can_finalize(self, patience: float) -> bool:
        """Tell whether all ranks answer, or MPI knows that they are gone: finalising it would wait for others."""
        for peer in list(self.peers.values()):
            self.look_after(peer)
        if not self.ended:
            self.ask(self.peers.values())
            wait_for(lambda: all(self._has_waited(peer, patience) for peer in self._unanswering()), None)
        lost = {peer.rank for peer in (*self._lost, *self._unanswering())}
        return not lost or wait_for(lambda: lost <= {*self._failed()}, NOTICE)

    def _unanswering(self) -> list[Peer]:
        self.poll()
        return [peer for peer in self.peers.values() if peer.rank in self._asked]

    def cores(self) -> int:
        """Count the cores of this node that its ranks may use between them."""
        own = allowed_cpus()
        cpus = set(own).union(*(peer.cpus for peer in self.peers.values() if peer.shares))
        usable = usable_cores()
        return len(cpus) if usable == len(own) else min(usable, len(cpus))  # a cgroup's quota is for all of them

    def report_lost(self) -> list[str]:
        """Name the worker ranks that are gone, as far as this host can see, and their envs.

        One of another host counts as gone when it was asked and does not answer. This uses no MPI: a signal's handler
        may call it.
        """
        here = socket.gethostname()
        peers = list(self.peers.values())
        gone = [peer for peer in peers if peer.host == here and not is_running(peer.pid)]
        gone += [peer for peer in peers if self._has_waited(peer, HEARSAY)]
        texts = []
        for peer in dict.fromkeys((*self._lost, *gone)):
            slots = [describe_indices(line.slots) for line in self._lines.values() if line.peer == peer]
            texts.append(f"{peer} is gone" + (f", with envs {'; '.join(slots)}" if slots else ""))
        return texts

    def end(self, last_word: str) -> None:
        """Close what is open and let the worker ranks go: "end" has them finalise MPI, "abandon" not. Repeatable."""
        if self.ended:
            return
        try:
            for vec_env in list(self.vec_envs):
                vec_env.close()
        finally:
            for rank in list(self.peers):
                with contextlib.suppress(BrokenPipeError):
                    self.control(rank, last_word)
            wait_for(lambda: self.poll() or not self._mail.has_unsent, STOP_MARGIN)
            self.ended = True
