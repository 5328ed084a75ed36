"""The interface between a VecEnv and its workers: one `Transport` per worker carries commands and answers."""

from __future__ import annotations

import abc
from typing import Protocol

from vecenvs.batch.batch_columns import BatchColumns
from vecenvs.transport.pickling import dumps, loads
from vecenvs.transport.protocol import Message, safe_text

__all__ = ["Message", "Transport"]


class Gathers(Protocol):
    """What gathers the commands of several workers, to send them in one message."""

    def flush(self) -> None:
        """Send them."""


class Transport(abc.ABC):
    """The caller's end of one worker. Messages arrive in the order in which they were put.

    The handler of a signal (Ctrl-C) may raise at any bytecode of these methods. So a command may be put again, with the
    same number, and an answer stays until `take` confirms that it has been recorded.
    """

    # Whether SOME_ROWS releases the batch's `wake`; a wait for several workers polls the others.
    wakes = False
    # Whether commands cannot time out: the worker is still starting, or works only while it is waited for.
    untimed = False
    # Whether the worker has yet to be given a place to run in: its start has not begun, and cannot time out.
    unplaced = False
    # Whether the worker makes way for another one, which its backend has ready. That is no failure of its own.
    moving = False
    # What gathers this worker's commands with those of others, until its `flush`; None if `put` sends them.
    gathers: Gathers | None = None
    # Whether a fork of the caller has the worker, too: it is part of the caller's process.
    forks = False
    # Where the worker is, for errors, e.g. " on rank 2 of node7".
    where = ""
    # The number of the last command that is surely on its way.
    sent = -(2**62)

    @abc.abstractmethod
    def put(self, number: int, tag: int, body: object = None) -> None:
        """Send a command without waiting; set `sent` to its number when it is on its way.

        Args:
            number: the command's number. Numbers ascend. A command may be put again with its number: the worker carries
                it out once.
            tag: a `protocol.Command`.
            body: what belongs to the command.

        Raises:
            ConnectionError: the worker is gone.
        """

    def send_rest(self) -> bool:
        """Send commands for which there was no room. A waiting `get` does this, too.

        Returns:
            Whether some are left.
        """
        return False

    @abc.abstractmethod
    def get(self, timeout: float | None) -> Message | None:
        """Wait for an answer. Rows that it is about lie in the batch's columns.

        Args:
            timeout: the longest wait in seconds; None for no limit.

        Returns:
            The worker's oldest answer that has not been taken; None if there is none in time, or the worker is gone.
        """

    @abc.abstractmethod
    def take(self) -> None:
        """Remove the answer that `get` returns: it has been recorded."""

    def work(self) -> bool:
        """Where the caller itself carries out commands, carry out one.

        Returns:
            Whether there is an answer then.
        """
        return False

    @property
    def newest(self) -> Transport:
        """The transport that the backend made: the new worker's, where this stands for a replacement."""
        return self

    def watch(self) -> tuple[int, int] | None:
        """Return a descriptor and the events of `select.poll` on it that call for a `get`; None without one."""
        return None

    def is_on(self, cpu: int) -> bool:
        """Tell whether the worker runs on a CPU of the caller's machine.

        Args:
            cpu: the number of the CPU.

        Returns:
            True if it is known to run there.
        """
        return False

    def check_portable(self, what: str, value: object) -> None:
        """Check that a value can be sent to the worker.

        Args:
            what: the name of the value in the error.
            value: the value.

        Raises:
            TypeError: it cannot be pickled, or not be unpickled.
        """
        try:
            loads(dumps(value))
        except Exception as exc:  # whatever a foreign __reduce__ or __setstate__ raises
            text = f"{type(exc).__name__}: {safe_text(exc)}"
            raise TypeError(
                f"{what} cannot be pickled, or not be unpickled in another process ({text}): leave out what cannot, "
                "or use DummyVecEnv"
            ) from exc

    @abc.abstractmethod
    def attach(self, batch: BatchColumns) -> None:
        """Connect the worker, which has made its envs, to the columns.

        Args:
            batch: the columns.

        Raises:
            ConnectionError: the worker is gone.
            EOFError: the worker is gone.
        """

    @abc.abstractmethod
    def exit_status(self) -> tuple[bool, int | None]:
        """Return whether the worker is gone, and its exit code if known (negative: a signal)."""

    @abc.abstractmethod
    def stop(self, grace: float) -> None:
        """End the worker, by force if need be, and free what it held. May be called again.

        Args:
            grace: about how many seconds the worker has to end by itself.
        """
