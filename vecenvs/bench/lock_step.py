"""About the most that an engine can give which returns all rows at once: bare loops that wait for one another.

Cores are never equally fast for long, and envs take unequal times. In lock-step everybody waits for the slowest, so
even loops that move no rows stay below the limit, the more so the fewer and the cheaper the envs.
"""

from __future__ import annotations

import time
from multiprocessing.connection import Connection

from vecenvs.arguments import split
from vecenvs.bench.child import Child
from vecenvs.bench.loops import LoopStepper
from vecenvs.bench.measure import Stepper, describe
from vecenvs.bench.workloads import Workload
from vecenvs.transport.memory import Semaphore, unlink_semaphores

_KEEN = 0.05  # seconds that a child tries before it sleeps: through whatever happens within a reading
_LATE = 1.0  # seconds after which a loop looks whether the others are still there


class LockStepContestant:
    """One loop per core, each over its share of the envs; this process has the last one."""

    def __init__(self, name: str, env_fn: Workload, loops: int) -> None:
        self.name = name
        self._env_fn = env_fn
        self._loops = loops

    def make(self, num_envs: int) -> Stepper:
        """Make and reset the envs. BadRequest if they cannot be made."""
        return LockStepStepper(self._env_fn, num_envs, min(self._loops, num_envs))


class LockStepStepper:
    """Each loop steps its envs once, then all wait until the last one is done. Nothing else passes between them."""

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
        """Step each env `count` times. BadRequest if an env fails in another loop."""
        if self._own is None:
            raise RuntimeError("closed")
        own = self._own.step
        for _ in range(count):
            for go, _done in self._signals:
                go.release()
            own(1)
            for (_go, done), child in zip(self._signals, self._children, strict=True):
                while not _try(done, _LATE):
                    child.check()
        return count * self._num_envs

    def close(self) -> None:
        """End the other loops, and close the envs. Repeatable."""
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
        while _try(go, _KEEN) or go.acquire(True, _LATE):
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
