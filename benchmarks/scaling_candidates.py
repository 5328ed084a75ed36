"""The candidates of benchmarks/scaling.py besides the engines themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from vecenvs import DummyVecEnv
from vecenvs.bench.candidates import VecStepper
from vecenvs.bench.child import Child
from vecenvs.bench.contest import Candidate, Stepper
from vecenvs.bench.workloads import Workload


@dataclass
class Made:
    """A transport as a candidate."""

    build: Callable[[int], Any]
    name: str = "vec"

    def make(self, num_envs: int) -> Stepper:
        vec = self.build(num_envs)
        return VecStepper(vec, vec.reset(seed=0))


@dataclass
class Sized:
    """A candidate with a fixed number of envs, so that several sizes take part in one round."""

    inner: Candidate
    num_envs: int

    @property
    def name(self) -> str:
        return f"{self.inner.name} n={self.num_envs}"

    def make(self, _: int) -> Stepper:
        return self.inner.make(self.num_envs)


class Spmd:
    """One caller per core, each with its share of the envs in its own process."""

    name = "one caller per core"

    def __init__(self, env_fn: Workload, cores: int) -> None:
        self._env_fn = env_fn
        self._cores = cores

    def make(self, num_envs: int) -> SpmdStepper:
        return SpmdStepper([Child(_serve, self._env_fn, num_envs // self._cores) for _ in range(self._cores)])


class SpmdStepper:
    """Let all callers make some steps, and wait for them."""

    AT_ONCE = 64  # steps between two messages, which then cost next to nothing

    def __init__(self, children: list[Child]) -> None:
        self._children = children
        for child in children:
            child.receive()

    def step(self, count: int) -> int:
        for child in self._children:
            child.send(count * self.AT_ONCE)
        return sum(child.receive() for child in self._children)

    def close(self) -> None:
        for child in self._children:
            child.close()


def _serve(connection: Connection, env_fn: Workload, num_envs: int) -> None:
    with DummyVecEnv([env_fn] * num_envs) as vec:
        stepper = VecStepper(vec, vec.reset(seed=0))
        connection.send(0)
        while True:
            connection.send(stepper.step(connection.recv()))
