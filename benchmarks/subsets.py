"""Compare subsets of the envs with lock-step, by turns on the same VecEnvs, and write the readings as JSON.

    python benchmarks/subsets.py                   a few minutes on an idle machine
    python benchmarks/subsets.py --only dummy

For each engine: two halves in rotation (`groups`), whichever half of the rows is ready first (`recv(k, k)`), whichever
rows are (`recv()`), each as a share of the rate of lock-step in the same round; and the time of a bare loop over 8
resets as a share of a masked reset of 8 envs.
Then, over processes, two halves in rotation with a learner that computes as long per row as an env (100 us, 8 envs), as
a share of the limit: half of the rate of bare loops on all cores.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
from shared import RESULTS, about, write

from vecenvs import DummyVecEnv, SubprocVecEnv
from vecenvs.bench.candidates import draw_actions
from vecenvs.bench.contest import run_for
from vecenvs.bench.learner import rows_of
from vecenvs.bench.limit import BareLoops
from vecenvs.bench.workloads import iterations_for, spin, workload
from vecenvs.cpus import usable_cores
from vecenvs.vec_env import VecEnv

ENGINES: dict[str, Callable[[Sequence[Any]], VecEnv]] = {
    "dummy": DummyVecEnv,
    "subproc": lambda fns: SubprocVecEnv(fns, start_method="fork"),
    "caller": lambda fns: SubprocVecEnv(fns, start_method="fork", caller_steps=True),
}
RESETS = 8
WAYS = ("halves", "first half", "first ready")


class Sides:
    """One VecEnv, which is stepped in several ways by turns, and bare envs."""

    def __init__(self, vec: VecEnv, env: Any) -> None:
        self.vec, self.env = vec, env
        self.actions = np.zeros(vec.num_envs, dtype=np.int64)
        self.groups = vec.groups(2)
        self.masks = [np.arange(vec.num_envs) % (vec.num_envs // RESETS) == k for k in range(vec.num_envs // RESETS)]
        vec.reset(seed=0)
        env.reset(seed=0)

    def lock_step(self, end: float) -> int:
        rows = 0
        while time.perf_counter() < end:
            self.vec.step(self.actions)
            rows += self.vec.num_envs
        return rows

    def halves(self, end: float) -> int:
        vec, rows = self.vec, 0
        actions = [self.actions[group] for group in self.groups]
        for group, chosen in zip(self.groups, actions, strict=True):
            vec.send(chosen, group)
        while time.perf_counter() < end:
            for group, chosen in zip(self.groups, actions, strict=True):
                rows += len(vec.recv(indices=group))
                vec.send(chosen, group)
        for group in self.groups:
            vec.recv(indices=group)
        return rows

    def first_half(self, end: float) -> int:
        """Take whichever half of the rows is ready first: another set of envs nearly each time."""
        vec, half, rows = self.vec, self.vec.num_envs // 2, 0
        actions = self.actions[:half]
        vec.send(self.actions)
        while time.perf_counter() < end:
            rows += half
            vec.send(actions, vec.recv(half, half).indices)
        vec.recv(vec.num_envs)
        return rows

    def first_ready(self, end: float) -> int:
        vec, rows = self.vec, 0
        vec.send(self.actions)
        while time.perf_counter() < end:
            ready = vec.recv().indices
            rows += len(ready)
            vec.send(self.actions[: len(ready)], ready)
        vec.recv(vec.num_envs)
        return rows

    def bare_resets(self, end: float) -> int:
        resets, env = 0, self.env
        while time.perf_counter() < end:
            for _ in range(RESETS):
                env.reset()
            resets += RESETS
        return resets

    def masked_resets(self, end: float) -> int:
        resets, vec = 0, self.vec
        while time.perf_counter() < end:
            for mask in self.masks:
                vec.reset(mask)
            resets += RESETS * len(self.masks)
        return resets


class GroupsStepper:
    """Compute on one group of the envs while the others are being stepped: groups in rotation (`VecEnv.groups`).

    The program computes for `iterations` of `spin` per batch of all rows.
    """

    def __init__(self, vec: Any, iterations: int, count: int) -> None:
        self._vec = vec
        self._iterations = iterations // count
        self._groups = vec.groups(count)
        self._actions = cycle(
            [rows_of(actions, group) for group in self._groups]
            for actions in draw_actions(vec.action_space, vec.num_envs)
        )
        for group, actions in zip(self._groups, next(self._actions), strict=True):
            vec.send(actions, group)

    def step(self, count: int) -> int:
        """Take all groups `count` times; return how many of their rows are transitions."""
        vec, made = self._vec, 0
        for given in islice(self._actions, count):
            for group, actions in zip(self._groups, given, strict=True):
                batch = vec.recv(indices=group)
                spin(self._iterations)
                vec.send(actions, group)
                made += int(np.count_nonzero(batch.active))
        return made


def measure_learner(seconds: float, rounds: int) -> dict[str, Any]:
    """Measure two halves in rotation beside a learner, and bare loops, by turns; return the shares of the limit."""
    fn, shares = workload("spin:100us"), []
    with BareLoops(fn, usable_cores()) as loops, ENGINES["subproc"]([fn] * 8) as vec:
        vec.reset(seed=0)
        stepper = GroupsStepper(vec, iterations_for(8 * 100e-6), 2)
        for _ in range(rounds):
            limit = loops.run(seconds, 0.05).rate / 2
            run_for(stepper.step, 0.05)
            shares.append(run_for(stepper.step, seconds).rate / limit)
    return summary(shares)


def summary(shares: list[float]) -> dict[str, Any]:
    """Return the median and the range of some shares, and these."""
    return {"median": statistics.median(shares), "range": [min(shares), max(shares)], "shares": shares}


def rate(side: Callable[[float], int], seconds: float) -> float:
    """Return how many rows, or resets, a side makes per second."""
    start = time.perf_counter()
    count = side(start + seconds)
    return count / (time.perf_counter() - start)


def measure(engine: str, env_id: str, num_envs: int, seconds: float, rounds: int) -> dict[str, Any]:
    """Measure all sides by turns; return their shares."""
    fn = workload(env_id)
    found: dict[str, list[float]] = {name: [] for name in (*WAYS, "masked reset")}
    with ENGINES[engine]([fn] * num_envs) as vec:
        sides = Sides(vec, fn())
        for k in range(rounds + 1):
            whole = rate(sides.lock_step, seconds)
            shares = {
                "halves": rate(sides.halves, seconds) / whole,
                "first half": rate(sides.first_half, seconds) / whole,
                "first ready": rate(sides.first_ready, seconds) / whole,
                "masked reset": rate(sides.masked_resets, seconds) / rate(sides.bare_resets, seconds),
            }
            for name, share in shares.items():
                found[name] += [share] * (k > 0)  # the first round warms up
    return {name: summary(shares) for name, shares in found.items()}


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print and write the shares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=[*ENGINES], default=[*ENGINES])
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--num-envs", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=0.5, help="per reading")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, default=RESULTS / "subsets.json")
    args = parser.parse_args(argv)
    results = {}
    print(f"{args.env}, {args.num_envs} envs; shares of lock-step's rate, and of {RESETS} bare resets'")
    for engine in args.only:
        results[engine] = found = measure(engine, args.env, args.num_envs, args.seconds, args.rounds)
        shares = "  ".join(f"{name} {each['median']:.2f}" for name, each in found.items())
        print(f"{engine:10}{shares}", flush=True)
    learner = measure_learner(args.seconds, args.rounds)
    print(f"halves beside a learner: {learner['median']:.2f} of the limit")
    record = {
        **about(f"python benchmarks/subsets.py --seconds {args.seconds:g} --rounds {args.rounds}"),
        "env": args.env,
        "num_envs": args.num_envs,
        "results": results,
        "learner": learner,
    }
    write(args.json, record)


if __name__ == "__main__":
    main()
