"""The limit: one bare `env.step` loop per usable core, all of them at once."""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import dataclass
from itertools import cycle, islice
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

from gymnasium.vector import VectorEnv

from vecenvs.bench.candidates import draw_actions
from vecenvs.bench.child import Child
from vecenvs.bench.contest import Timing, describe, run_for
from vecenvs.bench.workloads import Workload
from vecenvs.cpus import allowed_cpus

_ACTIONS = 1024  # drawn beforehand; repeating them is as good as drawing more
_HEAD_START = 0.02  # seconds for every loop to receive its command, so that all start together


@dataclass(frozen=True)
class EpisodeStats:
    """Statistics of an env's episodes under random actions, as the bare loops see them.

    `steps` is the mean length, None if no episode has ended yet. `reset_share` is the share of a bare loop's time that
    resets take.
    """

    steps: float | None = None
    reset_share: float = 0.0


class BareLoops:
    """One process per core, each of which steps one env with the fastest correct loop in Python.

    A batched env is stepped as it is, resets itself, and each of its rows counts as a step. Actions are drawn
    beforehand and a single env is reset when an episode ends; the loop does nothing else. Each loop is pinned to a core
    of its own if there are enough. Between runs the processes sleep. The constructor and `run` raise BadRequest if the
    env cannot be made or fails.
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
        """Run all loops at once. The rate of the result is the sum of their rates."""
        start = time.perf_counter() + _HEAD_START
        for child in self._children:
            child.send((start, seconds, warmup))
        readings: list[tuple[Timing, int]] = [child.receive() for child in self._children]
        steps = sum(timing.steps for timing, _ in readings)
        self._steps += steps
        self._episodes += sum(episodes for _, episodes in readings)
        self._seconds += sum(timing.seconds for timing, _ in readings)
        return Timing(steps, steps / sum(timing.rate for timing, _ in readings))

    def episodes(self) -> EpisodeStats:
        """Return the statistics of all runs so far."""
        if not self._episodes:
            return EpisodeStats()
        share = self._episodes * self._reset_seconds / self._seconds
        return EpisodeStats(self._steps / self._episodes, min(share, 1.0))

    def close(self) -> None:
        """End the processes. It may be called again."""
        for child in self._children:
            child.close()

    def __enter__(self) -> BareLoops:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _serve(connection: Connection, env_fn: Workload, seed: int, cpu: int | None) -> None:
    """Make the env, report the cost of a reset, then run on command."""
    if cpu is not None:
        os.sched_setaffinity(0, {cpu})
    try:
        env: Any = env_fn()
        env.action_space.seed(seed)
        env.reset(seed=seed)
        loop: BareLoop | BatchedLoop
        if isinstance(env, VectorEnv):
            loop = BatchedLoop(env)
        else:
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
    """The loop itself. `episodes` counts the episodes that have ended."""

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
        """Return the median time of some resets, each after a step. The loop itself reads no clock, for speed."""
        resets: list[float] = []
        while len(resets) < 10 and sum(resets) < 0.2:
            self._env.step(next(self._actions))
            start = time.perf_counter()
            self._env.reset()
            resets.append(time.perf_counter() - start)
        return statistics.median(resets)


class BatchedLoop:
    """The loop over a batched env which resets ended episodes itself."""

    episodes = 0  # they are not counted

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        self._env = env
        self._actions = cycle(draw_actions(env.single_action_space, env.num_envs))

    def step(self, count: int) -> int:
        """Step `count` times; return the number of rows."""
        step = self._env.step
        for actions in islice(self._actions, count):
            step(actions)
        return count * int(self._env.num_envs)

    def reset_seconds(self) -> float:
        """Return 0: no loop resets envs."""
        return 0.0
