"""Fresh processes, which the heap and the threads of the benchmark do not disturb."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle

from vecenvs.bench.workloads import BadRequest
from vecenvs.worker.process import child_environment, take_signals

_PIPE_CLOSED = (EOFError, BrokenPipeError, ConnectionResetError)


class Child:
    """A new interpreter that runs `serve(connection, *args)`, with one thread in BLAS and OpenMP. It ignores Ctrl-C.

    What `serve` sends is the answer of `receive`; a string is an error message.
    """

    def __init__(self, serve: Callable[..., None], *args: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        payload = cloudpickle.dumps((serve, args))
        default = multiprocessing.get_start_method(allow_none=True)
        self._process = context.Process(target=_main, args=(theirs, payload, default))
        try:
            with child_environment():
                self._process.start()
        finally:
            theirs.close()  # so that the end of the process is the end of the pipe

    def send(self, message: Any) -> None:
        """Send a message to the process."""
        self._connection.send(message)

    def receive(self) -> Any:
        """Wait for an answer. Raise BadRequest if it is an error message, or if the process has ended."""
        try:
            answer = self._connection.recv()
        except _PIPE_CLOSED:
            self._process.join(timeout=1.0)
            raise BadRequest(f"the env's process died (exit code {self._process.exitcode})") from None
        if isinstance(answer, str):
            raise BadRequest(answer)
        return answer

    def check(self) -> None:
        """Raise BadRequest if there is an error message, or if the process has ended. Do not wait."""
        if self._connection.poll():
            self.receive()

    def close(self) -> None:
        """Close the pipe, which ends `serve`; end the process if it goes on. It may be called again."""
        self._connection.close()
        self._process.join(timeout=1.0)
        if self._process.is_alive():
            self._process.terminate()
            self._process.join(timeout=1.0)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _main(connection: Connection, payload: bytes, start_method: str | None) -> None:
    multiprocessing.set_start_method(start_method, force=True)  # or else its own children would be spawned, too
    take_signals()  # which then closes the pipe
    serve, args = cloudpickle.loads(payload)
    try:
        serve(connection, *args)
    except _PIPE_CLOSED:
        return
