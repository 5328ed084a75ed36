"""Measure the ray backend, and keep the readings in benchmarks/results/.

    python benchmarks/on_ray.py                    everything, some ten minutes on an idle machine
    python benchmarks/on_ray.py --only same-node   one measurement

* same-node: rows in shared memory, beside SubprocVecEnv on the same work.
* second-node: rows in actor calls, on a second node that a cluster on this machine pretends to have; beside tianshou's
  RayVectorEnv, if it is installed, which has an actor and a call per env.
* startup: 64 envs on a running Ray, from the constructor's call to the first observations.

Shares are of the limit of `python -m vecenvs bench`: see README.md. (A file called ray.py here would hide Ray.)
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).parent / "results"
# Read by Ray's daemons when they start. Ray runs its workers at low priority unless told otherwise.
os.environ.update(RAY_worker_niceness="0", RAY_USAGE_STATS_ENABLED="0", RAY_AUTH_MODE="disabled")
THERE = {"num_cpus": 1, "resources": {"there": 0.01}}


@dataclass
class Steps:
    """Steps a vec with batches of actions drawn beforehand."""

    vec: Any

    def __post_init__(self) -> None:
        self.vec.reset()
        n = getattr(self.vec, "num_envs", None) or len(self.vec)
        space = self.vec.action_space
        single = space[0] if isinstance(space, (list, tuple)) else space
        single.seed(0)
        self.actions = cycle([np.array([single.sample() for _ in range(n)]) for _ in range(64)])
        self.num_envs = n

    def step(self, count: int) -> int:
        """Step all envs so many times."""
        for _ in range(count):
            self.vec.step(next(self.actions))
        return count * self.num_envs

    def close(self) -> None:
        """End it."""
        self.vec.close()


class TianshouSteps(Steps):
    """Tianshou's vector envs leave resets to their user."""

    def step(self, count: int) -> int:
        for _ in range(count):
            _, _, terminated, truncated, _ = self.vec.step(next(self.actions))
            ended = np.flatnonzero(terminated | truncated)
            if len(ended):
                self.vec.reset(ended)
        return count * self.num_envs


@dataclass
class Entrant:
    """A contestant: a name, and how to make it for so many envs."""

    name: str
    build: Callable[[int], Any]
    steps: type[Steps] = Steps

    def make(self, num_envs: int) -> Steps:
        return self.steps(self.build(num_envs))


def entrants(env_fn: Any, workers: int, **kwargs: Any) -> dict[str, Entrant]:
    """All that takes part, by name. `kwargs` are RayVecEnv's."""
    from vecenvs import SubprocVecEnv
    from vecenvs.backends.ray import RayVecEnv

    def tianshou(n: int) -> Any:
        from tianshou.env import RayVectorEnv

        return RayVectorEnv([env_fn] * n)

    made = [
        Entrant("subproc", lambda n: SubprocVecEnv([env_fn] * n, workers)),
        Entrant("ray", lambda n: RayVecEnv([env_fn] * n, workers, **kwargs)),
        Entrant("ray:messages", lambda n: RayVecEnv([env_fn] * n, workers, transport="messages", **kwargs)),
        Entrant("tianshou RayVectorEnv", tianshou, TianshouSteps),
    ]
    return {entrant.name: entrant for entrant in made}


