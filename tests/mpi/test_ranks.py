"""What a rank does by itself, with a stand-in for MPI: rank 0 and the others, its end, the workers it hosts."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from vecenvs.backends.mpi import hosting, job, ranks
from vecenvs.backends.mpi.hosting import HostedProcess
from vecenvs.backends.mpi.nodes import Peer
from vecenvs.backends.mpi.ranks import WorkerRanks
from vecenvs.backends.mpi.transport import address_towards
from vecenvs.errors import BackendUnavailable
from vecenvs.transport.pickling import dumps, loads


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


class Wire:
    """A `NonblockingComm` without MPI: what is sent is kept; worker ranks say hello when they are probed."""

    has_unsent = False

    def __init__(self, peers: dict[int, Peer]) -> None:
        self.peers = peers
        self.sent: list[tuple[Any, ...]] = []
        self.arrived: deque[tuple[int, int, bytearray]] = deque()

    def send(self, rank: int, tag: int, data: bytes) -> None:
        what = loads(data)
        self.sent.append((rank, *what))
        if what[0] == "probe":
            self.tell(rank, "hello", self.peers[rank])

    def tell(self, rank: int, *what: Any) -> None:
        """Have a message of this rank arrive."""
        self.arrived.append((rank, 0, bytearray(dumps(what))))

    def first(self) -> tuple[int, int, bytearray] | None:
        return self.arrived[0] if self.arrived else None

    def drop(self) -> None:
        self.arrived.popleft()

    def drop_unsent(self, rank: int) -> None:
        """Nothing is unsent."""


MPI: Any = SimpleNamespace(
    ANY_SOURCE=-1, TAG_UB=0, Exception=ZeroDivisionError, COMM_WORLD=SimpleNamespace(Get_attr=lambda _: 2**20)
)


def worker_ranks(monkeypatch: pytest.MonkeyPatch, pids: list[int]) -> tuple[WorkerRanks, Wire]:
    """Return the worker ranks 1, 2, ... of a job whose ranks have these process ids, and the wire to them."""
    peers = {rank: Peer(rank, "here", pid, 0, True, frozenset({0})) for rank, pid in enumerate(pids, 1)}
    wire = Wire(peers)
    monkeypatch.setattr(ranks, "NonblockingComm", lambda *_: wire)
    return WorkerRanks(MPI, SimpleNamespace(Get_size=lambda: 1 + len(pids)), 5.0), wire


REQUEST: Any = SimpleNamespace(slots=range(1))  # for a worker of env 0


def test_a_stopped_worker_leaves_its_rank_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker goes where fewest are, and those that have ended do not count, whoever may still refer to them."""
    all_ranks, wire = worker_ranks(monkeypatch, [os.getpid()] * 2)
    first = all_ranks.launch(all_ranks.least_busy([]), REQUEST)
    second = all_ranks.launch(all_ranks.least_busy([]), REQUEST)
    assert (first.peer.rank, second.peer.rank) == (1, 2)
    wire.tell(2, "exited", second.number, 0)
    second.stop(0.0)
    third = all_ranks.launch(all_ranks.least_busy([]), REQUEST)
    assert third.peer.rank == 2
    assert second.gone
    assert not third.gone


def test_ranks_that_are_gone_stay_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a rank its workers are gone, and the loss of another rank changes nothing about that."""
    ended = [subprocess.Popen([sys.executable, "-c", "pass"]) for _ in range(2)]
    for process in ended:
        process.wait()
    all_ranks, _ = worker_ranks(monkeypatch, [ended[0].pid, os.getpid(), ended[1].pid])
    workers = [all_ranks.launch(all_ranks.peers[rank], REQUEST) for rank in (1, 2, 3)]
    assert workers[0].exit_status() == (True, None)
    assert workers[1].exit_status() == (False, None)
    assert workers[2].exit_status() == (True, None)
    assert workers[0].exit_status() == (True, None)
    assert [*all_ranks.peers] == [2]
    with pytest.raises(BrokenPipeError):
        workers[0].send(b"")
    assert [text.partition(" on ")[0] for text in all_ranks.report_lost()] == ["rank 1", "rank 3"]


def test_a_rank_that_was_heard_of_lately_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was not is, and is out of reach if it does not answer; any message is an answer."""
    clock = Clock()
    monkeypatch.setattr(ranks, "time", clock)
    all_ranks, wire = worker_ranks(monkeypatch, [os.getpid()])
    peer = all_ranks.peers[1]

    def asked() -> bool:
        return (1, "ping") in wire.sent

    clock.now += ranks.SILENCE / 4
    assert not all_ranks.is_out_of_reach(peer)
    assert not asked()
    clock.now += ranks.SILENCE / 4
    assert not all_ranks.is_out_of_reach(peer)
    assert asked()
    clock.now += ranks.SILENCE * 0.9
    wire.tell(1, "exited", 77, 0)
    assert not all_ranks.is_out_of_reach(peer)
    wire.sent.clear()
    clock.now += ranks.SILENCE / 2
    assert not all_ranks.is_out_of_reach(peer)
    assert asked()
    clock.now += ranks.SILENCE * 1.1
    assert all_ranks.is_out_of_reach(peer)


def test_a_job_of_one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no other to step envs."""
    mpi = SimpleNamespace(COMM_WORLD=SimpleNamespace(Get_size=lambda: 1), COMM_NULL=None)
    monkeypatch.setattr(job, "was_launched", lambda: True)
    monkeypatch.setattr(job, "load_mpi", lambda: mpi)
    monkeypatch.setattr(job, "_known", [])
    monkeypatch.setattr(job, "_we_initialised", False)
    with pytest.raises(BackendUnavailable, match="mpirun"):
        job.worker_ranks()


def test_a_fork_of_rank_0_is_no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """At its end it leaves the job and MPI alone."""
    monkeypatch.setattr(job, "load_mpi", functools.partial(pytest.fail, "a fork has used MPI"))
    monkeypatch.setattr(job, "_pid", os.getpid() + 1)
    monkeypatch.setattr(job, "_ends", False)
    job._end_all()
    monkeypatch.setattr(job, "_pid", os.getpid())
    with pytest.raises(pytest.fail.Exception, match="used MPI"):  # rank 0 itself does
        job._end_all()


def test_an_overdue_process_is_asked_before_it_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM after the grace, SIGKILL after twice that; both, in this order, if nobody has looked meanwhile."""
    clock = Clock()
    monkeypatch.setattr(hosting, "time", clock)
    signals: list[str] = []
    hosted = object.__new__(HostedProcess)
    hosted.relay = SimpleNamespace(close=lambda: signals.append("hung up"))  # type: ignore[assignment]
    hosted._process = SimpleNamespace(  # type: ignore[assignment]
        terminate=lambda: signals.append("TERM"), kill=lambda: signals.append("KILL"), join=lambda _: None
    )
    hosted._ends = []
    hosted.enforce()
    for looks in ([0.9, 0.2, 0.8, 0.2], [2.5]):
        signals.clear()
        hosted.stop(1.0)
        after = []
        for seconds in looks:
            clock.now += seconds
            hosted.enforce()
            after.append(list(signals))
        if len(looks) > 1:
            assert after[:3] == [[], ["hung up", "TERM"], ["hung up", "TERM"]]
        assert after[-1] == ["hung up", "TERM", "KILL"]


def test_the_own_address_on_the_route_to_a_host() -> None:
    """Not that host's: all of 127.0.0.0/8 is this machine, which itself is 127.0.0.1 there."""
    assert address_towards("127.0.0.5") == "127.0.0.1"
