"""Measure what is gained if envs do not wait for each other: async resets, and batches of the envs that are ready.

    python benchmarks/async_reset.py                       both measurements, about five minutes
    python benchmarks/async_reset.py --only resets --seconds 2 --rounds 2

*resets*: 32 envs whose step sleeps 1 ms and whose reset sleeps 200 ms; 5 % of the steps end an episode. The ceiling is
32 independent loops, each a process with one env that steps and resets it and does nothing else. Against it: send and
recv with autoreset="async", one env per worker and several (there each reset has a thread), the same mode by `step`,
and lock-step with autoreset="same_step".

*uneven*: envs whose steps sleep a random time, uniform in 0.1 to 2 ms; no resets. Lock-step waits for the slowest env,
send / recv of half batches continues with the half that is ready first. The ceiling: independent loops.

Sides take turns in rounds, each made anew, and the ceiling is measured in each round. Figures are medians over the
rounds of the rate (transitions per second) as a share of that round's ceiling, with the range. The envs draw their
episode ends and times from generators seeded by their index, so that every side has the same ones. Sleeping envs need
few cores, but idle ones.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from shared import RESULTS, about, write

from vecenvs import SubprocVecEnv, VecEnv

TARGET = 0.9
HALF, LOCK_STEP = "half batches send/recv", "lock-step step"
WARM_UP = 0.25  # of the time measured


@dataclass(frozen=True)
class Pace:
    """How long things take, in seconds. A step sleeps a time drawn uniformly from `step`."""

    step: tuple[float, float]
    reset: float
    end: float  # probability that a step ends the episode


RESETS = Pace(step=(1e-3, 1e-3), reset=0.2, end=0.05)
UNEVEN = Pace(step=(1e-4, 2e-3), reset=0.0, end=0.0)


class SleepingEnv(gym.Env[Any, Any]):
    """Sleep in every step and reset, and do nothing else."""

    def __init__(self, pace: Pace, index: int) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (4,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.pace, self.rng = pace, np.random.default_rng(index)
        self.obs = np.zeros(4, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        time.sleep(self.pace.reset)
        return self.obs, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(self.rng.uniform(*self.pace.step))
        return self.obs, 1.0, bool(self.rng.random() < self.pace.end), False, {}


def fns(pace: Pace, num_envs: int) -> list[Callable[[], SleepingEnv]]:
    return [functools.partial(SleepingEnv, pace, i) for i in range(num_envs)]


# The ceiling


def ceiling(pace: Pace, num_envs: int, seconds: float) -> float:
    """Return the transitions per second of independent loops, all at once."""
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(num_envs), context.SimpleQueue()
    loops = [context.Process(target=_loop, args=(pace, i, seconds, barrier, results)) for i in range(num_envs)]
    for loop in loops:
        loop.start()
    rates = [results.get() for _ in loops]
    for loop in loops:
        loop.join()
    return float(sum(rates))


def _loop(pace: Pace, index: int, seconds: float, barrier: Any, results: Any) -> None:
    env = SleepingEnv(pace, index)
    env.reset()
    barrier.wait()
    _steps_until(env, time.perf_counter() + WARM_UP * seconds)
    start = time.perf_counter()
    steps = _steps_until(env, start + seconds)
    results.put(steps / (time.perf_counter() - start))


def _steps_until(env: SleepingEnv, end: float) -> int:
    steps = 0
    while time.perf_counter() < end:
        over = env.step(0)[2]
        steps += 1
        if over:
            env.reset()
    return steps


# The sides: each makes transitions until a given time and returns their number


def lock_step(vec: VecEnv, end: float, state: dict[str, Any]) -> int:
    actions = np.zeros(vec.num_envs, np.int64)
    count = 0
    while time.perf_counter() < end:
        vec.step(actions)
        count += int(vec.active.sum())
    return count


def first_ready(vec: VecEnv, end: float, state: dict[str, Any], batch_size: int = 1) -> int:
    """Step each env as soon as its row is ready, by send and recv, in batches of `batch_size` if that is above 1."""
    if not state:
        vec.send(np.zeros(vec.num_envs, np.int64))
        state["exact"] = batch_size if batch_size > 1 else None
    count = 0
    while time.perf_counter() < end:
        batch = vec.recv(min_envs=batch_size, max_envs=state["exact"])
        ready = batch.indices[~batch.dones]  # an env that has ended is being reset and needs no action
        if len(ready):
            vec.send(np.zeros(len(ready), np.int64), ready)
        count += int(batch.active.sum())
    return count


@dataclass(frozen=True)
class Side:
    """One way to step the envs."""

    name: str
    num_workers: int
    autoreset: str
    run: Callable[[VecEnv, float, dict[str, Any]], int]

    def rate(self, pace: Pace, num_envs: int, seconds: float) -> float:
        with SubprocVecEnv(fns(pace, num_envs), self.num_workers, autoreset=self.autoreset) as vec:
            vec.reset()
            state: dict[str, Any] = {}
            self.run(vec, time.perf_counter() + WARM_UP * seconds, state)
            start = time.perf_counter()
            count = self.run(vec, start + seconds, state)
            return count / (time.perf_counter() - start)


def sides_of_resets(n: int) -> list[Side]:
    several = [k for k in (n // 2, n // 4) if k > 1]
    return [
        *(Side(f"async send/recv, {k} workers", k, "async", first_ready) for k in (n, *several)),
        Side(f"async step, {n} workers", n, "async", lock_step),
        Side(f"same_step step, {n} workers", n, "same_step", lock_step),
    ]


def sides_of_uneven(n: int) -> list[Side]:
    return [
        Side(HALF, n, "async", functools.partial(first_ready, batch_size=n // 2)),
        Side("first ready send/recv", n, "async", first_ready),
        Side(LOCK_STEP, n, "same_step", lock_step),
    ]


def measure(name: str, pace: Pace, n: int, sides: Sequence[Side], seconds: float, rounds: int) -> dict[str, Any]:
    """Measure the sides by turns; return the record."""
    ceilings: list[float] = []
    rates: dict[str, list[float]] = {side.name: [] for side in sides}
    for _ in range(rounds):
        ceilings.append(ceiling(pace, n, seconds))
        for side in sides:
            rates[side.name].append(side.rate(pace, n, seconds))
    found = {}
    for label, of_rounds in rates.items():
        shares = [rate / top for rate, top in zip(of_rounds, ceilings, strict=True)]
        found[label] = {
            "share": statistics.median(shares),
            "range": [min(shares), max(shares)],
            "rates": of_rounds,
        }
    return {"name": name, "num_envs": n, "pace": vars(pace), "ceilings": ceilings, "sides": found}


def show(record: dict[str, Any]) -> None:
    ceilings = record["ceilings"]
    print(f"\n{record['name']}: {record['num_envs']} envs; ceiling {statistics.median(ceilings):,.0f} transitions/s")
    print(f"{'':34} {'of the ceiling':>14}  {'range':>13} {'transitions/s':>14}")
    for side, found in record["sides"].items():
        low, high = found["range"]
        rate = statistics.median(found["rates"])
        print(f"{side:34} {found['share']:>14.3f}  {low:>6.3f}-{high:.3f} {rate:>14,.0f}")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=["resets", "uneven"])
    parser.add_argument("--num-envs", type=int, default=32, help="of `resets`")
    parser.add_argument("--uneven-envs", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, default=RESULTS / "async_reset.json")
    given = parser.parse_args(argv)
    wanted = {
        "resets": (RESETS, given.num_envs, sides_of_resets(given.num_envs)),
        "uneven": (UNEVEN, given.uneven_envs, sides_of_uneven(given.uneven_envs)),
    }
    command = f"python benchmarks/async_reset.py --seconds {given.seconds:g} --rounds {given.rounds}"
    record = about(command)
    for name, (pace, n, sides) in wanted.items():
        if given.only in (None, name):
            record[name] = measure(name, pace, n, sides, given.seconds, given.rounds)
            show(record[name])
    write(given.json, record)
    if "resets" in record:
        best = [name for name, found in record["resets"]["sides"].items() if found["share"] >= TARGET]
        print(f"\nat or above {TARGET} of the ceiling in `resets`: {'; '.join(best) or 'none'}")
    if "uneven" in record:
        half, whole = (record["uneven"]["sides"][name]["rates"] for name in (HALF, LOCK_STEP))
        print(f"half batches over lock-step: {statistics.median(a / b for a, b in zip(half, whole, strict=True)):.2f}")


if __name__ == "__main__":
    main()
