"""A model of one caller with W workers: what a lock-step takes, fitted to measurements, and where it stops to grow.

The step of n envs over W workers, with a core for everybody, takes

    caller:   fixed + per_worker * W + per_env * n + per_byte * bytes    nobody else works meanwhile
    workers:  (env + worker_env + worker_byte * row_bytes) * n / W       all at once
    latency                                                              of handing over and back

`env` being a bare step's time. All times are in seconds. Infos, episode ends and waiting for the slowest env are not
in it: it is an upper bound. The latency is that of envs which take long enough for either side to fall asleep.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Sample:
    """A measurement: `seconds` per step of the caller alone, or of the whole step; `env` of a bare env's."""

    workers: int
    num_envs: int
    row_bytes: int
    seconds: float
    env: float = 0.0


@dataclass(frozen=True)
class Costs:
    """The constants of one transport, in seconds. See the module's text."""

    fixed: float
    per_worker: float
    per_env: float
    per_byte: float
    worker_env: float
    worker_byte: float
    latency: float

    def caller(self, num_envs: float, workers: float, row_bytes: float) -> float:
        """Give the time of the caller alone, in which all workers wait."""
        return self.fixed + self.per_worker * workers + num_envs * (self.per_env + self.per_byte * row_bytes)

    def step(self, env: float, num_envs: float, workers: float, row_bytes: float) -> float:
        """Give the time of a whole step, of envs that take `env` seconds each."""
        shard = num_envs / workers
        working = shard * (env + self.worker_env + self.worker_byte * row_bytes)
        return self.caller(num_envs, workers, row_bytes) + working + self.latency

    def share(self, env: float, num_envs: float, workers: float, row_bytes: float) -> float:
        """Give the share of what `workers` cores could do."""
        return env * num_envs / workers / self.step(env, num_envs, workers, row_bytes)

    def workers_at(self, share: float, env: float, envs_per_worker: float, row_bytes: float) -> float:
        """Give the number of workers at which the share has fallen to this: below 1 if it is never reached."""
        rest = envs_per_worker * env / share - self.step(env, envs_per_worker, 1, row_bytes)
        each = self.per_worker + envs_per_worker * (self.per_env + self.per_byte * row_bytes)
        return 1 + rest / each if each > 0 else float("inf")

    def most(self, row_bytes: float) -> float:
        """Give the steps of envs per second that one caller can take at most, however many workers there are."""
        return 1 / (self.per_env + self.per_byte * row_bytes)


@dataclass(frozen=True)
class Fit:
    """Constants, and how far the model is off at worst: the largest relative error over the caller's samples."""

    costs: Costs
    worst: float


def fit(caller: Sequence[Sample], steps: Sequence[Sample], slow: Sequence[Sample]) -> Fit:
    """Fit the constants to samples of the caller alone, of whole steps of envs that cost nothing, and of slow ones.

    The latency is the median of what the slow ones leave. For the others relative errors are minimised, so that small
    steps count as much as large ones. No constant is negative. ValueError if the samples are too few.
    """
    if len({s.workers for s in caller}) < 2 or len({s.num_envs for s in caller}) < 2 or len(steps) < 2 or not slow:
        raise ValueError(
            "a fit needs samples of two numbers of workers, two numbers of envs, two whole steps and a slow one"
        )
    taken = np.array([sample.seconds for sample in caller])
    terms = np.array([[1.0, s.workers, s.num_envs, s.num_envs * s.row_bytes] for s in caller])
    fixed, per_worker, per_env, per_byte = found = _non_negative(terms, taken)
    partial = Costs(fixed, per_worker, per_env, per_byte, 0.0, 0.0, 0.0)
    rest = np.array([s.seconds - partial.caller(s.num_envs, s.workers, s.row_bytes) for s in steps])
    shards = np.array([[s.num_envs / s.workers, s.num_envs / s.workers * s.row_bytes, 1.0] for s in steps])
    weights = np.array([sample.seconds for sample in steps])
    worker_env, worker_byte, _ = _non_negative(shards, rest, weights)  # and what handing over takes if nobody sleeps
    awake = Costs(fixed, per_worker, per_env, per_byte, worker_env, worker_byte, 0.0)
    latency = statistics.median(s.seconds - awake.step(s.env, s.num_envs, s.workers, s.row_bytes) for s in slow)
    worst = float(np.max(np.abs(terms @ np.array(found) / taken - 1)))
    return Fit(replace(awake, latency=max(latency, 0.0)), worst)


def _non_negative(
    terms: NDArray[np.float64], values: NDArray[np.float64], scale: NDArray[np.float64] | None = None
) -> list[float]:
    """Solve least squares of relative errors; a term whose constant would be negative is left out."""
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
