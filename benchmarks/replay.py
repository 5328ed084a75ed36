"""Measure the replay server, and keep the readings in benchmarks/results/replay.json.

    python benchmarks/replay.py                    everything, about three minutes on an idle machine
    python benchmarks/replay.py --only sampling    one measurement

* insertion: CartPole transitions per second into the server, in fragments of 256, over those of the pattern that sends
  one actor call per transition into an actor that keeps them in arrays. Neither side waits for an answer in between;
  both are done when the actor has stored everything. Several sizes of fragments are measured.
* sampling: batches of 256 CartPole transitions per second from the server, over cpprb called directly in this process.
* contention: batches per second from the server while another actor inserts as fast as the server lets it, over those
  without insertion; and the insertion, over that without sampling. The record has the CPU time of the three processes,
  in cores: where their sum is near the number of cores, the machine is the limit. Once with a learner that does nothing
  but sample, once with one that sleeps a millisecond after each batch, as if for its GPU.

Sides take turns in rounds. A figure is the median over the rounds of the ratio within a round, with the range.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
import shared
from shared import RAY_ENVIRONMENT, RESULTS, about, load, write

from vecenvs import make_vec_env
from vecenvs.replay import Explorer, ReplayServer

os.environ.update(RAY_ENVIRONMENT)
CAPACITY, BATCH, FRAGMENT = 100_000, 256, 256
SIZES = (64, FRAGMENT, 1024)  # of fragments
WARM_UP = 0.25  # of the time measured
Columns = dict[str, Any]


class Random:
    """A policy that acts at random."""

    def __init__(self, num_envs: int) -> None:
        self.rng, self.num_envs = np.random.default_rng(0), num_envs

    def act(self, obs: Any) -> Any:
        return self.rng.integers(2, size=self.num_envs)


class OneByOne:
    """The actor of the one-call-per-transition pattern: a ring of arrays."""

    def __init__(self, capacity: int) -> None:
        self.obs = np.empty((capacity, 4), np.float32)
        self.next_obs = np.empty((capacity, 4), np.float32)
        self.action = np.empty(capacity, np.int64)
        self.reward = np.empty(capacity, np.float32)
        self.terminated = np.empty(capacity, bool)
        self.capacity, self.added = capacity, 0

    def add(self, obs: Any, action: Any, reward: Any, next_obs: Any, terminated: Any) -> None:
        place = self.added % self.capacity
        self.obs[place], self.action[place], self.reward[place] = obs, action, reward
        self.next_obs[place], self.terminated[place] = next_obs, terminated
        self.added += 1

    def count(self) -> int:
        return self.added


class Pump:
    """An actor that inserts without pause."""

    def __init__(self, inserter: Any, fragments: Sequence[Columns]) -> None:
        self.inserter, self.fragments = inserter, fragments

    def pid(self) -> int:
        return os.getpid()

    def run(self, seconds: float) -> float:
        """Insert for this many seconds; return the transitions per second."""
        begin, count = time.perf_counter(), 0
        while time.perf_counter() < begin + seconds:
            for fragment in self.fragments:
                self.inserter.add(fragment)
                count += FRAGMENT
        self.inserter.flush()
        return count / (time.perf_counter() - begin)


def transitions(count: int) -> Columns:
    """Return transitions of CartPole under random actions."""
    vec = make_vec_env("CartPole-v1", num_env=8, seed=0, backend="dummy")
    explorer, parts, collected = Explorer(vec, Random(8), fragment_size=8192), [], 0
    while collected < count:
        parts.append(explorer.collect())
        collected += len(parts[-1]["reward"])
    explorer.close()
    return {name: np.concatenate([part[name] for part in parts])[:count] for name in parts[0]}


def fragments(columns: Columns, size: int) -> list[Columns]:
    """Cut columns into fragments of the same size."""
    return [
        {name: column[begin : begin + size] for name, column in columns.items()}
        for begin in range(0, len(columns["reward"]) - size + 1, size)
    ]


def server() -> ReplayServer:
    """Start a replay server for CartPole."""
    env = gym.make("CartPole-v1")
    return ReplayServer(env.observation_space, env.action_space, CAPACITY, batch_size=BATCH, seed=0)


def rate(step: Callable[[], int], seconds: float, finish: Callable[[], None] = lambda: None) -> float:
    """Return the sum of what `step` returns per second. The time includes `finish`."""
    begin = time.perf_counter()
    while time.perf_counter() < begin + WARM_UP * seconds:
        step()
    finish()
    count, begin = 0, time.perf_counter()
    while time.perf_counter() < begin + seconds:
        count += step()
    finish()
    return count / (time.perf_counter() - begin)


def summary(over: Sequence[float], under: Sequence[float]) -> dict[str, Any]:
    """Return the ratio of two sides, round by round."""
    ratios = [a / b for a, b in zip(over, under, strict=True)]
    return {"ratio": statistics.median(ratios), "range": [min(ratios), max(ratios)]}


def insertion(args: argparse.Namespace) -> dict[str, Any]:
    """Measure fragments over one call per transition."""
    import ray

    columns = transitions(8192)
    names = ("obs", "action", "reward", "next_obs", "terminated")
    single = [tuple(columns[name][row] for name in names) for row in range(1000)]
    actor = ray.remote(OneByOne).options(num_cpus=0).remote(CAPACITY)
    ray.get(actor.count.remote())
    replay = server()
    inserter = replay.inserter()
    sides: dict[str, list[float]] = {"one call per transition": [], **{f"fragments of {size}": [] for size in SIZES}}

    def one_by_one() -> int:
        for row in single:
            actor.add.remote(*row)
        ray.get(actor.count.remote())  # once per thousand calls, or the queue would grow without bound
        return len(single)

    try:
        for _ in range(args.repeats):
            sides["one call per transition"].append(rate(one_by_one, args.seconds))
            for size in SIZES:
                parts = fragments(columns, size)

                def whole(parts: Sequence[Columns] = parts, size: int = size) -> int:
                    for part in parts:
                        inserter.add(part)
                    return size * len(parts)

                sides[f"fragments of {size}"].append(rate(whole, args.seconds, inserter.flush))
    finally:
        replay.stop()
        ray.kill(actor)
    baseline = sides["one call per transition"]
    ratios = {name: summary(rates, baseline) for name, rates in sides.items() if rates is not baseline}
    return {"transitions_per_second": sides, "over_one_call_per_transition": ratios}


def sampling(args: argparse.Namespace) -> dict[str, Any]:
    """Measure the server over cpprb in this process."""
    import cpprb

    columns = transitions(CAPACITY)
    layout = {name: {"shape": column.shape[1:] or 1, "dtype": column.dtype} for name, column in columns.items()}
    direct = cpprb.ReplayBuffer(CAPACITY, layout)
    direct.add(**columns)
    replay = filled(columns)

    sides: dict[str, list[float]] = {"server": [], "cpprb": []}
    try:
        for _ in range(args.repeats):
            sides["cpprb"].append(rate(lambda: len([direct.sample(BATCH)]), args.seconds))
            sides["server"].append(rate(lambda: len([replay.sample()]), args.seconds))
    finally:
        replay.stop()
    return {"batches_per_second": sides, "over_cpprb": summary(sides["server"], sides["cpprb"])}


def filled(columns: Columns) -> ReplayServer:
    """Start a server and fill it."""
    replay = server()
    inserter = replay.inserter()
    for part in fragments(columns, 1000):
        inserter.add(part)
    inserter.flush()
    return replay


def contention(args: argparse.Namespace) -> dict[str, Any]:
    """Measure the server under insertion over the server alone."""
    import ray

    columns = transitions(CAPACITY)
    replay = filled(columns)
    pump = ray.remote(Pump).options(num_cpus=0).remote(replay.inserter(), fragments(columns, FRAGMENT)[:16])
    pids = {"learner": os.getpid(), "server": replay.call(_pid), "inserter": ray.get(pump.pid.remote())}
    if args.pin:
        pin(pids)
    found: dict[str, Any] = {}
    try:
        for pause in (0.0, 1e-3):
            sides: dict[str, list[float]] = {"alone": [], "under insertion": []}
            inserted: dict[str, list[float]] = {"alone": [], "under sampling": []}
            cores: dict[str, list[float]] = {name: [] for name in pids}

            def step(pause: float = pause) -> int:
                replay.sample()
                if pause:
                    time.sleep(pause)
                return 1

            for _ in range(args.repeats):
                sides["alone"].append(rate(step, args.seconds))
                running = pump.run.remote((1 + 2 * WARM_UP) * args.seconds)
                rate(step, WARM_UP * args.seconds)  # the inserter has begun by now
                before = replay.stats()["inserted"]
                with cpu_seconds(pids) as used:
                    begin = time.perf_counter()
                    sides["under insertion"].append(rate(step, args.seconds / (1 + WARM_UP)))
                    elapsed = time.perf_counter() - begin
                inserted["under sampling"].append((replay.stats()["inserted"] - before) / elapsed)
                for name, seconds in used.items():
                    cores[name].append(seconds / elapsed)
                ray.get(running)
                inserted["alone"].append(ray.get(pump.run.remote(args.seconds)))
            found[f"learner that pauses {1e3 * pause:g} ms"] = {
                "batches_per_second": sides,
                "transitions_inserted_per_second": inserted,
                "cores_under_insertion": {name: statistics.median(each) for name, each in cores.items()},
                "sampling_over_alone": summary(sides["under insertion"], sides["alone"]),
                "insertion_over_alone": summary(inserted["under sampling"], inserted["alone"]),
            }
    finally:
        replay.stop()
        ray.kill(pump)
    return found


def pin(pids: dict[str, int]) -> None:
    """Pin the server to one core, and learner and inserter to another. This needs Linux and two cores."""
    first, second = sorted(os.sched_getaffinity(0))[:2]
    for name, pid in pids.items():
        for thread in psutil.Process(pid).threads():
            os.sched_setaffinity(thread.id, [first if name == "server" else second])


def _pid(_: Any) -> int:
    return os.getpid()


@contextmanager
def cpu_seconds(pids: dict[str, int]) -> Iterator[dict[str, float]]:
    """Yield a dict which has the CPU time of each process once the context has ended."""
    processes = {name: psutil.Process(pid) for name, pid in pids.items()}
    before = {name: sum(process.cpu_times()[:2]) for name, process in processes.items()}
    used: dict[str, float] = {}
    yield used
    used.update({name: sum(process.cpu_times()[:2]) - before[name] for name, process in processes.items()})


MEASUREMENTS = {"insertion": insertion, "sampling": sampling, "contention": contention}


def show(record: Any, label: str = "") -> None:
    """Print all ratios of a record, at any depth."""
    if not isinstance(record, dict):
        return
    if "ratio" in record:
        low, high = record["range"]
        print(f"{label.strip():80} {record['ratio']:8.2f}  {low:.2f}-{high:.2f}", flush=True)
        return
    for name, inner in record.items():
        show(inner, f"{label} {name}")


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, and write the results."""
    import ray

    parser = shared.parser(__doc__, MEASUREMENTS, seconds=1.0, repeats=7)
    parser.add_argument("--pin", action="store_true", help="contention: the server on a core of its own")
    parser.add_argument("--json", type=Path, default=RESULTS / "replay.json")
    args = parser.parse_args(argv)
    record = load(args.json)
    ray.init(address="local", include_dashboard=False, logging_level="error")
    try:
        for name in args.only:
            print(f"== {name}", flush=True)
            command = f"python benchmarks/replay.py --only {name} --seconds {args.seconds:g} --repeats {args.repeats}"
            command += " --pin" if args.pin else ""
            record[name] = {**about(command, "cpprb"), "results": MEASUREMENTS[name](args)}
            show(record[name]["results"])
    finally:
        ray.shutdown()
    write(args.json, record)


if __name__ == "__main__":
    main()
