"""Samples of what a step costs, in all and for the caller alone, measured through the public interface."""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np
from scaling_model import Sample

from vecenvs.bench.contest import run_for

_ROUNDS = 200
_PAUSE = 2e-4  # seconds at least between sending and receiving, for the workers to finish


def step_sample(vec: Any, workers: int, row_bytes: int, seconds: float) -> Sample:
    """Time whole steps. It is the best of three readings, since a disturbance only makes a reading longer."""
    actions = np.zeros(vec.num_envs, np.int64)

    def step(count: int) -> int:
        for _ in range(count):
            vec.step(actions)
        return count

    run_for(step, seconds / 4)
    best = max(run_for(step, seconds / 3).rate for _ in range(3))
    return Sample(workers, vec.num_envs, row_bytes, 1 / best)


def caller_sample(vec: Any, workers: int, row_bytes: int, step_seconds: float) -> Sample:
    """Time the caller's part of a step: the CPU time of its thread in `step_async`, and in `step_wait` after the step.

    Between the two calls the caller spins for the time of at least two whole steps. So the sample includes no waiting,
    and the core stays awake. It is the median of many steps.
    """
    actions = np.zeros(vec.num_envs, np.int64)
    pause = max(_PAUSE, 2 * step_seconds)
    taken = []
    for _ in range(_ROUNDS):
        start = time.thread_time()
        vec.step_async(actions)
        sent = time.thread_time()
        until = time.perf_counter() + pause
        while time.perf_counter() < until:
            pass
        back = time.thread_time()
        vec.step_wait()
        taken.append(sent - start + time.thread_time() - back)
    return Sample(workers, vec.num_envs, row_bytes, statistics.median(taken))
