"""The seam between a pool and its workers: `Transport`, one per worker, and the ways to carry messages."""

from __future__ import annotations

import abc

from vecenvs.batch.batch_columns import BatchColumns
from vecenvs.transport.protocol import Message

__all__ = ["Message", "Transport"]


class Transport(abc.ABC):
    """The caller's end of one worker. Messages arrive in the order in which they were put.

    The handler of a signal (Ctrl-C) may raise at any bytecode of these methods. So a command may be put again, with the
    same number, and an answer stays until `take` says that it has been noted.
    """

    # Whether a ROW releases the batch's `wake`; the others are polled by a wait for several workers.
    wakes = False
    # Whether commands are carried out by the caller, inside a `get` that may wait; `get(0)` only takes what is done.
    inline = False
    # Whether this stands for a worker that is still being started: its commands cannot time out.
    starting = False
    # Whether the worker has yet to be given a place to run in: until then its start has not begun, and cannot be late.
    unplaced = False
    # Where the worker is, for errors, e.g. " on rank 2 of node7".
    where = ""
    # The number of the last command that is surely on its way.
    sent = -(2**62)

    @abc.abstractmethod
    def put(self, number: int, tag: int, body: object = None) -> None:
        """Send a command (see `protocol.Command`) without waiting; set `sent` to its number when it is on its way.

        Numbers ascend. One that has been put before may be put again: the worker carries it out once. ConnectionError
        if the worker is gone.
        """

    def send_rest(self) -> bool:
        """Send on what there was no room for; return whether some of it is left. `get` does so, too, while it waits."""
        return False

    @abc.abstractmethod
    def get(self, timeout: float | None) -> Message | None:
        """Return the worker's oldest answer that has not been taken, waiting up to `timeout` seconds; None without one.

        Rows that an answer is about lie in the batch's columns. Returns early, with None, if the worker is gone.
        """

    @abc.abstractmethod
    def take(self) -> None:
        """Forget the answer that `get` returns: it has been noted."""

    @property
    def newest(self) -> Transport:
        """The transport as the backend made it: of the worker that is on its way, where this stands for one."""
        return self

    def watch(self) -> tuple[int, int] | None:
        """Return a descriptor and the events of `select.poll` on it that call for a `get`; None if there is none."""
        return None

    def cpu(self) -> int | None:
        """Return the CPU that the worker is on if it may be the caller's as well; None otherwise, or if unknown."""
        return None

    @abc.abstractmethod
    def attach(self, batch: BatchColumns) -> None:
        """Connect the worker, which has made its envs, to the columns. ConnectionError or EOFError if it is gone."""

    @abc.abstractmethod
    def exit_status(self) -> tuple[bool, int | None]:
        """Return whether the worker is gone, and its exit code if known (negative: a signal)."""

    @abc.abstractmethod
    def stop(self, grace: float) -> None:
        """End the worker within about `grace` seconds, by force if need be, and free what it held. Repeatable."""
