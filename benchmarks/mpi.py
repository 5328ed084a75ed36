"""Measure MpiVecEnv, and keep the readings in benchmarks/results/mpi.json.

    python benchmarks/mpi.py                      everything, about three minutes on an idle machine
    python benchmarks/mpi.py --only two-hosts     one measurement; the others' readings stay

* one-node: beside SubprocVecEnv with as many workers, one per core.
* one-node-packed: the same, but rows travel in messages (without a promise).
* two-hosts: all workers on a second host, made of network namespaces as in tests/mpi/virtual_hosts.py (root, iproute2).
* idle: the CPU that ranks use while rank 0 computes.

Shares are of the limit of `python -m vecenvs bench`: see README.md. During the other turns the worker ranks are
stopped, so that only MpiVecEnv pays for them.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import shared
from shared import RESULTS, ROOT, about, load, promises, write

from vecenvs.bench.candidates import Backend, VecCandidate, VecStepper, from_env_fn
from vecenvs.bench.contest import LIMIT, Turn, contest
from vecenvs.bench.limit import BareLoops
from vecenvs.bench.report import Spread, share_of
from vecenvs.bench.workloads import Workload, workload
from vecenvs.cpus import usable_cores

RECORD = RESULTS / "mpi.json"
PROMISES = {  # env, number of envs, figure, bound
    "one-node": [("CartPole-v1", 64, "over subproc", 0.95), ("spin:100us", 8, "over subproc", 0.95)],
    "one-node-packed": [("CartPole-v1", 64, "share", 0.0), ("spin:100us", 8, "share", 0.0)],
    "two-hosts": [("spin:100us", 64, "share", 0.85)],
    "idle": [("CartPole-v1", 8, "idle", 0.02)],
}


class Ours:
    """MpiVecEnv as a candidate."""

    name = "mpi"

    def __init__(self, env_fn: Any, workers: int, **options: Any) -> None:
        self._env_fn = env_fn
        self._options = {"num_workers": workers, **options}
        self._ranks: list[int] = []

    def make(self, num_envs: int) -> Ours:
        from vecenvs.backends.mpi import MpiVecEnv
        from vecenvs.backends.mpi.job import worker_ranks

        self._signal(signal.SIGCONT)
        vec = MpiVecEnv([self._env_fn] * num_envs, **self._options)
        self._ranks = [peer.pid for peer in worker_ranks().peers.values() if psutil.pid_exists(peer.pid)]
        self._stepper = VecStepper(vec, vec.reset(seed=0))
        self.step = self._stepper.step
        return self

    def close(self) -> None:
        self._stepper.close()
        self._signal(signal.SIGSTOP)

    def end(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        for pid in self._ranks:
            os.kill(pid, number)


def compare(name: str, env: str, num_envs: int, args: argparse.Namespace) -> dict[str, Any]:
    """Measure both by turns, with readings of the limit in between."""
    env_fn, cores = workload(env), usable_cores()
    ours = Ours(env_fn, cores, transport=args.transport or ("messages" if name == "one-node-packed" else "auto"))
    try:
        with BareLoops(env_fn, cores) as loops:
            candidates = [ours, subproc(env_fn, cores)] if name == "one-node" else [ours]
            turns = list(contest([candidates] * args.repeats, loops, num_envs, seconds=args.seconds))
    finally:
        ours.end()
    if failures := [turn.failure for turn in turns if turn.failure]:
        raise SystemExit(failures[0])
    found: dict[str, Any] = {"workers": cores, "rates": {LIMIT: rates(turns, LIMIT)}}
    for candidate in candidates:
        found["rates"][candidate.name] = rates(turns, candidate.name)
        shares = [share_of(turn, turns) or 0.0 for turn in turns if turn.candidate == candidate.name]
        found["share" if candidate is ours else f"share of {candidate.name}"] = asdict(Spread.of(shares))
    if "subproc" in found["rates"]:
        ratios = [a / b for a, b in zip(found["rates"]["mpi"], found["rates"]["subproc"], strict=True)]
        found["over subproc"] = asdict(Spread.of(ratios))
    return found


def subproc(env_fn: Workload, workers: int) -> VecCandidate:
    """Return SubprocVecEnv, not by fork, which is unsafe in a process that has initialised MPI."""
    backend = Backend("subproc", "subproc", {"num_workers": workers, "start_method": "forkserver"})
    return VecCandidate(backend, from_env_fn(env_fn))


def rates(turns: Sequence[Turn], name: str) -> list[float]:
    """Return the rates of one candidate, in the order of the rounds."""
    return [turn.timing.rate for turn in turns if turn.candidate == name and turn.timing]


def idle(env: str, num_envs: int, args: argparse.Namespace) -> dict[str, Any]:
    """Measure the largest share of a core that a rank and its envs use, while rank 0 computes on another core."""
    from vecenvs.backends.mpi import MpiVecEnv
    from vecenvs.backends.mpi.job import worker_ranks

    shares = []
    with MpiVecEnv([workload(env)] * num_envs) as vec:
        VecStepper(vec, vec.reset(seed=0)).step(100)
        ranks = [psutil.Process(peer.pid) for peer in worker_ranks().peers.values()]
        groups = [[rank, *rank.children(recursive=True)] for rank in ranks]
        for _ in range(min(args.repeats, 5)):
            before = [used(group) for group in groups]
            start = time.perf_counter()
            while time.perf_counter() - start < args.idle_seconds:
                sum(range(1000))
            seconds = time.perf_counter() - start
            shares.append(max(used(group) - was for group, was in zip(groups, before, strict=True)) / seconds)
    return {"workers": len(groups), "idle": asdict(Spread.of(shares))}


def used(group: Sequence[psutil.Process]) -> float:
    """Return the CPU seconds of some processes."""
    return sum(sum(process.cpu_times()[:2]) for process in group)


def as_rank_0(name: str, args: argparse.Namespace) -> None:
    """Measure, within an MPI job; leave the readings where the driver looks."""
    found = []
    for env, num_envs, _, _ in PROMISES[name]:
        print(f"  {env} n={num_envs}", flush=True)
        readings = idle(env, num_envs, args) if name == "idle" else compare(name, env, num_envs, args)
        found.append({"env": env, "num_envs": num_envs, **readings})
    args.found.write_text(json.dumps(found), encoding="utf-8")


def launch(name: str, args: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Run a measurement as an MPI job: a rank per worker and rank 0."""
    program = [__file__, "--rank-0", name, "--found", str(folder / name), "--seconds", str(args.seconds)]
    program += ["--repeats", str(args.repeats), "--idle-seconds", str(args.idle_seconds)]
    program += ["--transport", args.transport] if args.transport else []
    workers = usable_cores()
    line = [sys.executable, "-m", "vecenvs.mpi", "-n", str(workers + 1)]
    environ = os.environ | {"PYTHONPATH": str(ROOT), "VECENVS_TEST_JOB": "benchmark"}  # hosts.py passes both on
    if name == "two-hosts":
        sys.path.append(str(ROOT / "tests/mpi"))
        from virtual_hosts import virtual_hosts

        with virtual_hosts(folder, 2) as hosts:
            line += [f"--mpirun-args={hosts.mpirun_args('openmpi', (1, workers))}"]
            subprocess.run(hosts.on(0, *line, *program), check=True, env=environ)
    else:
        subprocess.run([*line, *program], check=True, env=environ)
    found: list[dict[str, Any]] = json.loads((folder / name).read_text(encoding="utf-8"))
    return found


