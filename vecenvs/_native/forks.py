"""Forks that an env's code makes. They end where they would leave that code, else each were a second worker.

A child that leaves `env.step` by `sys.exit` or an exception, as children in a plain loop may, would come back to a loop
that takes this for a failure of the env, writes rows and goes on with the commands that its parent gets, too.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

count = 0  # of the forks that lie between this process and the one that imported this


def _note() -> None:
    global count  # noqa: PLW0603
    count += 1


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_note)


def run(function: Callable[..., Any], *args: Any) -> Any:
    """Return what a function returns that runs the code of an env."""
    before = count
    try:
        result = function(*args)
    except BaseException as exc:
        leave(before, exc)
        raise
    leave(before, None)
    return result


def leave(before: int, exc: BaseException | None) -> None:
    """End this process if it was forked since `count` was `before`; `exc` is what has come out of the env's code."""
    if count != before:
        end(exc)


def end(exc: BaseException | None = None) -> NoReturn:
    """End this process, as Python would by `exc`, but without what is to be done at the end of its parent."""
    code = 0
    with contextlib.suppress(Exception):
        if isinstance(exc, SystemExit):
            code = exc.code if isinstance(exc.code, int) else int(exc.code is not None)
        elif exc is not None:
            code = 1
            traceback.print_exception(type(exc), exc, exc.__traceback__)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    os._exit(code & 0xFF)
