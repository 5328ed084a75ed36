"""Processes of this machine that are not children: wait for their end (Linux), return the exit code (Linux 6.15)."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import struct

# From linux/pidfd.h: struct pidfd_info, version 0, and the request that fills it.
_SIZE = 64
_EXIT = 1 << 3  # mask: ask for, and then confirm, the exit code
_GET_INFO = (3 << 30) | (_SIZE << 16) | (0xFF << 8) | 11


class ForeignProcess:
    """A process of this machine, watched from now on."""

    def __init__(self, pid: int) -> None:
        try:
            self._fd = os.pidfd_open(pid)
        except (AttributeError, OSError):  # not Linux, or gone already
            self._fd = -1

    def exit_code(self) -> int | None:
        """Return its exit code as in `subprocess`, negative for a signal; None while it runs, or if it is unknown."""
        if self._fd < 0:
            return None
        import fcntl  # not on Windows, where this module can be imported all the same

        info = bytearray(_SIZE)
        struct.pack_into("=Q", info, 0, _EXIT)
        try:
            fcntl.ioctl(self._fd, _GET_INFO, info)
        except OSError:
            return None
        mask, code = struct.unpack_from("=Q", info, 0)[0], struct.unpack_from("=i", info, _SIZE - 4)[0]
        return os.waitstatus_to_exitcode(code) if mask & _EXIT else None

    def wait(self, seconds: float) -> bool:
        """Wait for its end; tell whether it has come. True at once where it cannot be watched."""
        if self._fd < 0:
            return True
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        return bool(poll.poll(1000 * max(seconds, 0.0)))

    def kill(self) -> None:
        """Send it SIGKILL, which cannot reach another process that has the same number by now."""
        if self._fd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._fd, signal.SIGKILL)

    def close(self) -> None:
        """Watch no longer. Repeatable."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
