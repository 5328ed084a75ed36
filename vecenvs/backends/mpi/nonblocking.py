"""Sending and receiving bytes by MPI without ever blocking.

An MPI tag says what a message is about: CONTROL, or the number of the worker whose boot message it is.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

CONTROL = 0


class NonblockingComm:
    """One end of a private communicator. Use it from one thread.

    The handler of a signal may raise at any bytecode. So what an MPI call returns is recorded within one call into C
    (`list.extend` of a `map`), and the next call of a method goes on from there. A message that has arrived is kept
    until it is dropped or taken.
    """

    def __init__(self, mpi: Any, comm: Any, source: int) -> None:
        self._mpi = mpi
        self._comm = comm
        self._source = source
        self._incoming = _Incoming(mpi.Status(), [], [], [])
        self._unsent: deque[_Outgoing] = deque()

    @property
    def has_unsent(self) -> bool:
        """Whether a message is not sent yet."""
        return bool(self._unsent)

    def send(self, rank: int, tag: int, data: bytes | bytearray) -> None:
        """Send in order. Large messages go out while `first` is called."""
        self._unsent.append(_Outgoing(rank, tag, data, []))
        self.flush()

    def flush(self) -> None:
        """Begin to send what an exception has kept back, and forget the messages that have been sent."""
        for rank, tag, data, requests in list(self._unsent):
            if not requests:
                try:
                    requests.extend(map(self._comm.Isend, ([data, self._mpi.BYTE],), (rank,), (tag,)))
                except self._mpi.Exception:
                    self.drop_unsent(rank)  # it is gone
                    raise
        while self._unsent and self._unsent[0].requests[0].Test():
            self._unsent.popleft()

    def first(self) -> tuple[int, int, bytearray] | None:
        """Return the oldest message that has not been dropped or taken, as (rank, tag, data); None if there is none."""
        if self._unsent:
            self.flush()
        if self._incoming.received and not self._incoming.data:
            self.drop()  # it was taken
        if not self._probe() and not self._probe():
            return None  # Open MPI's first probe only takes in what the second one finds
        status, (message,), data, received = self._incoming
        if not data:
            data.append(bytearray(status.Get_count(self._mpi.BYTE)))
        if not received:
            try:
                received.extend(map(message.Recv, ([data[0], self._mpi.BYTE],)))
            except self._mpi.Exception:
                self.drop()  # its sender is gone
                raise
        return status.Get_source(), status.Get_tag(), data[0]

    def drop(self) -> None:
        """Forget the message that `first` returns: what it says has been recorded."""
        self._incoming = _Incoming(self._mpi.Status(), [], [], [])

    def take_into(self, inbox: deque[bytearray]) -> None:
        """Move the data of the message that `first` returns to the end of `inbox`."""
        inbox.extend(map(self._incoming.data.pop, (0,)))

    def _probe(self) -> bool:
        """Tell whether a message is matched, by a look for one if need be."""
        status, matched, _, _ = self._incoming
        if not matched:
            probes = map(self._comm.Improbe, (self._source,), (self._mpi.ANY_TAG,), (status,))
            matched.extend(filter(None, probes))
        return bool(matched)

    def drop_unsent(self, rank: int) -> None:
        """Give up the messages to a rank that is gone."""
        self._unsent = deque(item for item in self._unsent if item.rank != rank)


class _Incoming(NamedTuple):
    """A message that comes in. The lists have one item each as soon as it is matched, has a buffer, is received.

    A message that is received and has no data has been taken.
    """

    status: Any
    matched: list[Any]
    data: list[bytearray]
    received: list[None]


class _Outgoing(NamedTuple):
    """A message that goes out. It has a request once its sending has begun."""

    rank: int
    tag: int
    data: bytes | bytearray
    requests: list[Any]
