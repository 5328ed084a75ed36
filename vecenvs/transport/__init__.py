"""The seam between a pool and its workers: `Transport`, one per worker, and the ways to carry messages."""

from __future__ import annotations

import abc

from vecenvs.board import Board
from vecenvs.protocol import Message

__all__ = ["Message", "Transport"]


class Transport(abc.ABC):
    """The caller's end of one worker. Messages arrive in the order in which they were put.

    A backend supplies these five methods and has the whole VecEnv.
    """

    # Whether a ROW releases the board's `wake`; who waits for several workers polls the others.
    wakes = False
    # Whether commands are carried out by the caller, inside a `get` that may wait; `get(0)` only takes what is done.
    inline = False
    # Where the worker is, for errors, e.g. " on rank 2 of node7".
    where = ""

    @abc.abstractmethod
    def put(self, tag: int, body: object = None) -> None:
        """Send a command (see `protocol.Command`). Never waits for the worker to finish an earlier one."""

    @abc.abstractmethod
    def get(self, timeout: float | None) -> Message | None:
        """Take the worker's next answer, waiting up to `timeout` seconds; None if there is none yet.

        Once an answer about rows has been taken, they lie in the board's columns. Returns early, with None, if the
        worker is gone.
        """

    def sent(self) -> int | None:
        """Give a number that changes with every `put`; None if there is none.

        If a signal's handler raises within `put`, it tells whether the command has gone.
        """
        return None

    def watch(self) -> tuple[int, int] | None:
        """Give a descriptor, and the events of `select.poll` on it that call for a `get`; None if none ever tells."""
        return None

    def cpu(self) -> int | None:
        """Tell which CPU the worker is on if it may be the caller's as well; None if it is not, or nobody knows."""
        return None

    @abc.abstractmethod
    def attach(self, board: Board) -> None:
        """Connect the worker, which has made its envs, to the columns. Raises if it cannot be."""

    @abc.abstractmethod
    def exit_status(self) -> tuple[bool, int | None]:
        """Tell whether the worker is gone, and its exit code if known (negative: a signal)."""

    @abc.abstractmethod
    def stop(self, grace: float) -> None:
        """End the worker within about `grace` seconds, by force if need be, and free what it held. Repeatable."""
