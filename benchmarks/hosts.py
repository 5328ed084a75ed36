"""Measure what a step costs a caller with workers on 2 to 8 other hosts; results in benchmarks/results/hosts.json.

    python benchmarks/hosts.py              as root, about five minutes on an idle machine
    python benchmarks/hosts.py --docs       measures nothing: writes the file's tables into docs/scaling.md
    python benchmarks/hosts.py --check      measures nothing: prints the promise, and how far off the model is

The hosts are network namespaces on one bridge (root, iproute2), the caller's among them, and share this machine's
cores. So an env sleeps instead of computing: the first of each worker for a fixed time in each step, the others not at
all. CPU times hold for real hosts, too. The time of a whole step, the sleep left out, does not: it is that of as many
processes as there are on as few cores as this machine has.

All VecEnvs are of one MPI job with a rank on each host, and take turns: each round measures all cells, every other one
backwards. A cell's figure is the median of its rounds. `hosts_model.py` has the cells.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
from hosts_model import FLOATS, GRID, IMAGE, PROMISE, QUANTITIES, Cell, cell_of, errors, fit_all, result
from hosts_tables import PAGES
from scaling_tables import write_docs
from shared import RESULTS, ROOT, about, load, write

from vecenvs.backends.mpi import MpiVecEnv
from vecenvs.backends.mpi.job import worker_ranks
from vecenvs.bench.workloads import Synthetic, workload
from vecenvs.transport import leaders

RECORD = RESULTS / "hosts.json"
SLEEP = 2e-3  # seconds that each worker's envs sleep in a step
WITH_LEADER, WITHOUT = 1, 10**9  # workers of a node from which on it has a leader
SPACES = {
    FLOATS: gym.spaces.Box(-1.0, 1.0, (4,), np.float32),
    IMAGE: gym.spaces.Box(0, 255, (84, 84, 4), np.uint8),
}


def measure(cell: Cell, seconds: float) -> dict[str, float]:
    """Step a VecEnv on the first of the nodes for some time.

    Returns:
        Per step: seconds of CPU of the caller's process, of all leaders and of all workers; seconds in all, the sleep
        left out; bytes that the caller's host has sent and received.
    """
    ranks = worker_ranks()
    nodes = [peer for peer in ranks.peers.values() if peer.rank <= cell.nodes]
    ranks._answering = lambda: nodes
    leaders.LEAST = WITH_LEADER if cell.leaders else WITHOUT
    count = cell.nodes * cell.workers
    shard = cell.envs // count
    space = SPACES[cell.row_bytes]
    env_fns = [Synthetic(space, sleep=SLEEP), *[Synthetic(space)] * (shard - 1)] * count
    with MpiVecEnv(env_fns, num_workers=count) as vec:
        there = vec.stats()["workers"]
        if len({each["host"] for each in there}) != cell.nodes or any(x["gathered"] != cell.leaders for x in there):
            raise SystemExit(f"{cell}: the workers are not where, or not reached as, the measurement wants them")
        vec.reset()
        workers = vec.call(_pid, range(0, cell.envs, shard))
        hosted = {child.pid for peer in nodes for child in psutil.Process(peer.pid).children(recursive=True)}
        of_leaders = hosted - {*workers}  # and of fork servers, which use none
        actions = np.zeros(cell.envs, np.int64)
        _steps(vec, actions, seconds / 4)
        before = _cpu(of_leaders), _cpu(workers), _traffic()
        cpu, wall = time.process_time(), time.perf_counter()
        steps = _steps(vec, actions, seconds)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        after = _cpu(of_leaders), _cpu(workers), _traffic()
    led, worked, sent = ((now - then) / steps for then, now in zip(before, after, strict=True))
    of_cpu = {"caller_cpu": cpu / steps, "leaders_cpu": led, "workers_cpu": worked}
    return {**of_cpu, "step": wall / steps - SLEEP, "bytes": sent}


def _steps(vec: Any, actions: Any, seconds: float) -> int:
    count, until = 0, time.perf_counter() + seconds
    while time.perf_counter() < until:
        for _ in range(10):
            vec.step(actions)
        count += 10
    return count


def _pid(env: Any) -> int:
    return os.getpid()


def _cpu(pids: Sequence[int]) -> float:
    """Return the CPU seconds of processes, all threads, as exactly as the kernel counts them."""
    return 1e-9 * sum(
        int(path.read_text().split()[0]) for pid in pids for path in Path(f"/proc/{pid}/task").glob("*/schedstat")
    )


def _traffic() -> int:
    """Return the bytes that this host has sent and received so far."""
    link = psutil.net_io_counters(pernic=True)["veth0"]
    return int(link.bytes_sent + link.bytes_recv)


def _cartpole() -> float:
    """Return the seconds of a bare step of CartPole: the best of many short readings."""
    env, best = workload("CartPole-v1")(), float("inf")
    for _ in range(50):
        env.reset(seed=0)
        start = time.perf_counter()
        for action in (0, 1) * 5:
            env.step(action)
        best = min(best, (time.perf_counter() - start) / 10)
    return best


def as_rank_0(args: argparse.Namespace) -> None:
    """Measure, within the job; leave the results where the driver looks."""
    found: dict[Cell, list[dict[str, float]]] = {cell: [] for cell in args.cells}
    unit = _cartpole()
    for number in range(args.rounds):
        for cell in args.cells[:: -1 if number % 2 else 1]:
            found[cell].append(measure(cell, args.seconds))
            print(f"round {number + 1}: {describe(cell, found[cell][-1])}", flush=True)
    results = [result(cell, readings) for cell, readings in found.items()]
    args.found.write_text(json.dumps({"cartpole": unit, "results": results}), encoding="utf-8")


def describe(cell: Cell, found: dict[str, float]) -> str:
    """Return a line about a reading."""
    times = " ".join(f"{name} {1e6 * found[name]:6.0f}" for name in QUANTITIES)
    how = "leaders" if cell.leaders else "connections"
    return f"{cell.nodes} x {cell.workers}, {cell.envs:3} envs, {cell.row_bytes:5} bytes, {how:11}: {times} us"


def launch(args: argparse.Namespace) -> dict[str, Any]:
    """Make the hosts and run the job on them, which whatever happens leaves nothing behind."""
    sys.path.append(str(ROOT / "tests/mpi"))
    from virtual_hosts import virtual_hosts

    count = 1 + max(cell.nodes for cell in args.cells)
    with tempfile.TemporaryDirectory() as name, virtual_hosts(Path(name), count) as hosts:
        line = [sys.executable, "-m", "vecenvs.mpi", "-n", str(count)]
        line += [f"--mpirun-args={hosts.mpirun_args('openmpi', [1] * count)}", __file__]
        line += ["--found", str(Path(name) / "found"), "--rounds", str(args.rounds), "--seconds", str(args.seconds)]
        line += ["--only", *args.only] if args.only else []
        environ = {"VECENVS_TEST_JOB": "benchmark"} | os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": name}
        try:
            subprocess.run(hosts.on(0, *line), check=True, env=environ)
        finally:
            for host in range(count):
                hosts.kill(host)
        found: dict[str, Any] = json.loads((Path(name) / "found").read_text(encoding="utf-8"))
    return found


def check(record: dict[str, Any]) -> None:
    """Print the promise, and by how much the model is off."""
    for name, costs in fit_all(record["results"]).items():
        for fitted in (True, False):
            off = errors(record["results"], costs, name, fitted=fitted)
            worst = max(off, key=lambda cell: abs(off[cell]))
            kind = "fitted" if fitted else "predicted"
            print(f"{name:11} {kind:9} {len(off):2} cells: within {abs(off[worst]):.0%}, worst {worst}")
    of = {cell_of(row): row["caller_cpu"] for row in record["results"]}
    many, few, bound = PROMISE
    ratio = of[many] / of[few]
    print(f"the caller's CPU, 8 hosts of 8 over 8 of one: {ratio:.2f}, promised <= {bound:.2f}", end=": ")
    print("kept" if ratio <= bound else "MISSED")


def main() -> None:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.6, help="per reading")
    parser.add_argument("--only", nargs="+", metavar="NxW", help="cells with so many nodes and workers; not kept")
    parser.add_argument("--docs", action="store_true", help="write the tables of docs/scaling.md from the file")
    parser.add_argument("--check", action="store_true", help="print what the file says about the promise and the model")
    parser.add_argument("--found", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.cells = [cell for cell in GRID if not args.only or f"{cell.nodes}x{cell.workers}" in args.only]
    if args.found is not None:
        as_rank_0(args)
    elif args.docs or args.check:
        record = load(RECORD)
        write_docs(record, PAGES) if args.docs else check(record)
    else:
        command = f"python benchmarks/hosts.py --rounds {args.rounds} --seconds {args.seconds:g}"
        record = {**about(command), **launch(args)}
        if not args.only:
            write(RECORD, record)
            check(record)


if __name__ == "__main__":
    main()
