"""Run mpirun as a child, for jobs on several nodes: mpirun does not always notice, or report, the loss of a node.

mpirun is ended in bounded time after rank 0, even if it cannot reach a node any more. Its exit code 0 counts only
together with rank 0's word that the script has ended without an error.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from vecenvs.backends.mpi import status_file
from vecenvs.backends.mpi.nodes import is_running

LOOK = 1.0  # seconds between looks at rank 0
END_PATIENCE = 15.0  # seconds for mpirun to end after rank 0,
SHORT_PATIENCE = 3.0  # and where that has been unable to end the job in order
KILL_PATIENCE = 2.0  # seconds between SIGTERM and SIGKILL
MOMENT = 10.0  # seconds: workers that have ended so shortly before mpirun have ended with their node
LAST_WORDS = 5.0  # seconds for rank 0 to end after mpirun
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_PR_SET_PDEATHSIG = 1


class Supervisor:
    """Runs one mpirun. `alone`: the script runs on rank 0 only, so the job ends with it."""

    def __init__(self, *, alone: bool) -> None:
        self._alone = alone
        self._signalled = False
        folder = tempfile.mkdtemp(prefix="vecenvs-mpi-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        self.status = Path(folder) / "status"  # for rank 0 to write to
        self.status.touch()

    def run(self, line: Sequence[str], environ: Mapping[str, str]) -> int:
        """Run the command line; return the exit code of the job, once the reports of rank 0 have been printed."""
        die_with_this = partial(_die_with, os.getpid(), _prctl())
        child = subprocess.Popen(line, env=environ, close_fds=False, preexec_fn=die_with_this)  # noqa: PLW1509  no thread yet
        ended = threading.Event()
        threading.Thread(target=_await, args=(child, ended), daemon=True).start()
        with self._forwarding_signals(child):
            forced = self._wait(child, ended)
        return self._verdict(child.returncode, forced=forced)

    def _wait(self, child: subprocess.Popen[bytes], ended: threading.Event) -> bool:
        """Wait for the end of mpirun. End it, and return True, if it goes on for long after rank 0."""
        since: float | None = None
        while not ended.wait(LOOK):
            status = status_file.read(self.status)
            if not self._alone or status.pid is None or (is_running(status.pid) and not status.ending):
                continue
            since = since or time.monotonic()
            patience = SHORT_PATIENCE if status.incomplete else END_PATIENCE
            if time.monotonic() - since > patience:
                _tell(f"mpirun has not ended {patience:g} s after rank 0 (a node that it cannot reach?): ending it")
                agents = _children(child.pid)  # ssh to a node that is silent would hold this job's output open
                child.terminate()
                if not ended.wait(KILL_PATIENCE):
                    agents += _children(child.pid)  # also those that it has started since
                    child.kill()
                    ended.wait()
                for agent in agents:
                    with contextlib.suppress(OSError):  # it has ended
                        signal.pidfd_send_signal(agent, signal.SIGKILL)
                    os.close(agent)
                return True
        return False

    @contextlib.contextmanager
    def _forwarding_signals(self, child: subprocess.Popen[bytes]) -> Iterator[None]:
        """Pass signals on to mpirun, within this block; but not a Ctrl-C, which a terminal sends to it as well."""

        def forward(number: int, _: object) -> None:
            self._signalled = True
            if number == signal.SIGINT and _in_foreground():  # a second one would have mpirun end without order
                return
            child.send_signal(number)

        before = {number: signal.getsignal(number) for number in _FORWARDED}
        for number, handler in before.items():
            if handler != signal.SIG_IGN:  # by nohup, say
                signal.signal(number, forward)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _verdict(self, code: int, *, forced: bool) -> int:
        code = 1 if forced else 128 - code if code < 0 else code
        ended = time.monotonic()
        deadline = ended + LAST_WORDS
        while (status := status_file.read(self.status)).pid is not None and not status.succeeded:
            if not is_running(status.pid) or time.monotonic() > deadline:
                break
            time.sleep(0.05)
        status = status_file.read(self.status)
        if status.pid is None:  # rank 0 is on another host than this
            return code
        if status.succeeded:
            return 0 if self._alone and (forced or status.incomplete) else code
        if not self._signalled:  # else they are gone because they were told to end
            in_order = code != 0 and (status.ending or status.incomplete)
            lost = status.lost if in_order else status_file.read(self.status, ended - MOMENT).lost
            if not lost and not in_order and status.placed:
                lost = [f"rank 0 was ended before it could tell why; it had used {'; '.join(status.placed)}"]
            for text in lost:
                _tell(text)
        if code == 0:
            _tell("mpirun ended with exit code 0, but the script on rank 0 has not come to its end: the job has failed")
        return code or 1


def _await(child: subprocess.Popen[bytes], ended: threading.Event) -> None:
    child.wait()
    ended.set()


def _children(pid: int) -> list[int]:
    """Return pidfds of the children of a process, as far as the system tells."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, AttributeError):  # it has ended; no pidfds
            if int(path.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(os.pidfd_open(int(path.parent.name)))
    return found


def _tell(text: str) -> None:
    print(f"vecenvs.mpi: {text}", file=sys.stderr, flush=True)  # noqa: T201  a launcher's output


def _prctl() -> ctypes._NamedFuncPointer | None:
    return ctypes.CDLL(None).prctl if sys.platform == "linux" else None


def _die_with(parent: int, prctl: ctypes._NamedFuncPointer | None) -> None:
    """Have this process, which is about to become mpirun, end as if by SIGTERM when its parent is killed."""
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)


def _in_foreground() -> bool:
    """Tell whether a terminal sends its Ctrl-C to this process."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
