"""Measure the ray backend, and keep the readings in benchmarks/results/on_ray.json.

    python benchmarks/on_ray.py                    everything, about three minutes on an idle machine
    python benchmarks/on_ray.py --only cartpole    one measurement; the file keeps the others

* cartpole, spin: on the caller's node, rows in shared memory, beside SubprocVecEnv on the same work.
* second-node: rows in messages, on the second node of a cluster whose nodes are both on this machine.
* tianshou: rows in messages, beside tianshou's RayVectorEnv, which has an actor and a call per env; and the start-up
  of both on a running Ray. tianshou is left out where it is not installed: README.md has the command.

Shares are of the limit of `python -m vecenvs bench`: see README.md. (A file called ray.py here would hide Ray.)
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import shared
from shared import RAY_ENVIRONMENT, RESULTS, Promise, about, load, promises, write

from vecenvs import SubprocVecEnv
from vecenvs.backends.ray import RayVecEnv
from vecenvs.bench.candidates import VecStepper, draw_actions
from vecenvs.bench.contest import LIMIT, Stepper, contest
from vecenvs.bench.limit import BareLoops
from vecenvs.bench.report import Spread, rows
from vecenvs.bench.workloads import Workload, workload
from vecenvs.cpus import usable_cores

TIANSHOU = "tianshou RayVectorEnv"
CORES = usable_cores()
WORKERS = max(2, CORES)
THERE = {"num_cpus": 1, "resources": {"there": 0.01}}

Record = dict[str, Any]


class TianshouSteps:
    """Step tianshou's vector env, which leaves resets to its user."""

    def __init__(self, vec: Any, num_envs: int) -> None:
        self.vec = vec
        self.num_envs = num_envs
        self.actions = cycle(draw_actions(vec.action_space[0], num_envs))

    def step(self, count: int) -> int:
        for _ in range(count):
            _, _, terminated, truncated, _ = self.vec.step(next(self.actions))
            ended = np.flatnonzero(terminated | truncated)
            if len(ended):
                self.vec.reset(ended)
        return count * self.num_envs

    def close(self) -> None:
        """Keep the env, which ends with the cluster."""


@dataclass
class Ours:
    """A VecEnv whose workers must all be reached by the same `way`."""

    name: str
    build: Callable[[int], Any]
    way: str | None = None

    def make(self, num_envs: int) -> Stepper:
        vec = self.build(num_envs)
        try:
            if self.way is not None and vec.stats()["transports"] != {self.way: WORKERS}:
                raise RuntimeError(f"not all workers are reached by {self.way}: {vec.stats()['workers']}")
            return VecStepper(vec, vec.reset())
        except BaseException:
            vec.close()
            raise


class Tianshou:
    """Tianshou's RayVectorEnv with an actor per env, made in the first round and kept for the others.

    It starts a process per env, so it is kept, and its actors are idle during the other turns. Its actor class is sent
    by value: actors that import tianshou, and so torch, take several times as long to start.
    """

    name = TIANSHOU

    def __init__(self, env_fn: Workload) -> None:
        self._env_fn = env_fn
        self._made: TianshouSteps | None = None

    def make(self, num_envs: int) -> Stepper:
        if self._made is None:
            import ray
            import tianshou.env.worker.ray
            from tianshou.env import RayVectorEnv

            ray.cloudpickle.register_pickle_by_value(tianshou.env.worker.ray)
            vec = RayVectorEnv([self._env_fn] * num_envs)
            vec.reset()
            self._made = TianshouSteps(vec, num_envs)
        return self._made


def measure(env: str, num_envs: int, candidates: Sequence[Any], args: argparse.Namespace) -> Record:
    """Measure candidates by turns between readings of the limit; return each one's shares and all readings."""
    turns = []
    with BareLoops(workload(env), CORES) as loops:
        for turn in contest([candidates] * args.repeats, loops, num_envs, seconds=args.seconds):
            turns.append(turn)
            if turn.failure:
                print(f"  {turn.candidate}: {turn.failure}", flush=True)
    limits = [turn.timing.rate for turn in turns if turn.candidate == LIMIT and turn.timing]
    found: Record = {"env": env, "num_envs": num_envs, "cores": CORES, "limits": limits, "candidates": {}}
    for row in rows(turns):
        mine = [turn for turn in turns if turn.candidate == row.candidate]
        kept: Record = {"failures": [turn.failure for turn in mine if turn.failure]}
        if row.share is not None:
            kept["share"] = asdict(row.share)
            kept["rates"] = [turn.timing.rate for turn in mine if turn.timing]
            kept["startup"] = [turn.startup for turn in mine if turn.startup is not None]
            print(f"  {env} n={num_envs}  {row.candidate:24} {shown(kept['share'], 2)} of the limit", flush=True)
        found["candidates"][row.candidate] = kept
    return found


