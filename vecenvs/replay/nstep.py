"""n-step transitions per env. cpprb sums the rewards; it gets the numbers of rows, not the rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from vecenvs.replay.schema import Array, Rows, Schema
from vecenvs.replay.storage import columns_at, import_cpprb

_PIECE = 256  # rows given to cpprb at a time
_LAST_STEP = ("next_obs", "terminated", "truncated")  # an n-step transition takes these from its last step


class NStep:
    """Turns the one-step rows of one env into n-step rows, with a delay of n - 1 rows.

    Row t gets: obs and action of step t; reward, the sum of gamma**k * r[t + k] over m steps, where m is n or less at
    the episode's end; discount = gamma**m; next_obs, terminated and truncated of step t + m - 1.
    """

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._n = schema.n_step
        self._size = _PIECE + self._n  # more than one call can return
        columns: dict[str, dict[str, Any]] = {"first": {"dtype": np.int64}}
        columns |= {name: {"dtype": np.float32} for name in ("reward", "gain", "done")}
        nstep = {"size": self._n, "gamma": schema.gamma, "rew": ["reward", "gain"]}
        self._ring = import_cpprb().ReplayBuffer(self._size, columns, Nstep=nstep)
        self._waiting = schema.empty(0)  # rows with fewer than n - 1 later rows
        self._cuts = np.zeros(0, np.bool_)  # for each of them, whether an episode ended after it
        self._first_position = 0  # the number of the first of them
        self._last_step_labels = [column.label for column in schema.columns if column.field in _LAST_STEP]

    def add(self, rows: Rows, cuts: Array) -> Rows:
        """Add rows, with an episode's end after each True in `cuts`; return the transitions that are complete."""
        begin = self._first_position + len(self._waiting)
        rewards = self._schema.fields(rows)["reward"]
        pieces = range(0, len(rows), _PIECE)
        parts = [self._add_rewards(begin + k, rewards[k : k + _PIECE], cuts[k : k + _PIECE]) for k in pieces]
        run, cuts = np.concatenate([self._waiting, rows]), np.concatenate([self._cuts, cuts])
        complete = self._join(run, cuts, parts)
        kept = min(len(run), self._n - 1)
        self._waiting, self._cuts = run[len(run) - kept :].copy(), cuts[len(run) - kept :]
        self._first_position += len(run) - kept
        return complete

    def end(self) -> Rows:
        """End the episode after the last added row; return the remaining transitions."""
        if not len(self._waiting):
            return self._waiting
        before = self._ring.get_next_index()
        self._ring.on_episode_end()
        complete = self._join(self._waiting, self._cuts, [self._read_sums(before)])
        self._first_position += len(self._waiting)
        self._waiting, self._cuts = self._schema.empty(0), self._cuts[:0]
        return complete

    def _add_rewards(self, begin: int, rewards: Array, cuts: Array) -> dict[str, Array]:
        n = len(rewards)
        before = self._ring.get_next_index()
        # A copy of the rewards, as cpprb sums in place. `gain` sums up to 1 - gamma**m, as cpprb does not return m.
        self._ring.add(
            first=np.arange(begin, begin + n),
            reward=np.array(rewards, np.float32),
            gain=np.full(n, 1.0 - self._schema.gamma, np.float32),
            done=cuts.astype(np.float32),
        )
        return self._read_sums(before)

    def _read_sums(self, before: int) -> dict[str, Array]:
        count = (self._ring.get_next_index() - before) % self._size
        part = columns_at(self._ring, (before + np.arange(count)) % self._size)
        return {name: column[:, 0] for name, column in part.items()}

    def _join(self, run: Rows, cuts: Array, parts: list[dict[str, Array]]) -> Rows:
        """Join the first row of each n-step transition, cpprb's sums, and the last row."""
        first = np.concatenate([part["first"] for part in parts] or [np.zeros(0, np.int64)]) - self._first_position
        if not len(first):
            return self._schema.empty(0)
        ends = np.append(np.flatnonzero(cuts), len(run) - 1)
        last = np.minimum(first + self._n - 1, ends[np.searchsorted(ends, first)])
        rows: Rows = run[first]
        target, source = self._schema.fields(rows), self._schema.fields(run[last])
        target["reward"][:] = np.concatenate([part["reward"] for part in parts])
        target["discount"][:] = 1.0 - np.concatenate([part["gain"] for part in parts])
        for label in self._last_step_labels:
            target[label][...] = source[label]
        return rows
