"""Run mpirun as a child: it neither notices nor reports all losses of a node, and passes signals on too fast.

The exit code of the job is that of the script on rank 0. Without rank 0's word that the script has ended, the job has
failed, whatever mpirun says. After the end of rank 0 mpirun is ended in bounded time, even if it cannot reach a node.

A signal that asks the job for something goes to rank 0. When the job is to end (SIGTERM: scancel, Kubernetes), rank 0
has a grace, to save a checkpoint by the help of its workers, before mpirun hears of it: that kills all ranks within a
fraction of a second.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from vecenvs.backends.mpi import status_file
from vecenvs.backends.mpi.nodes import is_running
from vecenvs.worker import descendants

GRACE = 20.0  # seconds for rank 0 after SIGTERM; schedulers send SIGKILL after 30
PATIENCE = 5.0  # seconds for mpirun to end after rank 0, or the other way round; between SIGTERM and SIGKILL
_LOOK = 0.2  # seconds between looks at rank 0 and mpirun
_FOR_RANK_0 = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1


class Supervisor:
    """Runs one mpirun. `alone`: the script runs on rank 0 only, so the job ends with it."""

    def __init__(self, *, alone: bool, grace: float = GRACE) -> None:
        self._alone = alone
        self._grace = grace
        self._signalled = False
        self._deadline = math.inf  # for rank 0, once it was told to end
        self._file, self.status = status_file.new()

    def run(self, line: Sequence[str], environ: Mapping[str, str]) -> int:
        """Run the command line; return the exit code of the job, once what rank 0 has said of losses is printed."""
        mark, prctl = descendants.new_mark(), getattr(ctypes.CDLL(None), "prctl", None)
        begin = partial(_begin, os.getpid(), prctl, mark)
        child = subprocess.Popen(line, env=environ, close_fds=False, preexec_fn=begin)  # noqa: PLW1509  no thread
        with self._handling_signals(child):
            forced = self._wait(child, mark)
        return self._verdict(child.returncode, forced=forced)

    def _wait(self, child: subprocess.Popen[bytes], mark: int) -> bool:
        """Wait for the end of mpirun. End it, and return True, if it goes on for long after rank 0."""
        since = math.inf
        while not _ends(child, _LOOK):
            now, status = time.monotonic(), status_file.read(self._file)
            if now > self._deadline:
                self._deadline = math.inf
                child.terminate()
            if not self._alone or status.pid is None or (is_running(status.pid) and status.exit_code is None):
                continue
            since = min(since, now)
            if now - since > PATIENCE:
                _tell(f"mpirun has not ended {PATIENCE:g} s after rank 0 (a node that it cannot reach?): ending it")
                child.terminate()
                if not _ends(child, PATIENCE):
                    child.kill()
                    child.wait()
                descendants.kill([mark])  # ssh to a node that is silent would hold this job's output open
                return True
        return False

    @contextlib.contextmanager
    def _handling_signals(self, child: subprocess.Popen[bytes]) -> Iterator[None]:
        """Within this block pass signals on: to rank 0 if it is here, else to mpirun."""

        def pass_on(number: int, _: object) -> None:
            pid = status_file.read(self._file).pid
            if pid is None or not self._alone or not is_running(pid):
                child.send_signal(number)
            else:
                os.kill(pid, number)

        def interrupt(number: int, _: object) -> None:
            self._signalled = True
            if not _in_foreground():  # else the terminal sends it to mpirun, too, which ends without order by a second
                child.send_signal(number)

        def terminate(number: int, _: object) -> None:
            pid = status_file.read(self._file).pid
            if self._signalled or pid is None or not is_running(pid):  # a second one does not wait
                child.send_signal(number)
            else:
                self._deadline = time.monotonic() + self._grace
                os.kill(pid, number)
            self._signalled = True

        handlers = dict.fromkeys(_FOR_RANK_0, pass_on) | {signal.SIGINT: interrupt, signal.SIGTERM: terminate}
        before = {number: signal.getsignal(number) for number in handlers}
        for number, handler in handlers.items():
            if before[number] != signal.SIG_IGN:  # by nohup, say
                signal.signal(number, handler)
        try:
            yield
        finally:
            for number in handlers:
                signal.signal(number, before[number])

    def _verdict(self, code: int, *, forced: bool) -> int:
        code = 1 if forced else 128 - code if code < 0 else code
        deadline = time.monotonic() + PATIENCE
        while (status := status_file.read(self._file)).pid is not None and status.exit_code is None:
            if not is_running(status.pid) or time.monotonic() > deadline:
                break
            time.sleep(_LOOK / 4)
        status = status_file.read(self._file)
        if status.pid is None:  # rank 0 is on another host than this
            return code
        if status.exit_code == 0:
            return 0 if self._alone else code
        if not self._signalled:  # else they are gone because they were told to end
            for text in status.lost:  # mpirun drops what rank 0 has printed of that
                _tell(f"the worker on {text} was lost")
            if status.workers and status.exit_code is None:
                _tell(f"rank 0 was ended before it could tell why; it had used {'; '.join(status.workers.values())}")
        if status.exit_code is not None:
            return status.exit_code
        if code == 0:
            _tell("mpirun ended with exit code 0, but the script on rank 0 has not come to its end: the job has failed")
        return code or 1


def _ends(child: subprocess.Popen[bytes], seconds: float) -> bool:
    """Tell whether mpirun has ended, or does within that time."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(seconds)
    return child.returncode is not None


def _tell(text: str) -> None:
    print(f"vecenvs.mpi: {text}", file=sys.stderr, flush=True)  # noqa: T201  a launcher's output


def _begin(parent: int, prctl: Any, mark: int) -> None:
    """Mark this process, which is about to become mpirun, and have it end by SIGTERM when its parent is killed."""
    descendants.put_on(mark)
    if prctl is not None:  # Linux
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)


def _in_foreground() -> bool:
    """Tell whether a terminal sends its Ctrl-C to this process."""
    with contextlib.suppress(OSError), open("/dev/tty", "rb") as terminal:
        return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    return False
