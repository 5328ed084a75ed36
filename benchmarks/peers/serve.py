"""A process in which one library takes its turns: `python -m benchmarks.peers.serve SOCKET FAMILY`.

It connects to the benchmark's socket and answers each `Order` with an `Answer`, until the other end is closed.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import socket
import sys
from multiprocessing.connection import Connection

from benchmarks.peers.contestants import contestant
from benchmarks.peers.libraries import start_ray
from benchmarks.peers.turn import Order, take_turn

# Imported before the first turn, whose start-up would count it otherwise.
LIBRARIES = {
    "sb3": "stable_baselines3.common.vec_env",
    "tianshou": "tianshou.env",
    "torchrl": "torchrl.envs",
    "pufferlib": "pufferlib.vector",
    "envpool": "envpool",
    "ray": "tianshou.env",
}


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the benchmark's, which then closes the socket
    with contextlib.suppress(ImportError):  # its turns will tell
        importlib.import_module(LIBRARIES.get(sys.argv[2], "vecenvs"))
    if sys.argv[2] == "ray":
        with contextlib.suppress(ImportError):
            start_ray()  # a running Ray, for all that use one
    link = socket.socket(socket.AF_UNIX)
    link.connect(sys.argv[1])
    connection = Connection(link.detach())
    while True:
        try:
            order: Order = connection.recv()
        except (EOFError, ConnectionResetError):
            break
        connection.send(take_turn(contestant(order.contestant).build, order.job, order.seconds))
    if "ray" in sys.modules:
        import ray

        ray.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    if "mpi4py" not in sys.modules:
        os._exit(0)  # threads that a library has left behind must not keep the process


if __name__ == "__main__":
    main()
