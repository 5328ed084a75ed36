"""A worker is launched, and nothing refers to it any more: as where an exception comes in the midst of a launch."""

import os
import sys
import time
from pathlib import Path

from vecenvs.backends.mpi.hosting import LaunchRequest
from vecenvs.backends.mpi.job import worker_ranks
from vecenvs.backends.mpi.nodes import is_running
from vecenvs.testing.envs import CountingEnv
from vecenvs.transport.pickling import PickledFns
from vecenvs.worker.rules import Rules


def wait_for(found):
    while not found():
        ranks.poll()
        time.sleep(0.01)


if __name__ == "__main__":
    pid_file = Path(sys.argv[1]) / "pid"
    ranks = worker_ranks()

    def make():
        pid_file.with_suffix(".new").write_text(str(os.getpid()))
        pid_file.with_suffix(".new").rename(pid_file)
        return CountingEnv()

    request = LaunchRequest(PickledFns([make], 0), 0, Rules("same_step"), None, list(sys.path), os.getpid())
    launched = ranks.launch(ranks.peers[1], request)
    wait_for(pid_file.exists)
    pid = int(pid_file.read_text())
    print("it runs:", is_running(pid), flush=True)
    del launched
    wait_for(lambda: not is_running(pid))
    print("it has ended", flush=True)
