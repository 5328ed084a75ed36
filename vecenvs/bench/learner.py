"""Candidates whose caller computes between steps, as a learner does."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vecenvs.bench.candidates import Backend, MakesVec, VecCandidate, VecStepper, draw_actions
from vecenvs.bench.contest import Stepper
from vecenvs.bench.workloads import spin


class LearningCandidate(VecCandidate):
    """A backend, stepped by a program that computes for `iterations` of `spin` per batch of all rows.

    With `halves` the program takes half of the rows at a time, the first that are ready, and computes on them (half as
    long) while the other half is being stepped: `recv(min_envs=n // 2, max_envs=n // 2)`, compute, `send`.
    """

    def __init__(self, name: str, backend: Backend, make_vec: MakesVec, iterations: int, *, halves: bool) -> None:
        super().__init__(backend, make_vec)
        self.name = name
        self._iterations = iterations
        self._halves = halves

    def _stepper(self, vec: Any, first: Any) -> Stepper:
        if self._halves:
            return HalvesStepper(vec, self._iterations)
        return BetweenStepper(vec, first, self._iterations) if self._iterations else VecStepper(vec, first)


class BetweenStepper(VecStepper):
    """Compute, then step all envs, and so on."""

    def __init__(self, vec: Any, first: Any, iterations: int) -> None:
        super().__init__(vec, first)
        self._iterations = iterations

    def step(self, count: int) -> int:
        """Compute and step `count` times."""
        made, step = 0, super().step
        for _ in range(count):
            spin(self._iterations)
            made += step(1)
        return made


class HalvesStepper:
    """Compute on one half of the envs while the other half is being stepped."""

    def __init__(self, vec: Any, iterations: int) -> None:
        self._vec = vec
        self._half = vec.num_envs // 2
        self._iterations = iterations // 2
        self._actions: Iterator[Any] | None = None

    def step(self, count: int) -> int:
        """Take 2 * `count` halves; return how many of their rows are transitions."""
        vec, half, made = self._vec, self._half, 0
        if self._actions is None:
            self._actions = cycle(draw_actions(vec.action_space, vec.num_envs))
            vec.send(next(self._actions))
        for actions in islice(self._actions, 2 * count):
            batch = vec.recv(min_envs=half, max_envs=half)
            spin(self._iterations)
            vec.send(rows_of(actions, batch.indices), batch.indices)
            made += int(np.count_nonzero(batch.active))
        return made

    def close(self) -> None:
        """Close the VecEnv, even with commands in flight."""
        self._vec.close()


def rows_of(batch: Any, indices: NDArray[np.int64]) -> Any:
    """Return some rows of a batch of actions, which is an array, a list, or a dict or tuple of these."""
    if isinstance(batch, dict):
        return {key: rows_of(part, indices) for key, part in batch.items()}
    if isinstance(batch, tuple):
        return tuple(rows_of(part, indices) for part in batch)
    return [batch[i] for i in indices] if isinstance(batch, list) else batch[indices]
