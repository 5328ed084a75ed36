"""Rank 0's side: the worker ranks of one communicator, and the workers launched on them."""

from __future__ import annotations

import contextlib
import itertools
import math
import socket
import time
import weakref
from collections.abc import Iterable
from typing import Any

from vecenvs.backends.mpi.hosting import LaunchRequest, LeaderRequest
from vecenvs.backends.mpi.launched_worker import STOP_MARGIN, LaunchedWorker
from vecenvs.backends.mpi.nodes import Peer, ProbeTarget, is_running
from vecenvs.backends.mpi.nonblocking import CONTROL, NonblockingComm
from vecenvs.backends.mpi.polling import wait_for
from vecenvs.cpus import allowed_cpus, usable_cores
from vecenvs.errors import VecEnvError, describe_indices
from vecenvs.transport.pickling import dumps, loads
from vecenvs.transport.tcp import CAUSE_TIMEOUT, SILENCE

FAILURE_TIMEOUT = 0.5  # seconds for MPI to notice that a rank is gone, if it ever does
PING_TIMEOUT = 10.0  # seconds for a rank to answer: it polls every 20 ms, but its machine may be busy
EAGER = 4096  # bytes: MPI hands over larger messages only while both sides are in it
EAGER_TIMEOUT = 0.03  # as long as a rank may rest


