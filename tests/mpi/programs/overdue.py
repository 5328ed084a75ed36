"""A hosted process has ended by itself, and is noticed only when it is overdue to be ended by force: overdue.py FOLDER.

What its env had started ends, too. Needs no MPI.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

from vecenvs.backends.mpi.hosting import HostedProcess, LaunchRequest, start_server
from vecenvs.backends.mpi.rank_server import RankServer
from vecenvs.transport.pickling import PickledFns, loads

said = []
told = Path(sys.argv[1]) / "simulator"


def simulate_and_die():
    told.write_text(str(subprocess.Popen(["sleep", "300"], start_new_session=True).pid))
    os.kill(os.getpid(), signal.SIGKILL)


def lives(pid):
    with contextlib.suppress(FileNotFoundError):
        return b"State:\tZ" not in Path(f"/proc/{pid}/status").read_bytes()
    return False


def isend(message, dest, tag):
    said.append(loads(message[0]))
    return SimpleNamespace(Test=lambda: True)


if __name__ == "__main__":
    start_server()
    mpi = SimpleNamespace(Status=lambda: None, BYTE=None)
    server = RankServer(mpi, SimpleNamespace(Get_rank=lambda: 1, Isend=isend), node=0)
    hosted = server._hosted[7] = HostedProcess(
        7, LaunchRequest(PickledFns([simulate_and_die], 0), 0, "same_step", None, sys.path, os.getpid())
    )
    select.select([hosted.sentinel], [], [])
    hosted.stop(0.0)
    server._poll_processes(0.0)
    simulator, end = int(told.read_text()), time.monotonic() + 10
    while lives(simulator) and time.monotonic() < end:
        time.sleep(0.01)
    print(said, server._hosted, lives(simulator))
