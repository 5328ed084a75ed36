"""Output to a pipe whose reader leaves early, as with `| head -1`: it must not change what a command does."""

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
    """Drop what is written to stdout or stderr after the reader has closed its end.

    So a command still writes its files and returns its exit code. At the end everything is flushed, so that the
    interpreter has nothing left to write, which would fail.
    """
    with contextlib.ExitStack() as stack:
        for stream, redirect in ((sys.stdout, contextlib.redirect_stdout), (sys.stderr, contextlib.redirect_stderr)):
            if _is_pipe(stream):
                stream.flush()
                robust = _robust(stream)
                stack.callback(robust.flush)
                stack.enter_context(redirect(robust))
        yield


class _Pipe(io.FileIO):
    """The writing end of a pipe. It leads to the null device once the reading end is closed."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return len(data)


def _robust(stream: TextIO) -> TextIO:
    """Return another file object for the same descriptor, which writes through a `_Pipe`."""
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
    except (OSError, ValueError):  # a stream without a descriptor
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
