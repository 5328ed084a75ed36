"""Sums of n rewards per env: cpprb does the arithmetic, on positions in the env's run of rows instead of the rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from vecenvs.replay.schema import Array, Rows, Schema
from vecenvs.replay.storage import storage_classes

_PIECE = 256  # rows given to cpprb at a time
_WINDOW_END = ("next_obs", "terminated", "truncated")  # what an n-step transition has of its last step


class NStep:
    """Turns the one-step rows of one env, in order, into n-step ones. They come n - 1 rows late.

    Row t becomes: obs and action of step t; reward = sum of gamma**k * r[t + k] over m steps, m = n or fewer at the
    episode's end; discount = gamma**m; next_obs, terminated and truncated of step t + m - 1.
    """

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._n = schema.n_step
        self._size = _PIECE + self._n  # more than can come out at once
        columns: dict[str, dict[str, Any]] = {"first": {"dtype": np.int64}}
        columns |= {name: {"dtype": np.float32} for name in ("reward", "gain", "done")}
        nstep = {"size": self._n, "gamma": schema.gamma, "rew": ["reward", "gain"]}
        self._ring = storage_classes()[0](self._size, columns, Nstep=nstep)
        self._waiting = schema.empty(0)  # rows whose windows are not complete
        self._cuts = np.zeros(0, np.bool_)  # and after which of them an episode ended
        self._begin = 0  # the position of the first of them
        self._ends = [column.label for column in schema.columns if column.field in _WINDOW_END]

    def add(self, rows: Rows, cuts: Array) -> Rows:
        """Give the transitions that are complete with these rows; after those where `cuts` is True an episode ends."""
        begin = self._begin + len(self._waiting)
        rewards = self._schema.fields(rows)["reward"]
        pieces = range(0, len(rows), _PIECE)
        parts = [self._feed(begin + k, rewards[k : k + _PIECE], cuts[k : k + _PIECE]) for k in pieces]
        run, cuts = np.concatenate([self._waiting, rows]), np.concatenate([self._cuts, cuts])
        complete = self._complete(run, cuts, parts)
        kept = min(len(run), self._n - 1)
        self._waiting, self._cuts = run[len(run) - kept :].copy(), cuts[len(run) - kept :]
        self._begin += len(run) - kept
        return complete

    def end(self) -> Rows:
        """End the episode after the last row that was added; give what was waiting."""
        if not len(self._waiting):
            return self._waiting
        before = self._ring.get_next_index()
        self._ring.on_episode_end()
        complete = self._complete(self._waiting, self._cuts, [self._read(before)])
        self._begin += len(self._waiting)
        self._waiting, self._cuts = self._schema.empty(0), self._cuts[:0]
        return complete

    def _feed(self, begin: int, rewards: Array, cuts: Array) -> dict[str, Array]:
        n = len(rewards)
        before = self._ring.get_next_index()
        # Copies: cpprb sums in place. `gain` sums up to 1 - gamma**m, since it does not tell m.
        self._ring.add(
            first=np.arange(begin, begin + n),
            reward=np.array(rewards, np.float32),
            gain=np.full(n, 1.0 - self._schema.gamma, np.float32),
            done=cuts.astype(np.float32),
        )
        return self._read(before)

    def _read(self, before: int) -> dict[str, Array]:
        count = (self._ring.get_next_index() - before) % self._size
        part = self._ring.rows_at((before + np.arange(count)) % self._size)
        return {name: column[:, 0] for name, column in part.items()}

    def _complete(self, run: Rows, cuts: Array, parts: list[dict[str, Array]]) -> Rows:
        """Put rows together: where a window begins, what cpprb has summed up, where it ends."""
        first = np.concatenate([part["first"] for part in parts] or [np.zeros(0, np.int64)]) - self._begin
        if not len(first):
            return self._schema.empty(0)
        ends = np.append(np.flatnonzero(cuts), len(run) - 1)
        last = np.minimum(first + self._n - 1, ends[np.searchsorted(ends, first)])
        rows: Rows = run[first]
        target, source = self._schema.fields(rows), self._schema.fields(run[last])
        target["reward"][:] = np.concatenate([part["reward"] for part in parts])
        target["discount"][:] = 1.0 - np.concatenate([part["gain"] for part in parts])
        for label in self._ends:
            target[label][...] = source[label]
        return rows
