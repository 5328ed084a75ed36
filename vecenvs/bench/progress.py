"""The progress of a measurement: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.progress import Progress


class ProgressDisplay(Protocol):
    """What a measurement calls after each reading."""

    def advance(self, text: str, line: str = "") -> None:
        """Count one reading. A bar shows `text`; without a terminal, `line` is printed unless it is empty."""


@contextmanager
def progress(total: int) -> Iterator[ProgressDisplay]:
    """Show the progress of `total` readings on stderr."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # The bar has no thread: a thread would take CPU from what is measured, and processes are forked meanwhile.
    bar = Progress(
        *columns,
        console=Console(stderr=True),
        auto_refresh=False,
        transient=True,
        redirect_stdout=False,  # forked workers would inherit the redirection
        redirect_stderr=False,
    )
    with bar:
        yield _Bar(bar, total)


class _Bar:
    def __init__(self, bar: Progress, total: int) -> None:
        self._bar = bar
        self._task = bar.add_task("starting the bare loops", total=total)
        bar.refresh()

    def advance(self, text: str, line: str = "") -> None:
        self._bar.update(self._task, advance=1, description=text, refresh=True)


class _Lines:
    def advance(self, text: str, line: str = "") -> None:
        if line:
            sys.stderr.write(f"{line}\n")
