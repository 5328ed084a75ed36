"""Sending and receiving bytes by MPI without ever blocking.

An MPI tag says what a message is about: CONTROL, or the number of the worker whose boot message it is.
"""

from __future__ import annotations

from collections import deque
from typing import Any

CONTROL = 0


class NonblockingComm:
    """One end of a private communicator. Use it from one thread."""

    def __init__(self, mpi: Any, comm: Any, source: int) -> None:
        self._mpi = mpi
        self._comm = comm
        self._source = source
        self._status = mpi.Status()
        self._unsent: deque[tuple[Any, int, bytes | bytearray]] = deque()

    @property
    def has_unsent(self) -> bool:
        """Whether a message is not sent yet."""
        return bool(self._unsent)

    def send(self, rank: int, tag: int, data: bytes | bytearray) -> None:
        """Send in order. Large messages go out while `receive` is called."""
        request = self._comm.Isend([data, self._mpi.BYTE], dest=rank, tag=tag)
        self._unsent.append((request, rank, data))
        self.flush()

    def flush(self) -> None:
        """Forget the messages that have been sent."""
        while self._unsent and self._unsent[0][0].Test():
            self._unsent.popleft()

    def receive(self) -> tuple[int, int, bytearray] | None:
        """Return a message that has arrived, as (rank, tag, data); None if there is none."""
        if self._unsent:
            self.flush()
        message = self._probe() or self._probe()  # Open MPI's first probe only takes in what the second one finds
        if message is None:
            return None
        status = self._status
        data = bytearray(status.Get_count(self._mpi.BYTE))
        rank, tag = status.Get_source(), status.Get_tag()
        message.Recv([data, self._mpi.BYTE])
        return rank, tag, data

    def _probe(self) -> Any:
        return self._comm.Improbe(self._source, self._mpi.ANY_TAG, self._status)

    def drop_unsent(self, rank: int) -> None:
        """Give up the messages to a rank that is gone."""
        self._unsent = deque(item for item in self._unsent if item[1] != rank)
