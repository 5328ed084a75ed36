"""The interface between a VecEnv and its workers: one `Transport` per worker carries commands and answers."""

from __future__ import annotations

import abc
from typing import Any

from vecenvs.batch.batch_columns import BatchColumns
from vecenvs.transport.protocol import Message

__all__ = ["Message", "Transport"]


class Transport(abc.ABC):
    """The caller's end of one worker. Messages arrive in the order in which they were put.

    The handler of a signal (Ctrl-C) may raise at any bytecode of these methods. So a command may be put again, with the
    same number, and an answer stays until `take` confirms that it has been recorded.
    """

    # Whether SOME_ROWS releases the batch's `wake`; a wait for several workers polls the others.
    wakes = False
    # Whether its start and its commands cannot time out: it has no place to run in yet, takes the place of another
    # worker, or works only while it is waited for.
    untimed = False
    # Whether the worker makes way for another one, which its backend has ready. That is not a failure.
    moving = False
    # Whether the worker is part of the caller's process: no value for it is pickled. A fork has it, too, if `forks`.
    in_process = False
    forks = True
    # Where the worker is, for errors, e.g. " on rank 2 of node7".
    where = ""
    # A possible cause of its silence, for errors: text that is added.
    cause = ""

    @abc.abstractmethod
    def put(self, number: int, tag: int, body: object = None) -> None:
        """Send a command without waiting, or keep it for `send_rest`.

        Args:
            number: the command's number. Numbers ascend. A command may be put again with its number: the worker carries
                it out once.
            tag: a `protocol.Command`.
            body: what belongs to the command.

        Raises:
            ConnectionError: the worker is gone.
        """

    def send_rest(self) -> bool:
        """Send the commands that `put` has kept: for want of room, or for one message with those of other workers.

        Workers whose `watch` returns the same descriptor share their messages. A waiting `get` does this, too.

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

    def watch(self) -> tuple[int, int] | None:
        """Return a descriptor and the events of `select.poll` on it that call for a `get`; None without one."""
        return None

    def describe(self) -> dict[str, Any]:
        """Return what `stats` says of how the worker is reached: "transport", and what the engine adds."""
        return {"transport": "shared"}

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
