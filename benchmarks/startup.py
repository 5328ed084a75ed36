"""Measure how long a program waits for its first observations, by start method, beside other libraries.

    python benchmarks/startup.py
    python benchmarks/startup.py --rounds 3 --num-envs 8

Sixteen CartPoles by spawn, forkserver and fork: SubprocVecEnv with its default number of workers and with one env per
worker, Stable-Baselines3's SubprocVecEnv and Gymnasium's AsyncVectorEnv, which have one env per process. The clock runs
from the constructor's call to the first observations. Each reading is a program of its own, so that no fork server is
running yet, and the sides take turns. Figures are medians over the rounds of the ratio to SubprocVecEnv's default by
fork in the same round, with the range. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
from gymnasium.vector import AsyncVectorEnv

from vecenvs import SubprocVecEnv

RESULTS = Path(__file__).parent / "results"
METHODS = ("spawn", "forkserver", "fork")
SIDES = ("SubprocVecEnv", "SubprocVecEnv, one env per worker", "SB3 SubprocVecEnv", "Gymnasium AsyncVectorEnv")
UNIT = (SIDES[0], "fork")


def make_vec(side: str, method: str, num_envs: int) -> Callable[[], Any]:
    """Import what the side needs; return the function that makes its vector env."""
    fns = [functools.partial(gym.make, "CartPole-v1")] * num_envs
    if side == SIDES[2]:
        from stable_baselines3.common.vec_env import SubprocVecEnv as Sb3SubprocVecEnv

        return functools.partial(Sb3SubprocVecEnv, fns, start_method=method)
    if side == SIDES[3]:
        return functools.partial(AsyncVectorEnv, fns, context=method)
    num_workers = num_envs if side == SIDES[1] else None
    return functools.partial(SubprocVecEnv, fns, num_workers, start_method=method)


def time_one(side: str, method: str, num_envs: int) -> float:
    """Time a side in this process, which must be a new one."""
    make = make_vec(side, method, num_envs)
    start = time.perf_counter()
    vec = make()
    vec.reset()
    seconds = time.perf_counter() - start
    vec.close()
    return seconds


def time_in_new_program(side: str, method: str, num_envs: int) -> float:
    command = [sys.executable, __file__, "--one", side, method, "--num-envs", str(num_envs)]
    return float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def measure(num_envs: int, rounds: int) -> Iterator[list[dict[str, Any]]]:
    """Measure the sides by turns; yield the records after every round."""
    sides = [(side, method) for method in METHODS for side in SIDES]
    seconds: dict[tuple[str, str], list[float]] = {each: [] for each in sides}
    for _ in range(rounds):
        for each in sides:
            seconds[each].append(time_in_new_program(*each, num_envs))
        yield [_record(each, seconds) for each in sides]


def _record(which: tuple[str, str], seconds: Mapping[tuple[str, str], list[float]]) -> dict[str, Any]:
    ratios = [mine / unit for mine, unit in zip(seconds[which], seconds[UNIT], strict=True)]
    side, method = which
    summary = {"side": side, "method": method, "ratio": statistics.median(ratios), "ratios": ratios}
    return {**summary, "seconds": seconds[which]}


def show(records: Sequence[dict[str, Any]]) -> None:
    print(f"{'':12} {'':34} {'ratio':>7}  {'range':>15}")
    for record in records:
        low, high = min(record["ratios"]), max(record["ratios"])
        print(f"{record['method']:12} {record['side']:34} {record['ratio']:>7.1f}  {low:>7.1f}-{high:<7.1f}")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--num-envs", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, default=RESULTS / "start_methods.json")
    parser.add_argument("--one", nargs=2, metavar=("SIDE", "METHOD"), help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.one:
        print(time_one(*given.one, given.num_envs))
        return
    from shared import about, write  # not at the top, where it would count

    head = about(f"python benchmarks/startup.py --num-envs {given.num_envs} --rounds {given.rounds}")
    for records in measure(given.num_envs, given.rounds):  # an interruption keeps the rounds so far
        write(given.json, {**head, "num_envs": given.num_envs, "sides": records})
    show(records)


if __name__ == "__main__":
    main()
