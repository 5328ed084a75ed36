"""Where the time of a step goes beside a learner: `python -m benchmarks.training.parts [--docs]`.

Envs note when each of their steps begins and ends, and whether their process has slept since the step before (voluntary
context switches). All processes of a machine read the same clock. So a step of the caller divides into

    to the worker   from the call of `step` until the worker's first env steps: actions, command, wake-up
    first env       the worker's first step, with cold caches
    other envs      each further step of the worker
    back            from the end of the last step, of worker or caller, until `step` returns: wake-up, rows

There is one worker process, tied to another core than the caller or to the caller's own. Readings go to
benchmarks/results/parts.json, tables to docs/scaling.md (`--docs` only writes these).
"""

from __future__ import annotations

import argparse
import itertools
import os
import resource
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
from numpy.typing import NDArray

from benchmarks.shared import DOCS, RESULTS, load, table, write, write_sections
from benchmarks.training.candidates import Driven
from benchmarks.training.grid import ENVS
from benchmarks.training.phases import clock
from vecenvs import SubprocVecEnv
from vecenvs.bench.machine import facts, versions
from vecenvs.bench.workloads import Workload
from vecenvs.cpus import allowed_cpus

RECORD = RESULTS / "parts.json"
GAPS = (0, 300, 1000, 5000)
NUM_ENVS = 8
SETTINGS = {"the caller steps half": (2, True), "the worker steps all": (1, False)}  # shards, caller_steps
PLACES = ("another core", "the caller's core")
ROUNDS, SECONDS = 5, 0.4
FEWEST = 8  # steps


class Stamped(gym.Wrapper[Any, Any, Any, Any]):
    """Notes the begin and the end of every step, and how often its thread had slept before."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self._stamps: list[tuple[float, float, int]] = []

    def step(self, action: Any) -> Any:
        slept = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        begin = clock()
        result = self.env.step(action)
        self._stamps.append((begin, clock(), slept))
        return result

    def take_stamps(self) -> list[tuple[float, float, int]]:
        """Return the notes since the last call."""
        stamps, self._stamps = self._stamps, []
        return stamps


@dataclass(frozen=True)
class StampedFn:
    """Makes an env with notes."""

    env_fn: Workload

    def __call__(self) -> Stamped:
        return Stamped(self.env_fn())


def measure(env: str, setting: str, place: str, gaps: Sequence[int], seconds: float) -> Iterator[dict[str, Any]]:
    """Step with each gap; yield medians in microseconds."""
    from benchmarks.training.gaps import Caller

    workers, caller_steps = SETTINGS[setting]
    fns = [StampedFn(ENVS[env].env_fn())] * NUM_ENVS
    allowed = allowed_cpus()
    with SubprocVecEnv(fns, workers, caller_steps=caller_steps) as vec:
        try:
            tie(place, allowed)
            shape = vec.observation_space, vec.action_space
            caller = Caller(Driven(vec, *shape, vec.reset(seed=0), lambda result: result[:3]), NUM_ENVS)
            for gap in gaps:
                vec.env_method("take_stamps")
                calls = calls_of(caller, gap, seconds)
                yield {"gap": gap, **parts_of(calls, np.array(vec.env_method("take_stamps")), vec.stats())}
        finally:
            os.sched_setaffinity(0, allowed)


def tie(place: str, cpus: Sequence[int]) -> None:
    """Tie this process to a core, and its children to the same or to another one."""
    os.sched_setaffinity(0, {cpus[0]})
    for child in psutil.Process().children():
        os.sched_setaffinity(child.pid, {cpus[0] if place == PLACES[1] else cpus[1]})


def calls_of(caller: Any, gap: int, seconds: float) -> NDArray[np.float64]:
    """Return the begin and the end of each call of `step`, with so much inference before each."""
    calls: list[tuple[float, float]] = []
    until = clock() + seconds
    while clock() < until or len(calls) < FEWEST:
        if gap:
            caller.infer(1e-6 * gap)
        begin = clock()
        caller.step()
        calls.append((begin, clock()))
    return np.array(calls)


def parts_of(calls: NDArray[np.float64], stamps: NDArray[np.float64], stats: dict[str, Any]) -> dict[str, float]:
    """Divide the calls into parts, by the notes of each env and step. The first half is warm-up."""
    shard = NUM_ENVS // 2 if stats["caller_steps"] else NUM_ENVS
    begin, end, slept = np.moveaxis(stamps, 2, 0)
    parts = {
        "step": calls[:, 1] - calls[:, 0],
        "to the worker": begin[0] - calls[:, 0],
        "first env": end[0] - begin[0],
        "other envs": (end - begin)[1:shard].mean(0),
        "back": calls[:, 1] - end.max(0),
    }
    half = len(calls) // 2
    found = {name: 1e6 * statistics.median(times[half:]) for name, times in parts.items()}
    asleep = slept[0, 1:] > slept[shard - 1, :-1]  # since the last env's step before
    return {**found, "asleep": float(asleep[half:].mean())}


def run(envs: Sequence[str], gaps: Sequence[int], rounds: int, seconds: float) -> dict[str, Any]:
    """Measure by turns."""
    readings: list[dict[str, Any]] = []
    turns = list(itertools.product(envs, SETTINGS, PLACES))
    for number in range(rounds):
        for env, setting, place in turns[:: -1 if number % 2 else 1]:
            told = {"env": env, "setting": setting, "place": place, "round": number}
            readings += [{**told, **found} for found in measure(env, setting, place, gaps, seconds)]
        print(f"round {number + 1} of {rounds}", flush=True)
    return {"machine": facts(len(allowed_cpus())), "versions": versions("torch"), "readings": readings}


def table_of(record: dict[str, Any]) -> str:
    """Return the medians over the rounds as markdown."""
    names = ("step", "to the worker", "first env", "other envs", "back")
    heading = ["env", "", "worker on", "us of inference", *names, "asleep"]
    rows = []
    cells: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for reading in record["readings"]:
        key = tuple(reading[name] for name in ("env", "setting", "place", "gap"))
        cells.setdefault(key, []).append(reading)
    for (env, setting, place, gap), found in cells.items():
        times = [f"{statistics.median(one[name] for one in found):,.0f}" for name in names]
        asleep = f"{statistics.median(one['asleep'] for one in found):.0%}"
        rows.append([ENVS[env].title, setting, place, str(gap), *times, asleep])
    return table(heading, rows)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docs", action="store_true", help="only write the table of docs/scaling.md")
    parser.add_argument("--envs", nargs="+", choices=ENVS, default=["cartpole", "halfcheetah"])
    parser.add_argument("--gaps", nargs="+", type=int, default=list(GAPS), metavar="US")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"per gap ({SECONDS})")
    parser.add_argument("--record", type=Path, default=RECORD)
    args = parser.parse_args(argv)
    if len(allowed_cpus()) < 2:
        sys.exit("benchmarks.training.parts needs two cores")
    if not args.docs:
        import torch

        torch.set_num_threads(1)
        found = run(args.envs, args.gaps, args.rounds, args.seconds)
        write(args.record, found)
        print(table_of(found))
    if args.record == RECORD:
        write_sections(DOCS / "scaling.md", {"parts": table_of(load(RECORD))})


if __name__ == "__main__":
    main()
