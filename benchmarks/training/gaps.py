"""The time inside `step` when the caller computes a torch policy between steps, and what happens during an update.

Actions are drawn beforehand, so that all candidates step through the same episodes. The policy is a small network that
sees up to 64 numbers of each observation; its inference is repeated until the gap is over.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.training.candidates import Driven
from benchmarks.training.grid import UPDATE
from benchmarks.training.phases import OthersCpu, clock, cpu_share
from vecenvs.bench.candidates import draw_actions
from vecenvs.bench.contest import warmup_for

SEEN = 64  # numbers of an observation
UPDATES, BETWEEN = 10, 4  # the number of updates, and of steps before each
MINIBATCH = 256


class Caller:
    """A program that computes and steps."""

    def __init__(self, driven: Driven, num_envs: int) -> None:
        torch.manual_seed(0)
        self._driven, self._obs = driven, driven.obs
        self._actions: Iterator[Any] = cycle(draw_actions(driven.action_space, num_envs))
        inputs = min(SEEN, int(np.prod(driven.observation_space.shape or (1,))))
        self._policy = nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
        self._optimizer = torch.optim.Adam(self._policy.parameters())
        self._minibatch = torch.rand(MINIBATCH, inputs)

    def step(self) -> float:
        """Step all envs; return the seconds inside `step`."""
        actions, step = next(self._actions), self._driven.vec.step
        begin = clock()
        result = step(actions)
        end = clock()
        self._obs = self._driven.rows(result)[0]
        return end - begin

    def infer(self, seconds: float) -> float:
        """Compute actions until so many seconds are over; return how long it took."""
        begin = clock()
        with torch.no_grad():
            while clock() - begin < seconds:
                rows = np.asarray(self._obs).reshape(len(self._obs), -1)[:, :SEEN]
                self._policy(torch.as_tensor(rows, dtype=torch.float32)).argmax(-1)
        return clock() - begin

    def update(self, seconds: float) -> None:
        """Improve the policy until so many seconds are over."""
        begin = clock()
        while clock() - begin < seconds:
            loss = self._policy(self._minibatch).pow(2).mean()
            self._optimizer.zero_grad()
            loss.backward()
            self._optimizer.step()


def beside_gaps(caller: Caller, gap: int, seconds: float) -> dict[str, Any]:
    """Step with so many microseconds of inference before each step; return the times of `step` in microseconds."""
    taken: list[float] = []
    gaps: list[float] = []
    begin = clock()
    counted_from = begin + warmup_for(seconds)
    while (now := clock()) < counted_from + seconds or len(taken) < 5:
        waited = caller.infer(1e-6 * gap) if gap else 0.0
        inside = caller.step()
        if now >= counted_from:
            taken.append(inside)
            gaps.append(waited)
    return {"gap": 1e6 * statistics.median(gaps), **quartiles(taken)}


def beside_updates(caller: Caller) -> dict[str, Any]:
    """Update between every few steps; return the cores that other processes and threads use meanwhile."""
    others = OthersCpu()
    shares: list[float | None] = []
    for _ in range(UPDATES):
        for _ in range(BETWEEN):
            caller.step()
        before, begin = others.read(), clock()
        caller.update(UPDATE)
        shares.append(cpu_share(before, others.read(), clock() - begin))
    known = [share for share in shares if share is not None]
    return {"cpu": statistics.median(known) if known else None}


def measure(driven: Driven, num_envs: int, gaps: Sequence[int], seconds: float) -> dict[str, Any]:
    """Measure one turn of a candidate."""
    caller = Caller(driven, num_envs)
    found = {str(gap): beside_gaps(caller, gap, seconds) for gap in gaps}
    return {"steps": found, "updates": beside_updates(caller)}


def quartiles(seconds: Sequence[float]) -> dict[str, float]:
    """Return the median and the quartiles in microseconds, and the number of values."""
    low, middle, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return {"median": 1e6 * middle, "low": 1e6 * low, "high": 1e6 * high, "count": len(seconds)}
