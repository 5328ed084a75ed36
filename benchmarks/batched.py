"""Measure batched envs, and keep the readings in benchmarks/results/batched.json.

    python benchmarks/batched.py                                          on this machine, about ten minutes
    python benchmarks/batched.py --only envpool --minutes 4               one measurement; the file keeps the others
    python benchmarks/batched.py --only mpi ray                           two hosts (root), about six minutes
    python benchmarks/batched.py --only native --key 4096 --minutes 1     one number of envs
    python benchmarks/batched.py --docs                                   measures nothing: writes docs/benchmarks.md

* native: NumPy CartPole by turns with one native loop per core, and what a VecEnv adds to the calling process once it
  has been stepped, shared columns included, in rows (observation, reward, two flags) per env.
* envpool: EnvPool with one thread for each of two workers, by turns with EnvPool itself with two threads.
* mpi, ray: the same with one worker on each of two hosts, which are network namespaces of this machine.

Every row counts, on both sides. A measurement takes as many rounds as fit into its --minutes.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import batched_envpool
import batched_hosts
import batched_native
from batched_tables import PAGES
from scaling_tables import write_docs
from shared import RESULTS, about, load, write

MINUTES = {"native": 5.0, "envpool": 4.0, "mpi": 3.0, "ray": 3.0}
HERE = ("native", "envpool")


def native(args: argparse.Namespace, minutes: float) -> Iterator[tuple[str, dict[str, Any]]]:
    """Measure NumPy CartPole."""
    sizes = [size for size in batched_native.SIZES if not args.key or size in args.key]
    for num_envs, rounds in batched_envpool.shared_out(sizes, minutes, args.rounds):
        found = batched_native.measure(num_envs, args.seconds, rounds)
        batched_native.show(num_envs, found)
        yield str(num_envs), found


def envpool(args: argparse.Namespace, minutes: float, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Measure EnvPool: here, or over two hosts by the engine of this name."""
    cells = [
        (env, size)
        for env in batched_envpool.ENVS
        for size in batched_envpool.SIZES
        if (not args.key or size in args.key) and (not args.envs or env in args.envs)
    ]
    of_run = {"seconds": args.seconds, "rounds": args.rounds, "minutes": minutes}
    if name == "envpool":
        engines = {engine: batched_envpool.on_this_host(engine) for engine in batched_envpool.ENGINES}
        results = batched_envpool.measure_all(cells, engines, **of_run)
    else:
        results = batched_hosts.measure_all(name, cells, **of_run)
    for found in results:
        batched_envpool.show(found)
        yield f"{found['env']} {found['num_envs']}", found


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, and write the results after each cell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=MINUTES, default=HERE, help="these measurements")
    parser.add_argument("--key", type=int, nargs="+", metavar="N", help="these numbers of envs")
    parser.add_argument("--envs", nargs="+", choices=batched_envpool.ENVS, help="these of EnvPool's envs")
    parser.add_argument("--minutes", type=float, help="for each measurement")
    parser.add_argument("--rounds", type=int, default=9, help="at most")
    parser.add_argument("--seconds", type=float, default=0.3, help="per reading")
    parser.add_argument("--json", type=Path, default=RESULTS / "batched.json", help="file for the readings")
    parser.add_argument("--docs", action="store_true", help="write the section of docs/benchmarks.md from the file")
    args = parser.parse_args(argv)
    record = load(args.json)
    if args.docs:
        write_docs(record, PAGES)
        return
    for name in args.only:
        minutes = MINUTES[name] if args.minutes is None else args.minutes
        command = f"python benchmarks/batched.py --only {name} --minutes {minutes:g} --seconds {args.seconds:g}"
        print(f"== {name}", flush=True)
        head = about(command)
        for cell, found in native(args, minutes) if name == "native" else envpool(args, minutes, name):
            record.setdefault(name, {})[cell] = {**head, **found}
            write(args.json, record)


if __name__ == "__main__":
    main()
