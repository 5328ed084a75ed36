"""`send`, `reset_async` and `recv` over a vector env that steps all its envs at once."""

from __future__ import annotations

import abc
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vecenvs.arguments import check_portion, parse_indices
from vecenvs.batch.actions import parse_actions
from vecenvs.errors import NotSteppingError, VecEnvError, describe_indices
from vecenvs.vec_env import Batch, Indices, Options, Seeds
from vecenvs.views.gymnasium.batches import BatchConverter
from vecenvs.views.gymnasium.single_envs import SingleEnvAccess


class SendRecv(SingleEnvAccess):
    """The part of GymnasiumVecEnv that returns the rows of one lock-step in several calls of `recv`."""

    _observations: BatchConverter
    _actions: BatchConverter
    _sent: bool  # whether the unfinished step was started by `send`
    _ready: Batch | None  # rows that `recv` has not returned yet

    def send(self, actions: Any, indices: Indices = None) -> None:
        self._check_idle("send")
        slots = parse_indices(indices, self.num_envs)
        if len(slots) < self.num_envs:
            kind = type(self.vector_env.unwrapped).__name__
            raise VecEnvError(f"{kind} steps all its {self.num_envs} envs at once: send an action for each of them")
        order = np.argsort(slots)
        self._start([part[order] for part in parse_actions(self._actions.layout, actions, self.num_envs)])
        self._sent = True

    def reset_async(self, indices: Indices = None, *, seed: Seeds = None, options: Options = None) -> None:
        self._check_idle("reset_async")
        slots = parse_indices(indices, self.num_envs)
        obs = self._reset(slots, seed, options)
        if slots:
            infos = [{**self.reset_infos[slot], "TimeLimit.truncated": False} for slot in slots]
            self._ready = reset_batch(slots, obs, infos)

    def groups(self, count: int) -> list[NDArray[np.int64]]:
        if count != 1:
            kind = type(self.vector_env.unwrapped).__name__
            raise ValueError(f"{kind} steps all its {self.num_envs} envs at once: they make 1 group, not {count!r}")
        return super().groups(count)

    def recv(
        self, min_envs: int = 1, max_envs: int | None = None, timeout: float | None = None, indices: Indices = None
    ) -> Batch:
        self._check_open("recv")
        due = self.num_envs if self._sent else 0 if self._ready is None else len(self._ready)
        check_portion(due, min_envs, max_envs)
        slots = None if indices is None else parse_indices(indices, self.num_envs)
        if slots == []:
            raise ValueError("recv(indices=...) of no env: give at least one")
        if self._sent:
            self._ready = self._stepped(timeout)
        assert self._ready is not None
        if slots is None:
            received, self._ready = split_batch(self._observations, self._ready, max_envs)
        else:
            received, self._ready = self._chosen(slots, self._ready)
        return received

    def _chosen(self, slots: list[int], ready: Batch) -> tuple[Batch, Batch | None]:
        """Return the rows of these envs, and the remaining rows or None."""
        places = {slot: j for j, slot in enumerate(ready.indices.tolist())}
        missing = [slot for slot in slots if slot not in places]
        if missing:
            raise NotSteppingError(f"recv of envs {describe_indices(missing)}, which have no command: send first")
        rows = [places.pop(slot) for slot in slots]
        rest = [*places.values()]
        form = self._observations
        return _slice_batch(form, ready, rows), _slice_batch(form, ready, rest) if rest else None

    def _stepped(self, timeout: float | None) -> Batch:
        obs, infos = self._finish(timeout)
        every, rewards = np.arange(self.num_envs), self.rewards64.astype(np.float32)
        return Batch(every, obs, rewards, self.terminated, self.truncated, infos, self.active)

    @abc.abstractmethod
    def _start(self, parts: list[NDArray[Any]]) -> None:
        """Start a step of all envs; `parts` has one array of actions per leaf of the action space."""

    @abc.abstractmethod
    def _finish(self, timeout: float | None) -> tuple[Any, list[dict[str, Any]]]:
        """Wait for the started step; return its observations and infos."""

    @abc.abstractmethod
    def _reset(self, slots: list[int], seed: Seeds, options: Options) -> Any:
        """Reset some envs; return their first observations."""


def reset_batch(slots: list[int], obs: Any, infos: list[dict[str, Any]]) -> Batch:
    """Return the batch of a reset: reward 0, nothing ended, inactive."""
    rewards, false = np.zeros(len(slots), dtype=np.float32), np.zeros(len(slots), dtype=bool)
    return Batch(np.array(slots, dtype=np.int64), obs, rewards, false, false.copy(), infos, false.copy())


def split_batch(form: BatchConverter, batch: Batch, k: int | None) -> tuple[Batch, Batch | None]:
    """Return the first k rows, and the remaining rows or None."""
    if k is None or k >= len(batch):
        return batch, None
    return _slice_batch(form, batch, slice(k)), _slice_batch(form, batch, slice(k, None))


def _slice_batch(form: BatchConverter, batch: Batch, rows: slice | list[int]) -> Batch:
    return Batch(
        batch.indices[rows],
        form.rows(batch.obs, rows),
        batch.rewards[rows],
        batch.terminated[rows],
        batch.truncated[rows],
        batch.infos[rows] if isinstance(rows, slice) else [batch.infos[row] for row in rows],
        batch.active[rows],
    )
