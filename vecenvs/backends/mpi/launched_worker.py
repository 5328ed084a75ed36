"""A worker that a rank hosts, as rank 0 knows it."""

from __future__ import annotations

import contextlib
import select
from collections import deque
from typing import TYPE_CHECKING

from vecenvs.backends.mpi import status_file
from vecenvs.backends.mpi.nodes import Peer
from vecenvs.backends.mpi.polling import wait_for
from vecenvs.errors import describe_indices

if TYPE_CHECKING:
    from vecenvs.backends.mpi.ranks import WorkerRanks

STOP_MARGIN = 2.0  # seconds beyond what a stop may take by its own rules


class LaunchedWorker:
    """A worker on a rank, as rank 0 knows it: its boot messages, and whether it lives."""

    def __init__(self, ranks: WorkerRanks, number: int, peer: Peer, slots: range) -> None:
        self.ranks = ranks
        self.number = number
        self.peer = peer
        self.slots = slots
        self.where = f" on rank {peer.rank} of {peer.host}"
        self.inbox: deque[bytearray] = deque()
        self.gone = False
        self.exitcode: int | None = None
        self._stopped = False
        self._connection: int | None = None  # the descriptor of its connection to rank 0, while that is to last

    def note_connected(self, descriptor: int) -> None:
        """Note that the worker, on another host, has a connection; the launcher hears of it."""
        self._connection = descriptor
        status_file.note_worker(self.number, f"{self.peer}, with envs {describe_indices(self.slots)}")

    def check_connection(self) -> None:
        """Tell the launcher if the connection has ended unasked."""
        if self._connection is not None:
            poll = select.poll()
            poll.register(self._connection, getattr(select, "POLLRDHUP", 0))  # POLLHUP in any case
            if poll.poll(0):
                self.note_lost()

    def note_lost(self) -> None:
        """Tell the launcher that the connection has ended unasked, or counts as lost."""
        self._connection = None
        status_file.note_lost(self.number)

    def expect_disconnect(self) -> None:
        """Let the connection end from now on: the worker is told to close."""
        self.check_connection()
        if self._connection is not None:
            self._connection = None
            status_file.forget_worker(self.number)

    def send(self, data: bytes) -> None:
        """Send to the worker, in order; BrokenPipeError if it is gone."""
        if self.gone:
            raise BrokenPipeError(f"the worker on {self.peer} is gone")
        self.ranks.send(self.peer.rank, self.number, data)

    def receive(self, timeout: float | None) -> bytearray | None:
        """Return its next message, waiting up to `timeout` seconds; None if there is none, early if it is gone."""
        if not self.inbox:
            wait_for(self._heard, timeout)
        return self.inbox.popleft() if self.inbox else None

    def _heard(self) -> bool:
        self.ranks.poll()
        return bool(self.inbox) or self.gone

    def exit_status(self) -> tuple[bool, int | None]:
        """Return whether the worker is gone, and its exit code if known."""
        self.ranks.poll()
        self.ranks.check_process(self.peer)
        return self.gone, self.exitcode

    def stop(self, grace: float) -> None:
        """End the worker's process, and wait until it has ended. Repeatable."""
        if self._stopped:
            return
        self.expect_disconnect()
        if not self.gone:
            grace = max(grace, 0.1)
            with contextlib.suppress(BrokenPipeError):
                self.ranks.control(self.peer.rank, "stop", self.number, grace)
            self.ranks.ping([self.peer])
            wait_for(
                lambda: self.exit_status()[0] or self.ranks.is_silent(self.peer, STOP_MARGIN), 2 * grace + STOP_MARGIN
            )
        self.ranks.forget(self)
        self._stopped = True
