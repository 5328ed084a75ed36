"""MpiVecEnv against SubprocVecEnv on one node, against the limit between hosts, and what idle workers use.

    python -m vecenvs.mpi -n 3 benchmarks/mpi.py --json benchmarks/results/mpi.json

One node: CartPole n=64, and envs of 100 us n=8, with as many workers as there are worker ranks; rounds of each backend
alternate. With `--packed` rows travel in messages, as they do between hosts in any case (--mpirun-args='--host a,b').
The limit is the workers' number times the rate of a bare loop of steps in one process of this host, all
of them at once. Idle: the CPU that the ranks of this host and all they host use while rank 0 computes.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import socket
import statistics
import sys
import time
from pathlib import Path

import gymnasium
import numpy as np
import psutil

from vecenvs import SubprocVecEnv
from vecenvs.backends.mpi import MpiVecEnv


class BusyEnv(gymnasium.Env):
    """Uses 100 us of CPU per step."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, seconds: float = 1e-4) -> None:
        self.seconds = seconds
        self.obs = np.zeros(4, np.float32)

    def reset(self, *, seed=None, options=None):
        return self.obs, {}

    def step(self, action):
        end = time.thread_time() + self.seconds
        while time.thread_time() < end:
            pass
        return self.obs, 0.0, False, False, {}


CARTPOLE = functools.partial(gymnasium.make, "CartPole-v1", disable_env_checker=True)
WORKLOADS = {"CartPole n=64": (CARTPOLE, 64), "100 us n=8": (BusyEnv, 8), "100 us n=64": (BusyEnv, 64)}


def rate(vec, seconds):
    """Steps of envs per second, all envs together."""
    actions = np.zeros(vec.num_envs, np.int64)
    vec.reset(seed=0)
    for _ in range(20):
        vec.step(actions)
    steps, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        vec.step(actions)
        steps += vec.num_envs
    return steps / (time.perf_counter() - start)


def bare(env_fn, seconds, queue):
    """The rate of one loop over one env."""
    env = env_fn()
    env.reset(seed=0)
    steps, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        _, _, terminated, truncated, _ = env.step(0)
        if terminated or truncated:
            env.reset()
        steps += 1
    queue.put(steps / (time.perf_counter() - start))


def limit(env_fn, workers, seconds):
    """The rate of as many bare loops at once as there are workers."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    loops = [context.Process(target=bare, args=(env_fn, seconds, queue)) for _ in range(workers)]
    for loop in loops:
        loop.start()
    rates = [queue.get() for _ in loops]
    for loop in loops:
        loop.join()
    return sum(rates)


def idle(vec, seconds):
    """The largest share of a core that a rank of this host, or a process it hosts, uses meanwhile."""
    here = [peer.pid for peer in vec._session.peers.values() if peer.host == socket.gethostname()]
    processes = [p for pid in here for p in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]]
    before = [sum(p.cpu_times()[:2]) for p in processes]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        sum(range(1000))
    return max(sum(p.cpu_times()[:2]) - b for p, b in zip(processes, before, strict=True)) / seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--idle-seconds", type=float, default=5.0)
    parser.add_argument("--packed", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    results = {"command": " ".join(sys.argv), "packed": args.packed, "workloads": {}}
    for name, (env_fn, n) in WORKLOADS.items():
        with MpiVecEnv([env_fn] * n, shared_memory=not args.packed) as ours:
            workers = ours.stats()["num_workers"]
            with SubprocVecEnv([env_fn] * n, num_workers=workers, start_method="forkserver") as theirs:
                rounds = [(rate(ours, args.seconds), rate(theirs, args.seconds)) for _ in range(args.rounds)]
            best = limit(env_fn, workers, args.seconds)
            results["workloads"][name] = row = {
                "workers": workers,
                "mpi": statistics.median(r[0] for r in rounds),
                "mpi / subproc": statistics.median(a / b for a, b in rounds),
                "mpi / limit": statistics.median(r[0] for r in rounds) / best,
            }
        print(name, {key: round(value, 3) for key, value in row.items()}, flush=True)
    with MpiVecEnv([CARTPOLE] * 8, shared_memory=not args.packed) as vec:
        rate(vec, 0.2)
        results["idle share of a core"] = idle(vec, args.idle_seconds)
    print("idle share of a core", round(results["idle share of a core"], 4))
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
