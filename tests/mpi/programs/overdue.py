"""Hosted processes at their end: overdue.py FOLDER.

One has ended by itself, and is noticed only when it is overdue to be ended by force. What its env had started ends,
too. Another one hangs: it is told to end before it is killed. Their descriptors are beyond those that select() knows.
Needs no MPI.
"""

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from multiprocessing.connection import wait
from pathlib import Path
from types import SimpleNamespace

from vecenvs.backends.mpi.hosting import HostedProcess, LaunchRequest, start_server
from vecenvs.backends.mpi.rank_server import RankServer
from vecenvs.transport.pickling import PickledFns, loads
from vecenvs.worker.rules import Rules

said = []
folder = Path(sys.argv[1])
told = folder / "simulator"


def simulate_and_die():
    told.write_text(str(subprocess.Popen(["sleep", "300"], start_new_session=True).pid))
    os.kill(os.getpid(), signal.SIGKILL)


def hang():
    try:
        (folder / "hangs").touch()
        time.sleep(60)
    finally:
        (folder / "is told").touch()


def launched(number, function):
    request = LaunchRequest(PickledFns([function], 0), 0, Rules("same_step"), None, sys.path, os.getpid())
    return HostedProcess(number, request)


def lives(pid):
    with contextlib.suppress(FileNotFoundError):
        return b"State:\tZ" not in Path(f"/proc/{pid}/status").read_bytes()
    return False


def isend(message, dest, tag):
    said.append(loads(message[0]))
    return SimpleNamespace(Test=lambda: True)


if __name__ == "__main__":
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    low = [os.dup(0) for _ in range(1024)]
    start_server()
    mpi = SimpleNamespace(Status=lambda: None, BYTE=None)
    server = RankServer(mpi, SimpleNamespace(Get_rank=lambda: 1, Isend=isend), node=0)
    hosted = server._hosted[7] = launched(7, simulate_and_die)
    wait([hosted.sentinel])
    hosted.stop(0.0)
    server._poll_processes(0.0)
    simulator, end = int(told.read_text()), time.monotonic() + 10
    while lives(simulator) and time.monotonic() < end:
        time.sleep(0.01)
    print(said, server._hosted, lives(simulator))
    hosted = server._hosted[8] = launched(8, hang)
    while not (folder / "hangs").exists():
        server._poll_processes(0.01)
    hosted.stop(0.2)
    while server._hosted:
        server._poll_processes(0.01)
    print(said[-1], (folder / "is told").exists())
