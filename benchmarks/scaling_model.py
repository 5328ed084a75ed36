"""A model of one caller with W workers: the time of a lock-step, fitted to measurements.

A step of n envs over W workers, each with a core of its own, takes the sum of

    caller:   fixed + per_worker * W + per_env * n + per_byte * bytes    the workers wait meanwhile
    workers:  (env + worker_env + worker_byte * row_bytes) * n / W       all at once
    latency                                                              to hand over and back

`env` is the time of a bare step. All times are in seconds. The model leaves out infos, episode ends and waiting for the
slowest env, so its rates are an upper bound. The latency is that of steps long enough for both sides to fall asleep.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Sample:
    """A measurement: `seconds` per step, of the caller alone or in all; a bare step takes `env` seconds."""

    workers: int
    num_envs: int
    row_bytes: int
    seconds: float
    env: float = 0.0


@dataclass(frozen=True)
class Costs:
    """The constants of one transport, in seconds: see the module's docstring."""

    fixed: float
    per_worker: float
    per_env: float
    per_byte: float
    worker_env: float
    worker_byte: float
    latency: float

    def caller(self, num_envs: float, workers: float, row_bytes: float) -> float:
        """Return the time of the caller alone, in which all workers wait."""
        return self.fixed + self.per_worker * workers + num_envs * (self.per_env + self.per_byte * row_bytes)

    def step(self, env: float, num_envs: float, workers: float, row_bytes: float) -> float:
        """Return the time of a whole step of envs that take `env` seconds each."""
        shard = num_envs / workers
        working = shard * (env + self.worker_env + self.worker_byte * row_bytes)
        return self.caller(num_envs, workers, row_bytes) + working + self.latency

    def share(self, env: float, num_envs: float, workers: float, row_bytes: float) -> float:
        """Return the share of the workers' cores that goes into the envs."""
        return env * num_envs / workers / self.step(env, num_envs, workers, row_bytes)

    def workers_at(self, share: float, env: float, envs_per_worker: float, row_bytes: float) -> float:
        """Return the number of workers at which the share has fallen to `share`, below 1 if it is never that high."""
        rest = envs_per_worker * env / share - self.step(env, envs_per_worker, 1, row_bytes)
        each = self.per_worker + envs_per_worker * (self.per_env + self.per_byte * row_bytes)
        return 1 + rest / each if each > 0 else float("inf")

    def most(self, row_bytes: float) -> float:
        """Return the env steps per second that one caller can receive at most, with any number of workers."""
        return 1 / (self.per_env + self.per_byte * row_bytes)


@dataclass(frozen=True)
class Fit:
    """The constants, and the largest relative error over the samples of the caller."""

    costs: Costs
    worst: float


def fit(caller: Sequence[Sample], steps: Sequence[Sample], slow: Sequence[Sample]) -> Fit:
    """Fit the constants to samples of the caller alone, of whole steps of envs that cost nothing, and of slow ones.

    The latency is the median of what the other constants leave of the slow ones. For the others relative errors are
    minimised, so that short steps count as much as long ones. No constant is negative.

    Raises:
        ValueError: There are too few samples.
    """
    if len({s.workers for s in caller}) < 2 or len({s.num_envs for s in caller}) < 2 or len(steps) < 2 or not slow:
        raise ValueError(
            "a fit needs samples of two numbers of workers, two numbers of envs, two whole steps and a slow one"
        )
    taken = np.array([sample.seconds for sample in caller])
    terms = np.array([[1.0, s.workers, s.num_envs, s.num_envs * s.row_bytes] for s in caller])
    fixed, per_worker, per_env, per_byte = found = non_negative(terms, taken)
    partial = Costs(fixed, per_worker, per_env, per_byte, 0.0, 0.0, 0.0)
    rest = np.array([s.seconds - partial.caller(s.num_envs, s.workers, s.row_bytes) for s in steps])
    shards = np.array([[s.num_envs / s.workers, s.num_envs / s.workers * s.row_bytes, 1.0] for s in steps])
    weights = np.array([sample.seconds for sample in steps])
    worker_env, worker_byte, _ = non_negative(
        shards, rest, weights
    )  # the third term is the latency when no side sleeps
    awake = Costs(fixed, per_worker, per_env, per_byte, worker_env, worker_byte, 0.0)
    latency = statistics.median(s.seconds - awake.step(s.env, s.num_envs, s.workers, s.row_bytes) for s in slow)
    worst = float(np.max(np.abs(terms @ np.array(found) / taken - 1)))
    return Fit(replace(awake, latency=max(latency, 0.0)), worst)


def non_negative(
    terms: NDArray[np.float64], values: NDArray[np.float64], scale: NDArray[np.float64] | None = None
) -> list[float]:
    """Minimise the squares of relative errors. A term whose constant would be negative is left out."""
    scale = values if scale is None else scale
    columns = list(range(terms.shape[1]))
    while columns:
        solution, *_ = np.linalg.lstsq(terms[:, columns] / scale[:, None], values / scale, rcond=None)
        if solution.min() >= 0:
            break
        del columns[int(solution.argmin())]
    constants = np.zeros(terms.shape[1])
    constants[columns] = solution if columns else []
    return [float(value) for value in constants]
