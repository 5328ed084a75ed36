"""Measure what a node's workers cost a caller on another node, with a leader there and with a connection for each.

    python -m vecenvs.mpi -n 2 benchmarks/nodes.py        some 30 s; results in benchmarks/results/nodes.json
    python benchmarks/nodes.py ray                        some 3 minutes; in benchmarks/results/nodes_ray.json

The other node is imitated: `transport="messages"` reaches workers of this machine like those of another. So the leader
and the workers share the caller's cores. The caller's CPU time is what the comparison is about; the time of a whole
step counts for machines with a core for each process only.
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

import numpy as np
from shared import RESULTS, about, write

from vecenvs import VecEnv
from vecenvs.bench.workloads import workload
from vecenvs.transport import leaders

ENVS, WORKERS, ROUNDS, STEPS = 64, (1, 2, 4, 8, 16), 5, 100
ON_RAY = sys.argv[1:] == ["ray"]
ALWAYS, NEVER = 1, 10**9  # workers of a node from which on it has a leader


def make(workers: int) -> VecEnv:
    """Make the VecEnv of the engine that the command line names; MPI without one."""
    fns = [workload("spin:0us")] * ENVS
    if ON_RAY:
        from vecenvs.backends.ray import RayVecEnv

        return RayVecEnv(fns, num_workers=workers, transport="messages", actor_options={"num_cpus": 0})
    from vecenvs.backends.mpi import MpiVecEnv

    return MpiVecEnv(fns, num_workers=workers, transport="messages")


def measure(workers: int, least: int) -> dict[str, float]:
    """Return seconds of the caller's CPU, and seconds, per step of ENVS envs that cost nothing: the least of rounds."""
    leaders.LEAST = least
    with make(workers) as vec:
        if not all(each["gathered"] == (least == ALWAYS) for each in vec.stats()["workers"]):
            raise SystemExit("the workers are not reached in the way that is measured")
        vec.reset()
        actions = np.zeros(ENVS, np.int64)
        cpu, wall = [], []
        for _ in range(ROUNDS):
            start, begin = time.thread_time(), time.perf_counter()
            for _ in range(STEPS):
                vec.step(actions)
            cpu.append((time.thread_time() - start) / STEPS)
            wall.append((time.perf_counter() - begin) / STEPS)
    return {"caller": min(cpu), "step": min(wall)}


def main() -> None:
    """Measure by turns, three times each; write the medians."""
    found: dict[tuple[int, int], list[dict[str, float]]] = {}
    for _ in range(3):
        for workers in WORKERS:
            for least in (ALWAYS, NEVER):
                found.setdefault((workers, least), []).append(measure(workers, least))
    results: list[dict[str, Any]] = []
    for (workers, least), readings in found.items():
        medians = {name: statistics.median(reading[name] for reading in readings) for name in readings[0]}
        results.append({"workers": workers, "leader": least == ALWAYS, "envs": ENVS, **medians})
    path = RESULTS / ("nodes_ray.json" if ON_RAY else "nodes.json")
    command = "python benchmarks/nodes.py ray" if ON_RAY else "python -m vecenvs.mpi -n 2 benchmarks/nodes.py"
    write(path, {**about(command), "results": results})
    alone = next(each for each in results if each["workers"] == 1 and not each["leader"])
    for each in results:
        ratios = " ".join(f"{name} {each[name] / alone[name]:.2f}" for name in ("caller", "step"))
        print(f"{each['workers']:3} workers, {'a leader' if each['leader'] else 'connections'}: {ratios}")


if __name__ == "__main__":
    main()
