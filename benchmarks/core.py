"""Measure the figures that are promised for the core, and write the readings to benchmarks/results/.

    python benchmarks/core.py                      everything, about ten minutes on an idle machine
    python benchmarks/core.py --only cartpole      one measurement
    python benchmarks/core.py --repeats 3          rougher

This writes one record (JSON) per measurement, a chart for those that have shares, and summary.md: the promises beside
the measured figures.
"""

from __future__ import annotations

import ctypes
import gc
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import psutil
from gymnasium.vector import AsyncVectorEnv
from shared import RESULTS, Promise, about, load, parser, promises, write

from vecenvs import SubprocVecEnv
from vecenvs.bench.child import Child
from vecenvs.bench.workloads import workload

BEST = ("subproc", "subproc:caller")
VIEWS = "subproc:caller,copy=false"  # it matters where a row has 100 KB


@dataclass(frozen=True)
class Shares:
    """A run of `python -m vecenvs bench`."""

    env: str
    num_envs: tuple[int, ...]
    backends: tuple[str, ...] = ("dummy", *BEST)


SHARES = {
    "cartpole": Shares("CartPole-v1", (8, 64)),
    "spin": Shares("spin:100us", (8,)),
    "halfcheetah": Shares("HalfCheetah-v5", (8,)),
    "pong": Shares("ALE/Pong-v5", (8,), ("dummy", *BEST, VIEWS)),
}


def share(num_envs: int, *contestants: str) -> Callable[[dict[str, Any]], float]:
    """Return a function that picks the median share of the best of these contestants from a record."""

    def pick(record: dict[str, Any]) -> float:
        found = [
            row["share"]["median"]
            for row in record["results"]
            if row["num_envs"] == num_envs and row["contestant"] in contestants and row["share"]
        ]
        return max(found, default=0.0)

    return pick


PROMISES = [
    Promise("CartPole, 8 envs, dummy: share of the limit", "cartpole", share(8, "dummy"), 0.50),
    Promise("CartPole, 64 envs, dummy", "cartpole", share(64, "dummy"), 0.47),
    Promise("CartPole, 8 envs, subproc at its best", "cartpole", share(8, *BEST), 0.58),
    Promise("CartPole, 64 envs, subproc at its best", "cartpole", share(64, *BEST), 0.75),
    Promise("CartPole, 64 envs, subproc by default", "cartpole", share(64, "subproc"), 0.68),
    Promise("100 us of CPU per step, 8 envs, subproc at its best", "spin", share(8, *BEST), 0.95),
    Promise("HalfCheetah, 8 envs, subproc at its best", "halfcheetah", share(8, *BEST), 0.80),
    Promise("Pong, raw frames, 8 envs, subproc at its best", "pong", share(8, *BEST, VIEWS), 0.83),
    Promise("start-up of 256 CartPoles over AsyncVectorEnv's", "startup", lambda record: record["ratio"], 0.2, False),
    Promise("memory of the caller per env, in rows", "memory", lambda record: record["rows_per_env"], 2.0, False),
]


def measure_shares(name: str, seconds: float, repeats: int) -> None:
    """Run the benchmark command, which writes the files."""
    case = SHARES[name]
    command = [sys.executable, "-m", "vecenvs", "bench", case.env, "--num-envs", *map(str, case.num_envs)]
    command += ["--backends", *case.backends, "--seconds", f"{seconds:g}", "--repeats", str(repeats)]
    subprocess.run([*command, "--json", RESULTS / f"{name}.json", "--chart", RESULTS / f"{name}.png"], check=True)


def measure_startup(repeats: int) -> dict[str, Any]:
    """Time SubprocVecEnv and AsyncVectorEnv from the constructor to the first observations, by turns."""
    num_envs = 256
    env_fns = [workload("CartPole-v1")] * num_envs
    makers: dict[str, Callable[[], Any]] = {
        "SubprocVecEnv": lambda: SubprocVecEnv(env_fns, start_method="fork"),
        "AsyncVectorEnv": lambda: AsyncVectorEnv(env_fns, context="fork"),
    }
    seconds: dict[str, list[float]] = {name: [] for name in makers}
    for _ in range(repeats):
        for name, make in makers.items():
            start = time.perf_counter()
            vec = make()
            vec.reset(seed=0)
            seconds[name].append(time.perf_counter() - start)
            vec.close()
    ratios = [ours / theirs for ours, theirs in zip(*seconds.values(), strict=True)]
    return {"num_envs": num_envs, "seconds": seconds, "ratios": ratios, "ratio": statistics.median(ratios)}


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
    names = [*SHARES, "startup", "memory"]
    args = parser(__doc__, names, seconds=2.0, repeats=7).parse_args(argv)
    RESULTS.mkdir(exist_ok=True)
    for name in args.only:
        print(f"== {name}", flush=True)
        if name in SHARES:
            measure_shares(name, args.seconds, args.repeats)
            continue
        found = measure_startup(args.repeats) if name == "startup" else measure_memory()
        head = about(f"python benchmarks/core.py --only {name} --repeats {args.repeats}")
        write(RESULTS / f"{name}.json", {**head, **found})
    summary = promises(one.row({name: load(RESULTS / f"{name}.json") for name in names}) for one in PROMISES) + "\n"
    (RESULTS / "summary.md").write_text(summary, encoding="utf-8")
    print(summary, end="")


if __name__ == "__main__":
    main()
