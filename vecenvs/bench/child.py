"""Fresh processes for what must not be disturbed by the benchmark's own heap and threads."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle

from vecenvs.bench.workloads import BadRequest
from vecenvs.worker.process import child_environment

_LISTENERS_GONE = (EOFError, BrokenPipeError, ConnectionResetError)


class Child:
    """A new interpreter that runs `serve(connection, *args)`, with one thread in BLAS and OpenMP, deaf to Ctrl-C.

    `serve` sends what it has to say; a string that it sends is an error.
    """

    def __init__(self, serve: Callable[..., None], *args: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        payload = cloudpickle.dumps((serve, args))
        default = multiprocessing.get_start_method(allow_none=True)
        self._process = context.Process(target=_main, args=(theirs, payload, default))
        try:
            with child_environment(), _ctrl_c_later():
                self._process.start()
        finally:
            theirs.close()  # so that its death shows as the end of the pipe

    def send(self, message: Any) -> None:
        """Tell it something."""
        self._connection.send(message)

    def receive(self) -> Any:
        """Wait for what it says. BadRequest if that is an error, or if the process has ended."""
        try:
            answer = self._connection.recv()
        except _LISTENERS_GONE:
            self._process.join(timeout=1.0)
            raise BadRequest(f"the env's process died (exit code {self._process.exitcode})") from None
        if isinstance(answer, str):
            raise BadRequest(answer)
        return answer

    def check(self) -> None:
        """Raise BadRequest if it says so, or has ended. Waits for nothing."""
        if self._connection.poll():
            self.receive()

    def close(self) -> None:
        """Close the pipe, at which it leaves; end it if it does not. Repeatable."""
        self._connection.close()
        self._process.join(timeout=1.0)
        if self._process.is_alive():
            self._process.terminate()
            self._process.join(timeout=1.0)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


@contextmanager
def _ctrl_c_later() -> Iterator[None]:
    """Hold Ctrl-C back, also from a child that starts meanwhile: it inherits that, before it runs any code of ours."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # starting with the first child, it would undo what follows
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _main(connection: Connection, payload: bytes, start_method: str | None) -> None:
    multiprocessing.set_start_method(start_method, force=True)  # else what it starts would be spawned as it is itself
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the caller's, who then closes the pipe
    serve, args = cloudpickle.loads(payload)
    try:
        serve(connection, *args)
    except _LISTENERS_GONE:
        return
