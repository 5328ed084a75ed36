"""Report to the launcher, at once, which workers' connections end.

When a node is lost, a launcher may kill rank 0 within milliseconds, and not say why.
"""

from __future__ import annotations

import select
import threading

from vecenvs.backends.mpi import status_file


class DisconnectReporter:
    """A thread that sleeps until a connection ends. It starts with the first one, if a launcher reads its reports."""

    def __init__(self) -> None:
        self._texts: dict[int, tuple[int, str]] = {}
        self._epoll: select.epoll | None = None

    def watch(self, descriptor: int, number: int, text: str) -> None:
        """Watch the connection of worker `number`; `text` says where it is, and with which envs."""
        if not status_file.has_reader() or not hasattr(select, "epoll"):
            return
        status_file.note_placed(text)
        self._texts[descriptor] = number, f"{text}, is gone"
        if self._epoll is None:
            self._epoll = select.epoll()
            threading.Thread(target=self._run, args=(self._epoll,), name="vecenvs-disconnects", daemon=True).start()
        self._epoll.register(descriptor, select.EPOLLRDHUP | select.EPOLLONESHOT)

    def report(self, descriptor: int) -> None:
        """Report, once, that a connection has ended or counts as lost."""
        known = self._texts.pop(descriptor, None)
        if known is not None:
            status_file.note_hang_up(*known)

    def forget(self, descriptor: int) -> None:
        """Let a connection end without a report. Repeatable. (epoll itself forgets a descriptor that is closed.)."""
        self._texts.pop(descriptor, None)

    def _run(self, epoll: select.epoll) -> None:
        while True:
            for descriptor, _ in epoll.poll():
                self.report(descriptor)
