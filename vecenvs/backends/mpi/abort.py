"""End a whole job from one of its ranks, once the launcher has read why."""

from __future__ import annotations

import array
import os
import stat
import sys
import time
from typing import Any, NoReturn

PATIENCE = 1.0  # seconds for the launcher to read what this rank has written
REST = 1e-3


def flush() -> None:
    """Write what this rank has printed so far."""
    sys.stdout.flush()
    sys.stderr.flush()


def abort(comm: Any, code: int = 1) -> NoReturn:
    """End the job of this communicator with this exit code, once the launcher has read what this rank has printed.

    If a launcher hears of the end first, it closes the pipes with the message in them (MPICH's, one time in sixty).
    """
    flush()
    deadline = time.monotonic() + PATIENCE
    while (_unread(1) or _unread(2)) and time.monotonic() < deadline:
        time.sleep(REST)
    comm.Abort(code)
    os._exit(code)


def _unread(descriptor: int) -> int:
    """Count the unread bytes in a pipe; 0 if the descriptor is not a pipe."""
    import fcntl  # not on Windows, where this module can be imported all the same
    import termios

    try:
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            return 0
        count = array.array("i", [0])
        fcntl.ioctl(descriptor, termios.FIONREAD, count)
        return count[0]
    except OSError:  # closed
        return 0
