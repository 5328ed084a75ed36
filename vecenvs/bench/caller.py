"""Measure what a step costs the caller alone, whatever the transport, through the public interface only."""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np

from vecenvs.bench.measure import run_for
from vecenvs.bench.scaling import Sample

_ROUNDS = 200
_PAUSE = 2e-4  # seconds: at least so long between sending and taking, for workers to be done


def step_sample(vec: Any, workers: int, row_bytes: int, seconds: float) -> Sample:
    """Time whole steps, one after another: the best of three readings, since whatever disturbs makes them longer."""
    actions = np.zeros(vec.num_envs, np.int64)

    def step(count: int) -> int:
        for _ in range(count):
            vec.step(actions)
        return count

    run_for(step, seconds / 4)
    best = max(run_for(step, seconds / 3).rate for _ in range(3))
    return Sample(workers, vec.num_envs, row_bytes, 1 / best)


def caller_sample(vec: Any, workers: int, row_bytes: int, step_seconds: float) -> Sample:
    """Time the caller's part of a step: CPU time of its thread in `step_async`, and in `step_wait` once all is done.

    Between the two the caller is busy otherwise, for at least two whole steps' time: no waiting is in the figure, and
    its core stays awake. The median of many.
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
