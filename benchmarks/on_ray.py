"""Measure the ray backend, and keep the readings in benchmarks/results/on_ray.json.

    python benchmarks/on_ray.py                    everything, about three minutes on an idle machine
    python benchmarks/on_ray.py --only cartpole    one measurement; the file keeps the others

* cartpole, spin: on the caller's node, rows in shared memory, beside SubprocVecEnv on the same work.
* second-node: rows in messages, on a second node that a cluster on this machine pretends to have.
* tianshou: rows in messages, beside tianshou's RayVectorEnv, which has an actor and a call per env; and the start-up
  of both on a running Ray. Where tianshou is not installed it is left out: README.md has the command.

Shares are of the limit of `python -m vecenvs bench`: see README.md. (A file called ray.py here would hide Ray.)
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from vecenvs import SubprocVecEnv
from vecenvs.backends.ray import RayVecEnv
from vecenvs.bench.limit import BareLoops
from vecenvs.bench.machine import facts, versions
from vecenvs.bench.measure import LIMIT, Turn, contest
from vecenvs.bench.workloads import Workload, workload
from vecenvs.cpus import usable_cores

RESULTS = Path(__file__).parent / "results" / "on_ray.json"
TIANSHOU = "tianshou RayVectorEnv"
CORES = usable_cores()
WORKERS = max(2, CORES)
# Read by Ray's daemons when they start. Ray runs its workers at low priority unless told otherwise.
ENVIRONMENT = {
    "RAY_worker_niceness": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
THERE = {"num_cpus": 1, "resources": {"there": 0.01}}

Record = dict[str, Any]


class Steps:
    """Steps a vec, already reset, with batches of actions drawn beforehand."""

    def __init__(self, vec: Any, num_envs: int) -> None:
        self.vec = vec
        self.num_envs = num_envs
        space = vec.action_space
        single = space[0] if isinstance(space, (list, tuple)) else space
        single.seed(0)
        self.actions = cycle([np.array([single.sample() for _ in range(num_envs)]) for _ in range(64)])

    def step(self, count: int) -> int:
        """Step all envs so many times."""
        for _ in range(count):
            self.vec.step(next(self.actions))
        return count * self.num_envs

    def close(self) -> None:
        """End it."""
        self.vec.close()


class TianshouSteps(Steps):
    """Tianshou leaves resets to its user."""

    def step(self, count: int) -> int:
        for _ in range(count):
            _, _, terminated, truncated, _ = self.vec.step(next(self.actions))
            ended = np.flatnonzero(terminated | truncated)
            if len(ended):
                self.vec.reset(ended)
        return count * self.num_envs


@dataclass
class Ours:
    """A VecEnv of ours. `way` is how all of its workers must be reached."""

    name: str
    build: Callable[[int], Any]
    way: str | None = None

    def make(self, num_envs: int) -> Steps:
        vec = self.build(num_envs)
        try:
            if self.way is not None and vec.stats()["transports"] != {self.way: WORKERS}:
                raise RuntimeError(f"its workers are not all reached by {self.way}: {vec.stats()['workers']}")
            vec.reset()
            return Steps(vec, num_envs)
        except BaseException:
            vec.close()
            raise


class Tianshou:
    """Tianshou's RayVectorEnv, an actor per env: made in the first round and kept for the others.

    Starting it costs a process per env, so that its actors idle during the others' turns. Its actor class is sent by
    value: actors that import tianshou, and so torch, take several times as long to start.
    """

    name = TIANSHOU

    def __init__(self, env_fn: Workload) -> None:
        self._env_fn = env_fn
        self._made: TianshouSteps | None = None

    def make(self, num_envs: int) -> Tianshou:
        if self._made is None:
            import ray
            import tianshou.env.worker.ray
            from tianshou.env import RayVectorEnv

            ray.cloudpickle.register_pickle_by_value(tianshou.env.worker.ray)
            vec = RayVectorEnv([self._env_fn] * num_envs)
            vec.reset()
            self._made = TianshouSteps(vec, num_envs)
        return self

    def step(self, count: int) -> int:
        """Step all envs so many times."""
        assert self._made is not None
        return self._made.step(count)

    def close(self) -> None:
        """Keep it: the cluster's end is its end."""


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and range."""
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def measure(env: str, num_envs: int, entrants: Sequence[Any], args: argparse.Namespace) -> Record:
    """Let contestants take turns between readings of the limit; give each one's shares and all readings."""
    turns: list[Turn] = []
    with BareLoops(workload(env), CORES) as loops:
        for turn in contest(
            entrants, loops, num_envs, seconds=args.seconds, repeats=args.repeats, weigh=lambda *_: None
        ):
            turns.append(turn)
            if turn.failure:
                print(f"  {turn.contestant}: {turn.failure}", flush=True)
    limits = [turn.timing.rate for turn in turns if turn.contestant == LIMIT and turn.timing]
    found: Record = {"env": env, "num_envs": num_envs, "cores": CORES, "limits": limits, "contestants": {}}
    for name in [entrant.name for entrant in entrants]:
        mine = [turn for turn in turns if turn.contestant == name]
        row: Record = {"failures": [turn.failure for turn in mine if turn.failure]}
        timed = [(turn.round, turn.timing.rate) for turn in mine if turn.timing]
        if timed:
            row["share"] = spread([2 * rate / (limits[number] + limits[number + 1]) for number, rate in timed])
            row["rates"] = [rate for _, rate in timed]
            row["startup"] = [turn.startup for turn in mine if turn.startup is not None]
            shown = "{median:.2f} ({low:.2f} to {high:.2f})".format(**row["share"])
            print(f"  {env} n={num_envs}  {name:24} {shown} of the limit", flush=True)
        found["contestants"][name] = row
    return found


