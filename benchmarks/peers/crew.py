"""The processes that take turns: each library has one of its own, started when it is needed, ended if it hangs.

A crash or a hang costs a library its turn, not the run; and nobody's imports, threads or warning filters are around
when another is timed.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType

import psutil

from benchmarks.peers.contestants import Contestant
from benchmarks.peers.steppers import Job
from benchmarks.peers.turn import Answer, Order
from vecenvs.cpus import usable_cores

ROOT = Path(__file__).parents[2]
START = 90.0  # seconds for a process to connect: it imports what its library needs
PATIENCE = 60.0  # seconds for a turn beyond the time that is measured: starting envs, closing them
SLOW_PATIENCE = 150.0  # the same, for who is known to start slowly
LEAVE = 15.0  # seconds to leave when told to
_SHORT_LIVED = {"ray"}  # its daemons work while nobody asks them to: nobody else's turn shall see them


class Crew:
    """The processes, by family."""

    def __init__(self) -> None:
        self._members: dict[str, Member] = {}

    def take_turn(self, contestant: Contestant, job: Job, seconds: float) -> Answer:
        """Have it take a turn; a process that dies or takes too long is an answer, too."""
        family = contestant.family
        try:
            member = self._members.get(family) or Member(family)
        except MemberLost as lost:
            return Answer(failure=str(lost))
        self._members[family] = member
        try:
            answer = member.ask(
                Order(contestant.name, job, seconds), 2 * seconds + (SLOW_PATIENCE if contestant.slow else PATIENCE)
            )
        except MemberLost as lost:
            self._members.pop(family).kill()
            return Answer(failure=str(lost))
        if family in _SHORT_LIVED:
            self._members.pop(family).close()
        return answer

    def close(self) -> None:
        """End them all. Repeatable."""
        while self._members:
            self._members.popitem()[1].close()

    def __enter__(self) -> Crew:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class MemberLost(Exception):
    """A process has died, or has not answered in time. The message is one line."""


class Member:
    """One process with all its descendants."""

    def __init__(self, family: str) -> None:
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (closed in _end)
        with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
            path = f"{folder}/peers"
            listener.bind(path)
            listener.listen(1)
            listener.settimeout(0.2)
            self._process = subprocess.Popen(
                [*_interpreter(family), "-m", "benchmarks.peers.serve", path, family],
                cwd=ROOT,
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._stderr,
                start_new_session=True,  # Ctrl-C is not for them
            )
            try:
                self._connection = self._accept(listener)
            except BaseException:
                self.kill()
                raise

    def _accept(self, listener: socket.socket) -> Connection:
        end = time.monotonic() + START
        while self._process.poll() is None and time.monotonic() < end:
            with contextlib.suppress(TimeoutError):
                link, _ = listener.accept()
                link.setblocking(True)
                return Connection(link.detach())
        raise MemberLost(self._last_words("its process did not start"))

    def ask(self, order: Order, timeout: float) -> Answer:
        """Send the order and wait."""
        try:
            self._connection.send(order)
            if not self._connection.poll(timeout):
                raise MemberLost(f"no answer within {timeout:.0f} s")
            answer: Answer = self._connection.recv()
        except (EOFError, OSError):
            self._process.poll()
            raise MemberLost(self._last_words("its process died")) from None
        return answer

    def close(self) -> None:
        """Tell it to leave; end what does not."""
        self._connection.close()
        self._end(LEAVE)

    def kill(self) -> None:
        """End it at once."""
        self._end(0.0)

    def _end(self, patience: float) -> None:
        with contextlib.suppress(psutil.Error):
            family = [psutil.Process(self._process.pid), *psutil.Process(self._process.pid).children(recursive=True)]
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(patience)
            for process in family:
                with contextlib.suppress(psutil.Error):
                    process.kill()
        self._process.wait()
        self._stderr.close()

    def _last_words(self, what: str) -> str:
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()
        return f"{what}: {lines[-1].strip()[:200]}" if lines else what


def _interpreter(family: str) -> list[str]:
    if family != "mpi":
        return [sys.executable]
    return [sys.executable, "-m", "vecenvs.mpi", "-n", str(usable_cores() + 1)]


def _environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    # Ray runs its workers at low priority unless told otherwise.
    ray = {"RAY_worker_niceness": "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {**os.environ, **ray, **threads, "PYTHONPATH": path}
