"""A process in which one library takes its turns: `python -m benchmarks.stack.serve FAMILY SOCKET`.

It connects to the benchmark's socket and calls each function that it receives, until the other end is closed.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import socket
import sys
from multiprocessing.connection import Connection

# Imported before the first turn, so that its start-up time does not include the import.
LIBRARIES = {
    "sb3": "stable_baselines3.common.vec_env",
    "tianshou": "tianshou.env",
    "torchrl": "torchrl.envs",
    "pufferlib": "pufferlib.vector",
    "pufferlib3": "pufferlib.vector",
    "envpool": "envpool",
    "ray": "tianshou.env",
}


def main() -> None:
    family, path = sys.argv[1:]
    with contextlib.suppress(ImportError):  # the turns report what is missing
        importlib.import_module(LIBRARIES.get(family, "vecenvs"))
    if family == "ray":
        with contextlib.suppress(ImportError):
            start_ray()  # all candidates on Ray use a running one
    serve(path)
    if "ray" in sys.modules:
        import ray

        ray.shutdown()
    if "mpi4py" not in sys.modules:  # threads that a library has left behind must not keep this process running
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def serve(path: str) -> None:
    """Call what comes through the socket at `path`, until its other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the benchmark handles Ctrl-C, and then closes the socket
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(path)
        connection = Connection(link.detach())
    with contextlib.suppress(EOFError, ConnectionResetError):
        while True:
            connection.send(connection.recv()())


def start_ray() -> None:
    """Start a local Ray unless one is running."""
    import ray

    if not ray.is_initialized():
        ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level="error")


if __name__ == "__main__":
    main()
