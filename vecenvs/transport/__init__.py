"""The interface between a VecEnv and its workers: one `Transport` per worker carries commands and answers."""

from __future__ import annotations

import abc

from vecenvs.batch.batch_columns import BatchColumns
from vecenvs.transport.protocol import Message, dumps, loads, safe_text

__all__ = ["Message", "Transport"]


class Transport(abc.ABC):
    """The caller's end of one worker. Messages arrive in the order in which they were put.

    The handler of a signal (Ctrl-C) may raise at any bytecode of these methods. So a command may be put again, with the
    same number, and an answer stays until `take` confirms that it has been recorded.
    """

    # Whether a ROW releases the batch's `wake`; a wait for several workers polls the others.
    wakes = False
    # Whether commands cannot time out: the worker is still starting, or works only while it is waited for.
    untimed = False
    # Whether the worker has yet to be given a place to run in: its start has not begun, and cannot time out.
    unplaced = False
    # Whether a fork of the caller has the worker, too: it is part of the caller's process.
    forks = False
    # Where the worker is, for errors, e.g. " on rank 2 of node7".
    where = ""
    # The number of the last command that is surely on its way.
    sent = -(2**62)

    @abc.abstractmethod
    def put(self, number: int, tag: int, body: object = None) -> None:
        """Send a command (see `protocol.Command`) without waiting; set `sent` to its number when it is on its way.

        Numbers ascend. A command may be put again with its number: the worker carries it out once. Raise
        ConnectionError if the worker is gone.
        """

    def send_rest(self) -> bool:
        """Send commands for which there was no room; return whether some are left. A waiting `get` does this, too."""
        return False

    @abc.abstractmethod
    def get(self, timeout: float | None) -> Message | None:
        """Return the worker's oldest answer that has not been taken, waiting up to `timeout` seconds; None without one.

        Rows that an answer is about lie in the batch's columns. Returns early, with None, if the worker is gone.
        """

    @abc.abstractmethod
    def take(self) -> None:
        """Remove the answer that `get` returns: it has been recorded."""

    def work(self) -> bool:
        """Where the caller itself carries out commands, carry out one; return whether there is an answer then."""
        return False

    @property
    def newest(self) -> Transport:
        """The transport that the backend made: the new worker's, where this stands for a replacement."""
        return self

    def watch(self) -> tuple[int, int] | None:
        """Return a descriptor and the events of `select.poll` on it that call for a `get`; None if there is none."""
        return None

    def is_on(self, cpu: int) -> bool:
        """Return whether the worker runs on this CPU of the caller's machine, as far as is known."""
        return False

    def check_portable(self, what: str, value: object) -> None:
        """Raise TypeError if `value` cannot be sent to the worker, calling it `what`."""
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
        """Connect the worker, which has made its envs, to the columns. ConnectionError or EOFError if it is gone."""

    @abc.abstractmethod
    def exit_status(self) -> tuple[bool, int | None]:
        """Return whether the worker is gone, and its exit code if known (negative: a signal)."""

    @abc.abstractmethod
    def stop(self, grace: float) -> None:
        """End the worker within about `grace` seconds, by force if need be, and free what it held. Repeatable."""
