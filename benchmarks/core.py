"""Measure start-up and memory, for which figures are promised, and write the readings to benchmarks/results/.

    python benchmarks/core.py                      both
    python benchmarks/core.py --only startup       one of them
    python benchmarks/core.py --repeats 3          rougher

This writes one record (JSON) per measurement, and summary.md: the promises beside the measured figures. The promised
shares of the limit are those of `python -m benchmarks.peers`.
"""

from __future__ import annotations

import ctypes
import gc
import statistics
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import psutil
from shared import RESULTS, Promise, about, load, parser, promises, write
from startup import SIDES, time_in_new_program

from vecenvs import SubprocVecEnv
from vecenvs.bench.child import Child
from vecenvs.bench.workloads import workload

PROMISES = [
    Promise("start-up of 256 CartPoles over AsyncVectorEnv's", "startup", lambda record: record["ratio"], 0.2, False),
    Promise("memory of the caller per env, in rows", "memory", lambda record: record["rows_per_env"], 2.0, False),
]


def measure_startup(repeats: int) -> dict[str, Any]:
    """Time SubprocVecEnv and AsyncVectorEnv from the constructor to the first observations, by turns."""
    sides = SIDES[0], SIDES[-1]
    seconds = [[time_in_new_program(side, "fork", 256) for side in sides] for _ in range(repeats)]
    ratios = [ours / theirs for ours, theirs in seconds]
    return {"num_envs": 256, "sides": sides, "seconds": seconds, "ratios": ratios, "ratio": statistics.median(ratios)}


def measure_memory() -> dict[str, Any]:
    """Measure the memory of the calling process with few and with many envs: the difference is what an env adds."""
    few, many = 256, 1024
    row = 84 * 84 * 4
    grown = {num_envs: _in_fresh_process(num_envs) for num_envs in (few, many)}
    per_env = (grown[many] - grown[few]) / (many - few)
    return {"row_bytes": row, "caller_bytes": grown, "bytes_per_env": per_env, "rows_per_env": per_env / row}


def _in_fresh_process(num_envs: int) -> int:
    child = Child(_weigh_caller, num_envs)
    try:
        return int(child.receive())
    finally:
        child.close()


def _weigh_caller(connection: Connection, num_envs: int) -> None:
    """Send how much memory this process gains with a VecEnv that has been stepped.

    Shared rows count if they are touched here. The arrays that `step` returned have been freed, since they belong to
    the program, not to the VecEnv.
    """
    env_fn = workload("rows:84x84x4")
    _step_some(SubprocVecEnv([env_fn] * 2, start_method="fork")).close()
    before = _resident()
    vec = _step_some(SubprocVecEnv([env_fn] * num_envs, start_method="fork"))
    gained = _resident() - before
    vec.close()
    connection.send(gained)


def _step_some(vec: Any) -> Any:
    vec.reset(seed=0)
    for _ in range(5):
        vec.step([0] * vec.num_envs)
    return vec


def _resident() -> int:
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)  # returns freed memory to the system, so that it does not count
    return int(psutil.Process().memory_info().rss)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, then print and write the summary."""
    names = ["startup", "memory"]
    args = parser(__doc__, names, seconds=0.0, repeats=7).parse_args(argv)
    RESULTS.mkdir(exist_ok=True)
    for name in args.only:
        print(f"== {name}", flush=True)
        found = measure_startup(args.repeats) if name == "startup" else measure_memory()
        head = about(f"python benchmarks/core.py --only {name} --repeats {args.repeats}")
        write(RESULTS / f"{name}.json", {**head, **found})
    summary = promises(one.row({name: load(RESULTS / f"{name}.json") for name in names}) for one in PROMISES) + "\n"
    (RESULTS / "summary.md").write_text(summary, encoding="utf-8")
    print(summary, end="")


if __name__ == "__main__":
    main()
