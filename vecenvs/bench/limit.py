"""The limit: one bare `env.step` loop per usable core, all of them at once."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from itertools import cycle, islice
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

from vecenvs.bench.child import Child
from vecenvs.bench.measure import Timing, describe, run_for
from vecenvs.bench.workloads import Workload
from vecenvs.cpus import allowed_cpus

_ACTIONS = 1024  # drawn beforehand; repeating them is as good as drawing more
_HEAD_START = 0.02  # seconds in which every loop has read its order, so that all begin together


@dataclass(frozen=True)
class Episodes:
    """How an env's episodes go under random actions, seen by the bare loops.

    `steps` is their mean length (None if none has ended yet), `reset_share` what resets take of a bare loop's time.
    """

    steps: float | None = None
    reset_share: float = 0.0


class BareLoops:
    """One process per core, each stepping one env of its own with the fastest loop that is correct.

    Actions are drawn beforehand and the env is reset when an episode ends: what any loop in Python must do, and nothing
    else. Each loop is pinned to a core of its own if there is one for each. Between runs the processes sleep.
    BadRequest if the env cannot be made, or fails.
    """

    def __init__(self, env_fn: Workload, loops: int) -> None:
        cpus = allowed_cpus() if hasattr(os, "sched_setaffinity") else []
        self._children: list[Child] = []
        self._steps = self._episodes = 0
        self._reset_seconds = self._seconds = 0.0
        try:
            for number in range(loops):
                self._children.append(Child(_serve, env_fn, number, cpus[number] if len(cpus) == loops else None))
            self._reset_seconds = sum(child.receive() for child in self._children) / loops
        except BaseException:
            self.close()
            raise

    def run(self, seconds: float, warmup: float) -> Timing:
        """Run all loops at once. The rate is the sum of their rates."""
        start = time.perf_counter() + _HEAD_START
        for child in self._children:
            child.send((start, seconds, warmup))
        readings: list[tuple[Timing, int]] = [child.receive() for child in self._children]
        steps = sum(timing.steps for timing, _ in readings)
        self._steps += steps
        self._episodes += sum(episodes for _, episodes in readings)
        self._seconds += sum(timing.seconds for timing, _ in readings)
        return Timing(steps, steps / sum(timing.rate for timing, _ in readings))

    def episodes(self) -> Episodes:
        """Tell what the runs up to now have shown."""
        if not self._episodes:
            return Episodes()
        return Episodes(self._steps / self._episodes, self._episodes * self._reset_seconds / self._seconds)

    def close(self) -> None:
        """End the processes. Repeatable."""
        for child in self._children:
            child.close()

    def __enter__(self) -> BareLoops:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _serve(connection: Connection, env_fn: Workload, seed: int, cpu: int | None) -> None:
    """Make the env, tell what a reset costs, then run when told to."""
    if cpu is not None:
        os.sched_setaffinity(0, {cpu})
    try:
        env = env_fn()
        env.action_space.seed(seed)
        env.reset(seed=seed)
        loop = BareLoop(env, [env.action_space.sample() for _ in range(_ACTIONS)])
        reset_seconds = loop.reset_seconds()
    except Exception as error:
        connection.send(f"cannot make the env: {describe(error)}")
        return
    connection.send(reset_seconds)
    while True:
        start, seconds, warmup = connection.recv()
        time.sleep(max(0.0, start - time.perf_counter()))
        try:
            run_for(loop.step, warmup)
            before = loop.episodes
            timing = run_for(loop.step, seconds)
        except Exception as error:
            connection.send(f"the env failed in a bare loop: {describe(error)}")
            return
        connection.send((timing, loop.episodes - before))


class BareLoop:
    """The loop itself. `episodes` counts those that have ended."""

    def __init__(self, env: Any, actions: list[Any]) -> None:
        self.episodes = 0
        self._env = env
        self._actions = cycle(actions)

    def step(self, count: int) -> int:
        """Step `count` times."""
        step, reset = self._env.step, self._env.reset
        for action in islice(self._actions, count):
            _, _, terminated, truncated, _ = step(action)
            if terminated or truncated:
                reset()
                self.episodes += 1
        return count

    def reset_seconds(self) -> float:
        """Time some resets, each after a step. Apart from the loop, which a clock would slow down."""
        total, resets = 0.0, 0
        while resets < 10 and total < 0.2:
            self._env.step(next(self._actions))
            start = time.perf_counter()
            self._env.reset()
            total += time.perf_counter() - start
            resets += 1
        return total / resets