def same_node(env: str, num_envs: int, args: argparse.Namespace) -> Record:
    """On a Ray of this machine, and in processes of our own."""
    env_fn = workload(env)
    entrants = [
        # Not forked: this process is connected to Ray.
        Ours("subproc", lambda n: SubprocVecEnv([env_fn] * n, WORKERS, start_method="forkserver")),
        Ours("ray", lambda n: RayVecEnv([env_fn] * n, WORKERS), "shared"),
    ]
    with local_ray():
        found = measure(env, num_envs, entrants, args)
    rates = [found["contestants"][entrant.name].get("rates", []) for entrant in entrants]
    if all(rates):
        found["ray / subproc"] = spread([ours / theirs for theirs, ours in zip(*rates, strict=True)])
    return found


def second_node(args: argparse.Namespace) -> Record:
    """On the second of two nodes that this machine pretends to be."""
    env_fn = workload("spin:100us")
    with two_nodes():
        ours = Ours("ray", lambda n: RayVecEnv([env_fn] * n, WORKERS, actor_options=THERE), "messages")
        return measure("spin:100us", 64, [ours], args)


def beside_tianshou(args: argparse.Namespace) -> Record:
    """The same work and start-up on a Ray of this machine."""
    env_fn = workload("spin:100us")
    ours = Ours("ray", lambda n: RayVecEnv([env_fn] * n, WORKERS, transport="messages"), "messages")
    with local_ray():
        found = measure("spin:100us", 64, [ours, Tianshou(env_fn)], args)
    starts = [found["contestants"][name].get("startup") for name in ("ray", TIANSHOU)]
    if all(starts):
        del starts[1][1:]  # it was made once
        found["start-up, ray / tianshou"] = spread([seconds / starts[1][0] for seconds in starts[0]])
    return found


@contextmanager
def local_ray() -> Iterator[None]:
    """A Ray of one node."""
    import ray

    ray.init(address="local", include_dashboard=False, logging_level="error", log_to_driver=False)
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def two_nodes() -> Iterator[None]:
    """A Ray of two nodes; all CPUs are the second one's."""
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=WORKERS, resources={"there": 1})
        ray.init(address=cluster.address, logging_level="error", log_to_driver=False)
        yield
    finally:
        ray.shutdown()
        cluster.shutdown()


MEASUREMENTS: dict[str, Callable[[argparse.Namespace], Record]] = {
    "cartpole": lambda args: same_node("CartPole-v1", 64, args),
    "spin": lambda args: same_node("spin:100us", 8, args),
    "second-node": second_node,
    "tianshou": beside_tianshou,
}


@dataclass(frozen=True)
class Promise:
    """What shall come out: the median of a figure, and its bound (`least`, or else at most)."""

    what: str
    measurement: str
    figure: Callable[[Record], dict[str, float]]
    bound: float
    least: bool = True

    def beside(self, measured: Record) -> str:
        """One line of the summary."""
        bound = f"{'>=' if self.least else '<='} {self.bound:.2f}"
        try:
            figure = self.figure(measured[self.measurement])
        except KeyError:
            return f"{self.what:56} {bound}   not measured"
        kept = figure["median"] >= self.bound if self.least else figure["median"] <= self.bound
        shown = "{median:.3f} ({low:.3f} to {high:.3f})".format(**figure)
        return f"{self.what:56} {bound}   {shown}   {'kept' if kept else 'MISSED'}"


PROMISES = [
    Promise("same node, CartPole n=64: ray / subproc", "cartpole", lambda found: found["ray / subproc"], 0.95),
    Promise("same node, 100 us n=8: ray / subproc", "spin", lambda found: found["ray / subproc"], 0.95),
    Promise(
        "second node, 100 us n=64: share of the limit",
        "second-node",
        lambda found: found["contestants"]["ray"]["share"],
        0.7,
    ),
    Promise(
        "start-up of 64 envs on a running Ray: ray / tianshou",
        "tianshou",
        lambda found: found["start-up, ray / tianshou"],
        0.2,
        least=False,
    ),
]


def main() -> None:
    """Measure, write, and set the promises beside what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=MEASUREMENTS, default=[*MEASUREMENTS])
    parser.add_argument("--seconds", type=float, default=1.0, help="per reading")
    parser.add_argument("--repeats", type=int, default=5, help="rounds")
    parser.add_argument("--results", type=Path, default=RESULTS, help="file for the readings")
    args = parser.parse_args()

    os.environ.update(ENVIRONMENT)
    measured: Record = json.loads(args.results.read_text(encoding="utf-8")) if args.results.exists() else {}
    for name in args.only:
        print(f"== {name}", flush=True)
        command = f"python benchmarks/on_ray.py --only {name} --seconds {args.seconds:g} --repeats {args.repeats}"
        about = {"command": command, "machine": facts(CORES), "versions": all_versions()}
        measured[name] = {**about, **MEASUREMENTS[name](args)}
        args.results.parent.mkdir(parents=True, exist_ok=True)
        args.results.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
    print()
    for promise in PROMISES:
        print(promise.beside(measured))


def all_versions() -> dict[str, str]:
    """Of what bears on speed; tianshou's if it is there."""
    try:
        return {**versions(), "tianshou": metadata.version("tianshou")}
    except metadata.PackageNotFoundError:
        return versions()


if __name__ == "__main__":
    sys.exit(main())
