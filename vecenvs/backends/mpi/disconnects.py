"""Report to the launcher, at once, which workers' connections end.

When a node is lost, a launcher may kill rank 0 within milliseconds, and not say why.
"""

from __future__ import annotations

import contextlib
import select
import threading

from vecenvs.backends.mpi import status_file


class DisconnectReporter:
    """A thread that sleeps until a connection ends. It starts with the first one, if a launcher reads its reports."""

    def __init__(self) -> None:
        self._texts: dict[int, dict[int, str]] = {}  # by descriptor and worker
        self._epoll: select.epoll | None = None

    def watch(self, descriptor: int, number: int, text: str) -> None:
        """Watch the connection of worker `number`; `text` says where it is, and with which envs."""
        if not status_file.has_reader() or not hasattr(select, "epoll"):
            return
        status_file.note_placed(text)
        self._texts.setdefault(descriptor, {})[number] = f"{text}, is gone"
        if self._epoll is None:
            self._epoll = select.epoll()
            threading.Thread(target=self._run, args=(self._epoll,), name="vecenvs-disconnects", daemon=True).start()
        with contextlib.suppress(FileExistsError):  # that of a leader, whose workers share it
            self._epoll.register(descriptor, select.EPOLLRDHUP | select.EPOLLONESHOT)

    def report(self, descriptor: int, number: int) -> None:
        """Report, once, that the connection of a worker has ended or counts as lost."""
        text = self._texts.get(descriptor, {}).pop(number, None)
        if text is not None:
            status_file.note_hang_up(number, text)

    def forget(self, descriptor: int, number: int) -> None:
        """Let the connection of a worker end without a report. Repeatable. (epoll forgets a closed descriptor.)."""
        self._texts.get(descriptor, {}).pop(number, None)

    def _run(self, epoll: select.epoll) -> None:
        while True:
            for descriptor, _ in epoll.poll():
                for number in list(self._texts.get(descriptor, ())):
                    self.report(descriptor, number)