def shown(spread: dict[str, float], digits: int) -> str:
    """Format a median with its range."""
    return f"{spread['median']:.{digits}f} ({spread['min']:.{digits}f} to {spread['max']:.{digits}f})"


def same_node(env: str, num_envs: int, args: argparse.Namespace) -> Record:
    """Measure actors on a local Ray beside worker processes."""
    env_fn = workload(env)
    candidates = [
        # It does not fork, since this process is connected to Ray.
        Ours("subproc", lambda n: SubprocVecEnv([env_fn] * n, WORKERS, start_method="forkserver")),
        Ours("ray", lambda n: RayVecEnv([env_fn] * n, WORKERS), "shared"),
    ]
    with local_ray():
        found = measure(env, num_envs, candidates, args)
    rates = [found["candidates"][candidate.name].get("rates", []) for candidate in candidates]
    if all(rates):
        found["ray / subproc"] = asdict(Spread.of(ours / theirs for theirs, ours in zip(*rates, strict=True)))
    return found


def second_node(args: argparse.Namespace) -> Record:
    """Measure actors on the second node of a cluster, whose nodes are both on this machine."""
    env_fn = workload("spin:100us")
    with two_nodes():
        ours = Ours("ray", lambda n: RayVecEnv([env_fn] * n, WORKERS, actor_options=THERE), "messages")
        return measure("spin:100us", 64, [ours], args)


def beside_tianshou(args: argparse.Namespace) -> Record:
    """Measure the same work and the start-up beside tianshou, on a local Ray."""
    env_fn = workload("spin:100us")
    ours = Ours("ray", lambda n: RayVecEnv([env_fn] * n, WORKERS, transport="messages"), "messages")
    with local_ray():
        found = measure("spin:100us", 64, [ours, Tianshou(env_fn)], args)
    starts = [found["candidates"][name].get("startup") for name in ("ray", TIANSHOU)]
    if all(starts):
        del starts[1][1:]  # it was made once
        found["start-up, ray / tianshou"] = asdict(Spread.of(seconds / starts[1][0] for seconds in starts[0]))
    return found


@contextmanager
def local_ray() -> Iterator[None]:
    """Start a Ray of one node, and stop it."""
    import ray

    ray.init(address="local", include_dashboard=False, logging_level="error", log_to_driver=False)
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def two_nodes() -> Iterator[None]:
    """Start a Ray of two nodes, and stop it. The second node has all CPUs."""
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


PROMISES = [
    Promise("same node, CartPole n=64: ray / subproc", "cartpole", lambda found: found["ray / subproc"], 0.95),
    Promise("same node, 100 us n=8: ray / subproc", "spin", lambda found: found["ray / subproc"], 0.95),
    Promise(
        "second node, 100 us n=64: share of the limit",
        "second-node",
        lambda found: found["candidates"]["ray"]["share"],
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
    """Measure, write the results, and print the promises beside the measured figures."""
    parser = shared.parser(__doc__, MEASUREMENTS, seconds=1.0, repeats=5)
    parser.add_argument("--results", type=Path, default=RESULTS / "on_ray.json", help="file for the readings")
    args = parser.parse_args()

    os.environ.update(RAY_ENVIRONMENT)
    measured = load(args.results)
    for name in args.only:
        print(f"== {name}", flush=True)
        command = f"python benchmarks/on_ray.py --only {name} --seconds {args.seconds:g} --repeats {args.repeats}"
        measured[name] = {**about(command, "tianshou"), **MEASUREMENTS[name](args)}
        write(args.results, measured)
    print(f"\n{promises(promise.row(measured) for promise in PROMISES)}")


if __name__ == "__main__":
    sys.exit(main())