def shares(env: str, num_envs: int, names: Sequence[str], args: argparse.Namespace, **kwargs: Any) -> dict[str, Any]:
    """Let contestants take turns between readings of the limit; give the median share of each, and every reading."""
    from vecenvs.bench.limit import BareLoops
    from vecenvs.bench.measure import LIMIT, contest
    from vecenvs.bench.workloads import workload
    from vecenvs.cpus import usable_cores

    env_fn, cores = workload(env), usable_cores()
    there = entrants(env_fn, cores, **kwargs)
    with BareLoops(env_fn, cores) as loops:
        turns = list(
            contest(
                [there[name] for name in names],
                loops,
                num_envs,
                seconds=args.seconds,
                repeats=args.repeats,
                weigh=lambda *_: None,
            )
        )
    limits = [turn.timing.rate for turn in turns if turn.contestant == LIMIT and turn.timing]
    found: dict[str, Any] = {
        "env": env,
        "num_envs": num_envs,
        "limits": limits,
        "share": {},
        "rates": {},
        "failures": {},
    }
    for name in names:
        mine = [turn for turn in turns if turn.contestant == name]
        rates = [(turn.round, turn.timing.rate) for turn in mine if turn.timing]
        found["rates"][name] = [rate for _, rate in rates]
        failures = [turn.failure for turn in mine if turn.failure]
        if failures:
            found["failures"][name] = failures[0]
        each = [2 * rate / (limits[number] + limits[number + 1]) for number, rate in rates]
        found["share"][name] = statistics.median(each) if each else None
        print(f"  {env} n={num_envs}  {name:24} {found['share'][name] or 0:.2f} of the limit", flush=True)
    return found


def same_node(args: argparse.Namespace) -> list[dict[str, Any]]:
    """On a Ray of this machine."""
    import ray

    ray.init(address="local", include_dashboard=False, logging_level="error")
    try:
        names = ["subproc", "ray"]
        return [shares("CartPole-v1", 64, names, args), shares("spin:100us", 8, names, args)]
    finally:
        ray.shutdown()


def second_node(args: argparse.Namespace) -> list[dict[str, Any]]:
    """On the second of two nodes that this machine pretends to be."""
    import ray
    from ray.cluster_utils import Cluster

    from vecenvs.cpus import usable_cores

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=usable_cores(), resources={"there": 1})
        ray.init(address=cluster.address, logging_level="error")
        names = ["ray", "tianshou RayVectorEnv"]
        return [
            shares(env, n, names, args, actor_options=THERE) for env, n in (("spin:100us", 64), ("CartPole-v1", 64))
        ]
    finally:
        ray.shutdown()
        cluster.shutdown()


def startup(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Make 64 envs on a running Ray, by turns."""
    import ray

    from vecenvs.bench.workloads import workload
    from vecenvs.cpus import usable_cores

    ray.init(address="local", include_dashboard=False, logging_level="error")
    there = entrants(workload("CartPole-v1"), usable_cores())
    seconds: dict[str, list[float]] = {"ray": [], "tianshou RayVectorEnv": []}
    try:
        for _ in range(args.repeats):
            for name, taken in seconds.items():
                begun = time.perf_counter()
                try:
                    vec = there[name].make(64)
                except ImportError as error:
                    print(f"  {name}: {error}")
                    continue
                taken.append(time.perf_counter() - begun)
                vec.close()
    finally:
        ray.shutdown()
    medians = {name: statistics.median(taken) for name, taken in seconds.items() if taken}
    print("  start-up of 64 envs: " + ", ".join(f"{name} {median:.2f} s" for name, median in medians.items()))
    ratio = medians["ray"] / medians["tianshou RayVectorEnv"] if len(medians) == 2 else None
    return [{"num_envs": 64, "seconds": seconds, "ratio": ratio}]


MEASUREMENTS = {"same-node": same_node, "second-node": second_node, "startup": startup}


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=MEASUREMENTS, default=[*MEASUREMENTS])
    parser.add_argument("--seconds", type=float, default=2.0, help="per reading")
    parser.add_argument("--repeats", type=int, default=5, help="rounds")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the records")
    args = parser.parse_args()

    from vecenvs.bench.machine import facts, versions
    from vecenvs.cpus import usable_cores

    args.results.mkdir(parents=True, exist_ok=True)
    for name in args.only:
        print(f"== {name}", flush=True)
        command = f"python benchmarks/on_ray.py --only {name} --seconds {args.seconds:g} --repeats {args.repeats}"
        record = {"command": command, "machine": facts(usable_cores()), "versions": versions()}
        record["results"] = MEASUREMENTS[name](args)
        (args.results / f"ray-{name}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
