"""The ranks of a communicator: on which nodes they are, and which of them can open rank 0's memory."""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path
from typing import Any, NamedTuple

from vecenvs.backends.mpi.polling import wait_for
from vecenvs.cpus import allowed_cpus
from vecenvs.errors import VecEnvError
from vecenvs.transport.memory import Address, Segment, open_segment

ARRIVAL_TIMEOUT = 120.0  # seconds for all ranks to reach their first MpiVecEnv


class Peer(NamedTuple):
    """A worker rank, by its number in the communicator."""

    rank: int
    host: str
    pid: int
    node: int  # the lowest rank of its node, as MPI says; 0 is that of rank 0
    shares: bool  # whether rank 0's memory and semaphores can be opened there
    cpus: frozenset[int]  # those it may run on, by their host's numbers

    @property
    def same_node(self) -> bool:
        """Whether it is on rank 0's node."""
        return self.node == 0

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.host} (pid {self.pid})"


class Probe(NamedTuple):
    """A segment with a known content, for the other ranks to try, and where rank 0's semaphores are.

    No semaphore is tried: its name would be left behind if rank 0 were killed meanwhile.
    """

    segment: Address
    semaphores: tuple[int, int] | None
    token: bytes
    pid: int  # rank 0's process


def private_copy(mpi: Any, comm: Any, patience: float) -> tuple[Any, int]:
    """Duplicate `comm`, so that our messages never meet the user's; return the lowest rank of this node, too.

    Collective over `comm`. Nodes are what MPI says (its split by shared memory).

    Raises:
        VecEnvError: not all ranks have come here within `patience` seconds.
    """
    private, request = comm.Idup()
    if not wait_for(request.Test, patience):
        raise VecEnvError(
            f"not all {comm.Get_size()} ranks reached their first MpiVecEnv within {patience:g} s. Every rank "
            "of its communicator must construct it (the worker ranks serve from there on), or none but rank 0 may run "
            "the script: python -m vecenvs.mpi train.py"
        )
    node = private.Split_type(mpi.COMM_TYPE_SHARED, private.Get_rank())
    (lowest,) = mpi.Group.Translate_ranks(node.Get_group(), [0], private.Get_group())
    node.Free()
    return private, int(lowest)


class ProbeTarget:
    """Rank 0's side of a `Probe`."""

    def __init__(self) -> None:
        self._segment = Segment(64)
        token = secrets.token_bytes(16)
        self._segment.buffer[:16] = token
        self.probe = Probe(self._segment.address, _place_of_semaphores(), token, os.getpid())

    def forget(self) -> None:
        """Free what the other ranks have tried."""
        self._segment.forget()


def describe_self(rank: int, node: int, probe: Probe) -> Peer:
    """Describe this rank; try the probe if MPI says that rank 0 is on this node."""
    shares = node == 0 and _can_open(probe)
    return Peer(rank, socket.gethostname(), os.getpid(), node, shares, frozenset(allowed_cpus()))


def _can_open(probe: Probe) -> bool:
    """Tell whether the probe can be opened: containers and users may share a node without sharing /proc or /dev/shm."""
    try:
        return bytes(open_segment(probe.segment)[:16]) == probe.token and _place_of_semaphores() == probe.semaphores
    except (OSError, ValueError):
        return False


def _place_of_semaphores() -> tuple[int, int] | None:
    """Return what processes that can open the same semaphores by name have in common: on Linux these are files."""
    try:
        found = os.stat("/dev/shm")
    except OSError:  # another system
        return None
    return found.st_dev, found.st_ino


def is_running(pid: int) -> bool:
    """Tell whether a process of this host runs. One that has ended and was not waited for does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        try:
            os.kill(pid, 0)
        except OSError:
            return False
        return not Path("/proc/self").exists()
    return state not in "ZX"
