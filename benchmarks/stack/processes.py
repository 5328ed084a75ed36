"""A process for each library, in which it takes its turns. It is started when needed and ended if it hangs.

So a crash or a hang costs a library its turn and does not end the run, and no imports, threads or warning filters of
other libraries are around when a library is timed. The processes run `benchmarks.stack.serve`.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil

from benchmarks.shared import RAY_ENVIRONMENT, ROOT
from benchmarks.stack.candidates import Candidate
from vecenvs.cpus import usable_cores

START = 90.0  # seconds for a process to connect, after it has imported its library
TIMEOUT = 60.0  # seconds for a turn besides the measured time, to start and close envs
SLOW_TIMEOUT = 150.0  # the same for candidates that start slowly
LEAVE = 15.0  # seconds for a process to end by itself
# By family; see peers.sh.
FOLDERS = {"pufferlib3": [Path(sys.prefix) / "pufferlib3"]}
_SHORT_LIVED = {"ray"}  # its daemons work even when idle: they must not run during other turns


class Processes:
    """The processes, by family of candidates."""

    def __init__(self) -> None:
        self._processes: dict[str, LibraryProcess] = {}

    def ask(self, found: Candidate, order: Callable[[], Any], seconds: float) -> Any:
        """Have the candidate's process call `order`, which measures for so many seconds, and return its result.

        Raises:
            ProcessLost: The process has died, or takes too long.
        """
        process = self._processes.get(found.family)
        if process is None:
            process = LibraryProcess(_program(found.family), FOLDERS.get(found.family, ()))
        self._processes[found.family] = process
        try:
            answer = process.ask(order, seconds + (SLOW_TIMEOUT if found.slow else TIMEOUT))
        except ProcessLost:
            self._processes.pop(found.family).kill()
            raise
        if found.family in _SHORT_LIVED:
            self._processes.pop(found.family).close()
        return answer

    def close(self) -> None:
        """End all processes. It may be called again."""
        while self._processes:
            self._processes.popitem()[1].close()


class ProcessLost(Exception):
    """A process has died, or has not answered in time. The message is one line."""


class LibraryProcess:
    """One process with all of its descendants.

    `program` is its command, which gets the path of a socket as well. `folders` are searched for modules first.
    """

    def __init__(self, program: Sequence[str], folders: Sequence[Path] = ()) -> None:
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (closed in _end)
        with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
            path = f"{folder}/peers"
            listener.bind(path)
            listener.listen(1)
            listener.settimeout(0.2)
            self._process = subprocess.Popen(
                [*program, path],
                cwd=ROOT,
                env=_environment(folders),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._stderr,
                start_new_session=True,  # so that Ctrl-C does not reach them
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
        raise ProcessLost(self._last_words("its process did not start"))

    def ask(self, order: Any, timeout: float) -> Any:
        """Send the order and wait for the answer."""
        try:
            self._connection.send(order)
            if not self._connection.poll(timeout):
                raise ProcessLost(f"no answer within {timeout:.0f} s")
            return self._connection.recv()
        except (EOFError, OSError):
            self._process.poll()
            raise ProcessLost(self._last_words("its process died")) from None

    def close(self) -> None:
        """Close the connection, which ends the process; kill what is left."""
        self._connection.close()
        self._end(LEAVE)

    def kill(self) -> None:
        """End the process at once."""
        self._end(0.0)

    def _end(self, seconds: float) -> None:
        with contextlib.suppress(psutil.Error):
            family = [psutil.Process(self._process.pid), *psutil.Process(self._process.pid).children(recursive=True)]
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
            for process in family:
                with contextlib.suppress(psutil.Error):
                    process.kill()
        self._process.wait()
        self._stderr.close()

    def _last_words(self, what: str) -> str:
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()
        return f"{what}: {lines[-1].strip()[:200]}" if lines else what


def _program(family: str) -> list[str]:
    launcher = ["-m", "vecenvs.mpi", "-n", str(usable_cores() + 1)] if family == "mpi" else []
    return [sys.executable, *launcher, "-m", "benchmarks.stack.serve", family]


def _environment(folders: Sequence[Path]) -> dict[str, str]:
    path = os.pathsep.join(filter(None, [*map(str, folders), str(ROOT), os.environ.get("PYTHONPATH")]))
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {**os.environ, **RAY_ENVIRONMENT, **threads, "PYTHONPATH": path}
