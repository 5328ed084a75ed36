"""The grid: what is measured, on which env, with how many envs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.peers.grid import PREPROCESSED, PreprocessedPong
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
    """One situation in which the contestants are measured. `env` is a key of ENVS, `gaps` are in microseconds.

    `seconds` are those of a gap, or of a training, which takes at least one rollout and one update.
    """

    measurement: str
    env: str
    num_envs: int
    seconds: float
    gaps: tuple[int, ...] = ()

    @property
    def key(self) -> str:
        return f"{self.measurement}-{self.env}-{self.num_envs}"

    @property
    def title(self) -> str:
        return f"{ENVS[self.env].title}, {self.num_envs} envs"


@dataclass(frozen=True)
class Order:
    """The request for a turn."""

    contestant: str
    cell: Cell


@dataclass(frozen=True)
class Plan:
    """What is to be measured. The fields are the options of the command line."""

    measurements: Sequence[str] = tuple(MEASUREMENTS)
    envs: Sequence[str] = tuple(ENVS)
    num_envs: Sequence[int] = (8, 32)
    gaps: Sequence[int] = GAPS_US
    seconds: float = 1.5
    gap_seconds: float = 0.3
    rounds: int = 3

    def cells(self) -> list[Cell]:
        """Return the cells in the order of measuring."""
        return [
            Cell(measurement, env, num_envs, self.gap_seconds, tuple(self.gaps))
            if measurement == GAPS
            else Cell(measurement, env, num_envs, self.seconds)
            for num_envs in self.num_envs
            for measurement in self.measurements
            for env in self.envs
        ]


COMPLETE = Plan()
KEY = replace(COMPLETE, measurements=(SB3, GAPS), num_envs=(8,), gaps=(300, 1000), rounds=5)
QUICK = Plan(envs=("cartpole",), num_envs=(4,), gaps=(0, 300), seconds=0.2, gap_seconds=0.05, rounds=1)
