"""The grid: what is measured, on which env, with how many envs."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.peers.grid import PREPROCESSED, PreprocessedPong
from benchmarks.stack.grid import Axis
from vecenvs.bench.workloads import Workload, workload

GAPS = "gaps"
SB3 = "sb3"
OWN = "cleanrl"
MEASUREMENTS = {
    GAPS: "The time inside `step` beside a learner",
    SB3: "Stable-Baselines3's PPO",
    OWN: "PPO in one file, in the style of CleanRL",
}
GAPS_US = (0, 100, 300, 1000, 5000)
UPDATE = 0.05  # seconds without steps, in the measurement of gaps
EPOCHS, MINIBATCHES = 4, 4  # as CleanRL's scripts for CartPole and Atari


@dataclass(frozen=True)
class Env:
    """An env: the name of its workload, and the transitions of a rollout.

    A rollout is short enough for several in a turn. The update costs the same per transition with any length.
    """

    title: str
    name: str
    rollout: int

    def env_fn(self) -> Workload:
        """Return the function that makes one such env, without a Monitor."""
        return PreprocessedPong() if self.name == PREPROCESSED else workload(self.name)


ENVS = {
    "cartpole": Env("CartPole", "CartPole-v1", 1024),
    "halfcheetah": Env("HalfCheetah", "HalfCheetah-v5", 1024),
    "pong": Env("Pong, 84x84x4", PREPROCESSED, 512),
}


@dataclass(frozen=True)
class Cell:
    """One situation in which the candidates are measured. `env` is a key of ENVS, `gaps` are in microseconds."""

    measurement: str
    env: str
    num_envs: int
    gaps: tuple[int, ...] = ()

    @property
    def key(self) -> str:
        return f"{self.measurement}-{self.env}-{self.num_envs}"

    @property
    def quick(self) -> bool:
        return (self.env, self.num_envs) == ("cartpole", 8)


CELLS = [
    Cell(measurement, env, num_envs, GAPS_US if measurement == GAPS else ())
    for num_envs in (8, 32)
    for measurement in MEASUREMENTS
    for env in ENVS
]
AXES = [
    Axis(measurement, title, "", tuple(cell.key for cell in CELLS if cell.measurement == measurement))
    for measurement, title in MEASUREMENTS.items()
]
KEY = [cell.key for cell in CELLS if cell.measurement in (GAPS, SB3) and cell.num_envs == 8]
