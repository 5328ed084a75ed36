"""A process in which one library takes its turns: `python -m benchmarks.peers.serve_turns FAMILY SOCKET`.

It connects to the benchmark's socket and answers each `Order` with a `Turn`, until the other end is closed.
"""

from __future__ import annotations

import contextlib
import importlib
import sys

from benchmarks.peers.libraries import start_ray
from benchmarks.peers.library_processes import Order, leave, serve
from benchmarks.peers.lineup import Entrant, contestant
from vecenvs.bench.contest import Turn, take_turn

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
            start_ray()  # all contestants on Ray use a running one
    serve(path, take)
    if "ray" in sys.modules:
        import ray

        ray.shutdown()
    if "mpi4py" not in sys.modules:
        leave()


def take(order: Order) -> Turn:
    return take_turn(Entrant(contestant(order.contestant), order.job), order.job.num_envs, order.seconds)


if __name__ == "__main__":
    main()
