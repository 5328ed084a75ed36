"""Bare loops as candidates: one over all envs in this process, and one per core in lock-step.

Loops in lock-step wait for one another after each step. That is about the most that an engine can reach which returns
all rows at once: cores are never equally fast for long and envs take unequal times, so the slowest loop holds up the
others, even though no rows are moved. The fewer and the cheaper the envs are, the further it stays below the limit.
"""

from __future__ import annotations

import time
from itertools import cycle, islice
from multiprocessing.connection import Connection
from typing import Any

from vecenvs.arguments import split
from vecenvs.bench.candidates import draw_actions
from vecenvs.bench.child import Child
from vecenvs.bench.contest import Stepper, describe
from vecenvs.bench.workloads import Workload
from vecenvs.transport.memory import Semaphore, unlink_semaphores

_TRY_SECONDS = 0.05  # how long a child tries its semaphore before it sleeps: longer than any pause within a reading
_CHECK_SECONDS = 1.0  # how long a loop waits before it checks that the others are still running


class LoopCandidate:
    """A bare loop over all envs in this process: stepping in one process cannot cost less."""

    def __init__(self, name: str, env_fn: Workload, num_envs: int | None = None) -> None:
        self.name = name
        self._env_fn = env_fn
        self._num_envs = num_envs  # if given, it replaces the number that is asked for

    def make(self, num_envs: int) -> Stepper:
        """Make and reset the envs."""
        return LoopStepper([self._env_fn() for _ in range(self._num_envs or num_envs)])


class LoopStepper:
    """Step envs one after another, and reset those whose episodes end."""

    def __init__(self, envs: list[Any]) -> None:
        self._envs = envs
        self._actions = cycle([list(batch) for batch in _rows_of_actions(envs[0].action_space, len(envs))])
        for seed, env in enumerate(envs):
            env.reset(seed=seed)

    def step(self, count: int) -> int:
        """Step each env `count` times."""
        envs = self._envs
        for actions in islice(self._actions, count):
            for env, action in zip(envs, actions):  # noqa: B905  equal lengths by construction
                _, _, terminated, truncated, _ = env.step(action)
                if terminated or truncated:
                    env.reset()
        return count * len(envs)

    def close(self) -> None:
        """Close the envs."""
        for env in self._envs:
            env.close()


def _rows_of_actions(space: Any, num_envs: int) -> list[Any]:
    """Draw batches of one action per env. Where a batch is no array, actions are sampled one by one."""
    batches = draw_actions(space, num_envs)
    if isinstance(batches[0], (dict, tuple)):
        return [[space.sample() for _ in range(num_envs)] for _ in range(8)]
    return batches


class LockStepCandidate:
    """One loop per core, each over its share of the envs. This process runs the last one."""

    def __init__(self, name: str, env_fn: Workload, loops: int) -> None:
        self.name = name
        self._env_fn = env_fn
        self._loops = loops

    def make(self, num_envs: int) -> Stepper:
        """Make and reset the envs. Raise BadRequest if they cannot be made."""
        return LockStepStepper(self._env_fn, num_envs, min(self._loops, num_envs))


class LockStepStepper:
    """Have each loop step its envs once, then wait until the last one is done. Nothing else passes between them."""

    def __init__(self, env_fn: Workload, num_envs: int, loops: int) -> None:
        *others, own = map(len, split(num_envs, loops))
        self._signals = [(Semaphore(), Semaphore()) for _ in others]
        self._children: list[Child] = []
        self._own: LoopStepper | None = None
        self._num_envs = num_envs
        names = [(go.name, done.name) for go, done in self._signals]
        try:
            for count, pair in zip(others, names, strict=True):
                self._children.append(Child(_serve, env_fn, count, pair))
            for child in self._children:
                child.receive()
            self._own = LoopStepper([env_fn() for _ in range(own)])
        except BaseException:
            self.close()
            raise
        finally:
            unlink_semaphores([name for pair in names for name in pair])

    def step(self, count: int) -> int:
        """Step each env `count` times. Raise BadRequest if an env fails in another loop."""
        if self._own is None:
            raise RuntimeError("closed")
        own = self._own.step
        for _ in range(count):
            for go, _done in self._signals:
                go.release()
            own(1)
            for (_go, done), child in zip(self._signals, self._children, strict=True):
                while not _try(done, _CHECK_SECONDS):
                    child.check()
        return count * self._num_envs

    def close(self) -> None:
        """End the other loops and close the envs. It may be called again."""
        for child in self._children:
            child.close()
        if self._own is not None:
            self._own.close()
        self._own = None


def _serve(connection: Connection, env_fn: Workload, count: int, names: tuple[str, str]) -> None:
    """Step at every signal, until the pipe is closed."""
    go, done = map(Semaphore, names)
    try:
        stepper = LoopStepper([env_fn() for _ in range(count)])
    except Exception as error:
        connection.send(f"cannot make the env: {describe(error)}")
        return
    connection.send(None)
    while not connection.poll():
        while _try(go, _TRY_SECONDS) or go.acquire(True, _CHECK_SECONDS):
            try:
                stepper.step(1)
            except Exception as error:
                connection.send(f"the env failed in a bare loop: {describe(error)}")
                return
            done.release()
    stepper.close()


def _try(semaphore: Semaphore, seconds: float) -> bool:
    end = time.perf_counter() + seconds
    while not semaphore.acquire(False):
        if time.perf_counter() >= end:
            return False
    return True
