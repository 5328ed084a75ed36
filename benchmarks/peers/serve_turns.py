"""A process in which one library takes its turns: `python -m benchmarks.peers.serve_turns SOCKET FAMILY`.

It connects to the benchmark's socket and answers each `Order` with a `Turn`, until the other end is closed.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import socket
import sys
from multiprocessing.connection import Connection

from benchmarks.peers.libraries import start_ray
from benchmarks.peers.library_processes import Order
from benchmarks.peers.lineup import Entrant, contestant
from vecenvs.bench.contest import take_turn

# Imported before the first turn, so that its start-up time does not include the import.
LIBRARIES = {
    "sb3": "stable_baselines3.common.vec_env",
    "tianshou": "tianshou.env",
    "torchrl": "torchrl.envs",
    "pufferlib": "pufferlib.vector",
    "envpool": "envpool",
    "ray": "tianshou.env",
}


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the benchmark handles Ctrl-C, and then closes the socket
    with contextlib.suppress(ImportError):  # the turns report what is missing
        importlib.import_module(LIBRARIES.get(sys.argv[2], "vecenvs"))
    if sys.argv[2] == "ray":
        with contextlib.suppress(ImportError):
            start_ray()  # all contestants on Ray use a running one
    link = socket.socket(socket.AF_UNIX)
    link.connect(sys.argv[1])
    connection = Connection(link.detach())
    while True:
        try:
            order: Order = connection.recv()
        except (EOFError, ConnectionResetError):
            break
        entrant = Entrant(contestant(order.contestant), order.job)
        connection.send(take_turn(entrant, order.job.num_envs, order.seconds))
    if "ray" in sys.modules:
        import ray

        ray.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    if "mpi4py" not in sys.modules:
        os._exit(0)  # threads that a library has left behind must not keep the process running


if __name__ == "__main__":
    main()