class WorkerRanks:
    """The worker ranks of one communicator. `patience`: seconds for all of them to answer."""

    def __init__(self, mpi: Any, private: Any, patience: float) -> None:
        self.ended = False
        self.vec_envs: weakref.WeakSet[Any] = weakref.WeakSet()
        self.peers: dict[int, Peer] = {}
        self._mpi = mpi
        self._private = private
        self._size = private.Get_size()
        self._comm = NonblockingComm(mpi, private, mpi.ANY_SOURCE)
        self._numbers = itertools.count(1)
        self._most = mpi.COMM_WORLD.Get_attr(mpi.TAG_UB)
        self._launched: weakref.WeakValueDictionary[int, LaunchedWorker] = weakref.WeakValueDictionary()
        self._abandoned: list[tuple[int, int]] = []  # (rank, number) of workers that nothing refers to any more
        self._lost: list[Peer] = []
        self._pinged: dict[int, float] = {}  # ranks that have not answered -> since when
        self._heard: dict[int, float] = {}  # rank -> when its last message came
        self._handshake(patience)

    def _handshake(self, patience: float) -> None:
        """Have the worker ranks describe themselves."""
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

    def launch(self, peer: Peer, request: LaunchRequest | LeaderRequest) -> LaunchedWorker:
        """Launch a worker on a rank, without waiting for it. BrokenPipeError if the rank is gone."""
        number = 1 + next(self._numbers) % (self._most - 1)
        launched = self._launched[number] = LaunchedWorker(self, number, peer, request.slots)
        # Where an exception (Ctrl-C) comes before anything else has a reference to it.
        weakref.finalize(launched, self._abandoned.append, (peer.rank, number)).atexit = False
        try:
            self.control(peer.rank, "launch", number, request)
        except BrokenPipeError:
            self.forget(launched)
            raise
        return launched

    def forget(self, launched: LaunchedWorker) -> None:
        """Forget a worker that has ended."""
        self._launched.pop(launched.number, None)

    def least_busy(self, own: list[Peer], *, spread: bool = False) -> Peer:
        """Choose a rank for a worker: with the fewest of `own` (the same VecEnv's), then with the fewest of all.

        With `spread` ranks of the nodes with the fewest of `own` come first. Ranks that do not answer are considered
        only when they do.

        Raises:
            VecEnvError: no rank is left, or none answers.
        """
        wait_for(lambda: bool(self._answering()) or not self.peers, PING_TIMEOUT)
        answering = self._answering()
        if not answering:
            silent = "; ".join(f"{peer} does not answer" for peer in self.peers.values())
            raise VecEnvError(
                "no worker rank is left to make envs on" + (f": {silent}" if silent else "")
                + ". The job has to be started again; programs that save their envs can go on from that"
            )  # fmt: skip
        hosting = [launched.peer for launched in self._launched.values() if launched.slots]
        nodes = [peer.node for peer in own] if spread else []
        return min(
            answering,
            key=lambda peer: (nodes.count(peer.node), own.count(peer), hosting.count(peer), peer.rank),
        )

    def _answering(self) -> list[Peer]:
        self.poll()
        return [peer for peer in self.peers.values() if not self._has_waited(peer, CAUSE_TIMEOUT)]

    def ping(self, peers: Iterable[Peer]) -> None:
        """Ask ranks whether they can be reached. Whatever a rank sends from now on is an answer."""
        for peer in list(peers):
            if peer.rank in self.peers and peer.rank not in self._pinged:
                self._pinged[peer.rank] = time.monotonic()
                with contextlib.suppress(BrokenPipeError):
                    self.control(peer.rank, "ping")

    def ping_host(self, host: str) -> None:
        """Ping all ranks of a host."""
        self.ping(peer for peer in self.peers.values() if peer.host == host)

    def is_silent(self, peer: Peer, seconds: float) -> bool:
        """Tell whether a rank that was pinged so long ago has not answered."""
        self.poll()
        return self._has_waited(peer, seconds)

    def _has_waited(self, peer: Peer, seconds: float) -> bool:
        return time.monotonic() - self._pinged.get(peer.rank, math.inf) > seconds

    def is_out_of_reach(self, peer: Peer) -> bool:
        """Tell whether a rank has been silent for SILENCE seconds after a ping, which is sent if need be."""
        if time.monotonic() - self._heard.get(peer.rank, 0.0) > SILENCE / 3:
            self.ping([peer])
        return self.is_silent(peer, SILENCE)

    def send(self, rank: int, tag: int, data: bytes) -> None:
        """Send to a rank; BrokenPipeError if it is gone."""
        try:
            self._comm.send(rank, tag, data)
        except self._mpi.Exception as exc:
            self._note_failure(exc)
            if rank not in self.peers:
                raise BrokenPipeError(f"rank {rank} is gone") from exc
        if len(data) > EAGER:  # else its receiver would burn a core until rank 0 is in MPI again
            wait_for(lambda: self.poll() or not self._comm.has_unsent, EAGER_TIMEOUT)

    def control(self, rank: int, *what: Any) -> None:
        """Send a message about the rank itself: see `RankServer`."""
        self.send(rank, CONTROL, dumps(what))

    def poll(self) -> bool:
        """Take in what has arrived. Always False, for use in conditions."""
        while self._abandoned and not self.ended:
            rank, number = self._abandoned[0]
            if rank in self.peers:
                with contextlib.suppress(BrokenPipeError):
                    self.control(rank, "stop", number, 0.1)  # of no effect if it has ended
            del self._abandoned[0]
        try:
            while not self.ended and (message := self._comm.first()) is not None:
                rank, tag, data = message
                self._pinged.pop(rank, None)
                self._heard[rank] = time.monotonic()
                if tag == CONTROL:
                    self._on_control(*loads(data))
                elif tag in self._launched:
                    self._comm.take_into(self._launched[tag].inbox)
                    continue
                self._comm.drop()
        except self._mpi.Exception as exc:
            self._note_failure(exc)
        return False

    def _on_control(self, what: str, *rest: Any) -> None:
        if what == "hello":
            (peer,) = rest
            self.peers[peer.rank] = peer
        elif what == "exited":
            number, code = rest
            if number in self._launched:
                self._launched[number].gone = True
                self._launched[number].exitcode = code

    def _note_failure(self, exc: Any) -> None:
        """Strike out the ranks that are gone, if MPI lives on without them (Open MPI's ULFM); else VecEnvError."""
        if exc.Get_error_class() not in (self._mpi.ERR_PROC_FAILED, self._mpi.ERR_PROC_FAILED_PENDING):
            raise VecEnvError(f"MPI failed between rank 0 and its worker ranks: {exc}") from exc
        self._strike_out(self._failed())
        self._private.Ack_failed(self._private.Get_failed().Get_size())

    def _failed(self) -> list[int]:
        """Return the ranks that MPI knows to be gone. Only Open MPI's ULFM ever knows of one."""
        try:
            failed = self._private.Get_failed()
        except (NotImplementedError, self._mpi.Exception):
            return []
        ranks = self._mpi.Group.Translate_ranks(failed, list(range(failed.Get_size())), self._private.Get_group())
        return [int(rank) for rank in ranks]

    def _strike_out(self, ranks: Iterable[int]) -> None:
        for rank in ranks:
            if rank in self.peers:
                self._lost.append(self.peers.pop(rank))
            self._comm.drop_unsent(rank)
            for launched in self._launched.values():
                launched.gone = launched.gone or launched.peer.rank == rank

    def check_process(self, peer: Peer) -> None:
        """Strike out a rank of this node whose process has ended: not every launcher ends the job then."""
        if peer.shares and peer.rank in self.peers and not is_running(peer.pid):
            self._strike_out([peer.rank])

    def can_finalize(self, patience: float) -> bool:
        """Tell whether all ranks answer, or MPI knows that they are gone: finalising it would wait for others."""
        for peer in list(self.peers.values()):
            self.check_process(peer)
        if not self.ended:
            self.ping(self.peers.values())
            wait_for(lambda: all(self._has_waited(peer, patience) for peer in self._unanswering()), None)
        lost = {peer.rank for peer in (*self._lost, *self._unanswering())}
        return not lost or wait_for(lambda: lost <= {*self._failed()}, FAILURE_TIMEOUT)

    def _unanswering(self) -> list[Peer]:
        self.poll()
        return [peer for peer in self.peers.values() if peer.rank in self._pinged]

    def cores(self, node: int) -> int:
        """Count the cores of a node that its ranks may use between them."""
        if node:
            return len(frozenset[int]().union(*(peer.cpus for peer in self.peers.values() if peer.node == node)))
        own = allowed_cpus()
        cpus = set(own).union(*(peer.cpus for peer in self.peers.values() if peer.shares))
        usable = usable_cores()
        return len(cpus) if usable == len(own) else min(usable, len(cpus))  # a cgroup's quota is for all of them

    def report_lost(self) -> list[str]:
        """Name the worker ranks that are gone, as far as this host can see, and their envs.

        A rank of another host counts as gone when it was pinged and does not answer. This uses no MPI: a signal's
        handler may call it.
        """
        for launched in list(self._launched.values()):
            launched.check_connection()
        here = socket.gethostname()
        peers = list(self.peers.values())
        gone = [peer for peer in peers if peer.host == here and not is_running(peer.pid)]
        gone += [peer for peer in peers if self._has_waited(peer, CAUSE_TIMEOUT)]
        texts = []
        for peer in dict.fromkeys((*self._lost, *gone)):
            slots = [
                describe_indices(launched.slots)
                for launched in self._launched.values()
                if launched.peer == peer and launched.slots
            ]
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
            wait_for(lambda: self.poll() or not self._comm.has_unsent, STOP_MARGIN)
            self.ended = True
