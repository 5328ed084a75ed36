"""Output that nobody reads to its end, as with `| head -1`: what a command does must not depend on it."""

from __future__ import annotations

import contextlib
import io
import os
import stat
import sys
from collections.abc import Iterator
from typing import Any, TextIO


@contextlib.contextmanager
def readers_may_leave() -> Iterator[None]:
    """Within this, what is written to stdout or stderr after their reader has gone is dropped.

    So a command writes its files and gives its exit code all the same. At the end everything is flushed: the
    interpreter, which would complain, finds nothing left to write.
    """
    with contextlib.ExitStack() as stack:
        for stream, redirect in ((sys.stdout, contextlib.redirect_stdout), (sys.stderr, contextlib.redirect_stderr)):
            if _is_pipe(stream):
                stream.flush()
                patient = _patient(stream)
                stack.callback(patient.flush)
                stack.enter_context(redirect(patient))
        yield


class _Pipe(io.FileIO):
    """The writing end of a pipe, which leads nowhere once nobody reads from it."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return len(data)


def _patient(stream: TextIO) -> TextIO:
    """Give another file object for the same descriptor."""
    return io.TextIOWrapper(
        io.BufferedWriter(_Pipe(stream.fileno(), "w", closefd=False)),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=bool(stream.line_buffering),
        write_through=bool(getattr(stream, "write_through", False)),
    )


def _is_pipe(stream: TextIO | None) -> bool:
    try:
        mode = os.fstat(stream.fileno()).st_mode if stream is not None else 0
    except (OSError, ValueError):  # a stream of its own, without a descriptor
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
