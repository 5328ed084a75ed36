"""The progress of a measurement: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.progress import Progress


class ProgressDisplay(Protocol):
    """What a measurement calls after each reading."""

    def advance(self, text: str, line: str = "", count: int = 1) -> None:
        """Count so many readings. A bar shows `text`; without a terminal, `line` is printed unless it is empty."""


@contextmanager
def progress(total: int, first: str = "starting the bare loops") -> Iterator[ProgressDisplay]:
    """Show the progress of `total` readings on stderr; `first` says what comes before the first one."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    except ImportError as error:
        raise ImportError("the progress bar needs rich: pip install rich") from error

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with _messages_held() as (terminal, messages):
        # The bar has no thread: a thread would take CPU from what is measured, and processes are forked meanwhile.
        bar = Progress(
            *columns,
            console=Console(file=terminal),
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,  # forked workers would inherit the redirection
            redirect_stderr=False,
        )
        with bar:
            shown = _Bar(bar, total, messages, first)
            try:
                yield shown
            finally:
                shown.print_messages()


@contextmanager
def _messages_held() -> Iterator[tuple[IO[str], IO[bytes]]]:
    """Let this process and those that it starts write to a file where they would write into the bar.

    Yields:
        The terminal behind stderr, and the file.
    """
    streams = [stream for stream in (sys.stdout, sys.stderr) if stream.isatty()]
    with tempfile.TemporaryFile("a+b") as messages:  # what is written goes to its end, wherever it is being read
        before = {stream: os.dup(stream.fileno()) for stream in streams}
        try:
            for stream in streams:
                stream.flush()
                os.dup2(messages.fileno(), stream.fileno())
            with open(before[sys.stderr], "w", encoding=sys.stderr.encoding, closefd=False) as terminal:
                yield terminal, messages
        finally:
            for stream, descriptor in before.items():
                stream.flush()
                os.dup2(descriptor, stream.fileno())
                os.close(descriptor)


class _Bar:
    def __init__(self, bar: Progress, total: int, messages: IO[bytes], first: str) -> None:
        self._bar, self._messages, self._printed = bar, messages, 0
        self._task = bar.add_task(first, total=total)
        bar.refresh()

    def advance(self, text: str, line: str = "", count: int = 1) -> None:
        self.print_messages()
        self._bar.update(self._task, advance=count, description=text, refresh=True)

    def print_messages(self) -> None:
        """Print above the bar what has been written meanwhile."""
        sys.stdout.flush()
        sys.stderr.flush()
        self._messages.seek(self._printed)
        found = self._messages.read()
        self._printed += len(found)
        if found:
            text = found.decode(errors="replace")
            self._bar.console.print(text.removesuffix("\n"), markup=False, highlight=False, soft_wrap=True)


class _Lines:
    def advance(self, text: str, line: str = "", count: int = 1) -> None:
        if line:
            sys.stderr.write(f"{line}\n")