def show(name: str, found: Sequence[dict[str, Any]]) -> None:
    """Print the measured figures beside the promised ones."""
    rows = [
        (f"{name}, {env} n={n}: {figure}", bound, figure != "idle", (Spread(**row[figure]), ""))
        for row, (env, n, figure, bound) in zip(found, PROMISES[name], strict=True)
    ]
    print(promises(rows), flush=True)


def main() -> None:
    """Measure, and write the results."""
    parser = shared.parser(__doc__, PROMISES, seconds=1.0, repeats=7)
    parser.add_argument("--idle-seconds", type=float, default=5.0, help="how long rank 0 computes")
    parser.add_argument("--transport", choices=["messages"], help="other than MpiVecEnv's choice; not kept")
    parser.add_argument("--rank-0", choices=PROMISES, help=argparse.SUPPRESS)
    parser.add_argument("--found", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank_0:
        as_rank_0(args.rank_0, args)
        return
    record = load(RECORD)
    for name in args.only:
        print(f"== {name}", flush=True)
        command = f"python benchmarks/mpi.py --only {name} --seconds {args.seconds:g} --repeats {args.repeats}"
        with tempfile.TemporaryDirectory() as folder:
            record[name] = {**about(command), "results": launch(name, args, Path(folder))}
        show(name, record[name]["results"])
        if not args.transport:
            write(RECORD, record)


if __name__ == "__main__":
    main()
