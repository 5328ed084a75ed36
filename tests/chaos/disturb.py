"""Disturbances from outside: Ctrl-C in the caller, signals to workers."""

from __future__ import annotations

import contextlib
import dis
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from bytecodes import BEGIN, runs_handlers

import vecenvs
from vecenvs.testing import leaks
from vecenvs.worker import process

TOKEN = "VECENVS_CHAOS"
PACKAGE = str(Path(vecenvs.__file__).parent) + os.sep
TESTING = PACKAGE + "testing" + os.sep
TEAMS = str(Path(__file__).with_name("teams.py"))

_undisturbed = 0  # blocks of `undisturbed` that run


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Hold Ctrl-C back from a block: of this program's own code between the library and the player."""
    global _undisturbed  # noqa: PLW0603
    _undisturbed += 1
    try:
        yield
    finally:
        _undisturbed -= 1


def inside(frame: FrameType | None) -> bool:
    """Tell whether the frame, or one of its callers, runs code of the library, and none of `teams` since."""
    while frame is not None and frame.f_code.co_filename != TEAMS and not _undisturbed:
        if frame.f_code.co_filename.startswith(PACKAGE) and not frame.f_code.co_filename.startswith(TESTING):
            return True
        frame = frame.f_back
    return False


def _age(pid: int) -> int:
    """Return the start time of a process in the system's ticks; 0 if it is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return 0


class Interrupter:
    """Raises KeyboardInterrupt during a call: after some seconds, or at the n-th place where a handler might run.

    These places are, as in CPython 3.11 and later, a function's beginning, what follows a call, and a jump back. With
    `anywhere` it is every bytecode.
    """

    def __init__(self, rng: random.Random, *, anywhere: bool = False) -> None:
        self.fired = 0
        self.where = ""
        self._rng = rng
        self._anywhere = anywhere
        self._armed = False
        self._pid = os.getpid()
        self._lengths: dict[str, int] = {}  # how many places calls of each kind have had at most
        self._left = self._count = 0
        self._last: dict[FrameType, str] = {}
        self._codes: dict[Any, bytes] = {}
        signal.signal(signal.SIGALRM, self._on_signal)

    def by_timer(self, call: Callable[[], Any], seconds: float) -> Any:
        """Call, and be interrupted after some seconds."""
        self._armed = True
        signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-6))
        try:
            return call()
        finally:
            self._armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)

    def by_place(self, kind: str, call: Callable[[], Any]) -> Any:
        """Call, and be interrupted at a place chosen at random."""
        most = self._lengths.get(kind, 400)
        self._left = self._rng.randint(1, most) if self._rng.random() < 0.7 else self._rng.randint(1, min(most, 60))
        self._count = 0
        self._last.clear()
        sys.settrace(self._on_call)
        try:
            return call()
        finally:
            sys.settrace(None)
            self._last.clear()  # frames keep what they know alive
            if self._left > 0 and self._count:
                self._lengths[kind] = (
                    max(20, self._count)
                    if kind not in self._lengths
                    else max(self._lengths[kind], min(self._count, 4000))
                )

    def _fire(self, frame: FrameType) -> None:
        self.fired += 1
        self._armed = False
        places = []
        at: FrameType | None = frame
        while at is not None and len(places) < 6:
            places.append(f"{Path(at.f_code.co_filename).name}:{at.f_lineno} {at.f_code.co_name}")
            at = at.f_back
        self.where = " < ".join(places)
        raise KeyboardInterrupt

    def _on_signal(self, _: int, frame: FrameType | None) -> None:
        if self._armed and os.getpid() == self._pid and inside(frame):
            assert frame is not None
            self._fire(frame)

    def _on_call(self, frame: FrameType, event: str, _: Any) -> Any:
        if os.getpid() != self._pid:
            sys.settrace(None)
            return None
        caller = frame.f_back
        if caller in self._last and frame.f_code.co_name != "__init__":  # a class is called by way of C
            self._last[caller] = ""  # it goes on without a look at signals
        name = frame.f_code.co_filename
        if not name.startswith(PACKAGE) or name.startswith(TESTING):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        self._last[frame] = BEGIN
        return self._on_opcode

    def _on_opcode(self, frame: FrameType, event: str, _: Any) -> Any:
        if event != "opcode":
            if event == "return":
                self._last.pop(frame, None)
            return self._on_opcode
        code = frame.f_code
        if code not in self._codes:
            self._codes[code] = code.co_code
        before = self._last.get(frame, "")
        self._last[frame] = dis.opname[self._codes[code][frame.f_lasti]]
        if _undisturbed or process._handlers:  # signals are held back
            return self._on_opcode
        if self._anywhere or runs_handlers(before):
            self._count += 1
            self._left -= 1
            if self._left == 0 and os.getpid() == self._pid:
                self._fire(frame)
        return self._on_opcode


class Disturber:
    """Sends signals to worker processes, later, from a thread."""

    def __init__(self, token: str) -> None:
        self.kills = self.stops = 0
        self._token = f"{TOKEN}={token}".encode()
        self._threads: list[threading.Thread] = []
        self._over = threading.Event()
        self._last = 0.0  # when a signal was sent
        self.killed: set[int] = set()  # the processes that were sent SIGKILL

    def kill(self, pid: int, after: float) -> None:
        """Send SIGKILL after some seconds."""
        self._start(self._kill, pid, after)

    def kill_newest(self, after: float) -> None:
        """Send SIGKILL, after some seconds, to the child of this process that is the youngest by then."""
        self._start(self._kill_newest, after)

    def stop(self, pid: int, after: float, seconds: float) -> None:
        """Send SIGSTOP after some seconds, and SIGCONT some seconds after that."""
        self._start(self._stop, pid, after, seconds)

    def idle(self) -> bool:
        """Tell whether all signals were sent long enough ago to have taken effect."""
        self._threads = [each for each in self._threads if each.is_alive()]
        return not self._threads and time.monotonic() - self._last > 0.5

    def finish(self) -> None:
        """Wait until all signals are sent and every stopped process continues."""
        self._over.set()
        while self._threads:
            self._threads.pop().join()

    def _start(self, work: Callable[..., None], *args: Any) -> None:
        self.idle()
        self._threads.append(threading.Thread(target=work, args=args, daemon=True))
        self._threads[-1].start()

    def _kill(self, pid: int, after: float) -> None:
        time.sleep(after)
        self.kills += self._send(pid, signal.SIGKILL)

    def _kill_newest(self, after: float) -> None:
        time.sleep(after)
        children = leaks.child_processes()
        if children:
            self.kills += self._send(max(children, key=_age), signal.SIGKILL)

    def _stop(self, pid: int, after: float, seconds: float) -> None:
        time.sleep(after)
        if self._send(pid, signal.SIGSTOP):
            self.stops += 1
            self._over.wait(seconds)
            self._send(pid, signal.SIGCONT)

    def _send(self, pid: int, number: int) -> bool:
        """Send a signal, if that process is one of this run."""
        try:
            if pid == os.getpid() or self._token not in Path(f"/proc/{pid}/environ").read_bytes():
                return False
            self._last = time.monotonic()
            os.kill(pid, number)
            if number == signal.SIGKILL:
                self.killed.add(pid)
        except (OSError, ValueError):
            return False
        return True
