"""A hosted process has ended by itself, and is noticed only when it is overdue to be ended by force. Needs no MPI."""

import os
import select
import signal
import sys
from types import SimpleNamespace

from vecenvs.backends.mpi.hosting import HostedProcess, LaunchRequest, start_server
from vecenvs.backends.mpi.rank_server import RankServer
from vecenvs.transport.pickling import PickledFns, loads

said = []


def isend(message, dest, tag):
    said.append(loads(message[0]))
    return SimpleNamespace(Test=lambda: True)


if __name__ == "__main__":
    start_server()
    mpi = SimpleNamespace(Status=lambda: None, BYTE=None)
    server = RankServer(mpi, SimpleNamespace(Get_rank=lambda: 1, Isend=isend), node=0)
    hosted = server._hosted[7] = HostedProcess(
        7, LaunchRequest(PickledFns([], 0), 0, "same_step", None, sys.path, os.getpid())
    )
    os.kill(hosted._process.pid, signal.SIGKILL)
    select.select([hosted.sentinel], [], [])
    hosted.stop(0.0)
    server._poll_processes(0.0)
    print(said, server._hosted)
