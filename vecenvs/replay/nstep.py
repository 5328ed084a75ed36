"""n-step transitions of one env, made of its one-step rows."""

from __future__ import annotations

import numpy as np

from vecenvs.replay.schema import Array, Rows, Schema

_LAST_STEP = ("next_obs", "terminated", "truncated")  # an n-step transition takes these from its last step


class NStep:
    """Turns the one-step rows of one env into n-step rows, with a delay of n - 1 rows.

    Row t gets: obs and action of step t; reward, the sum of gamma**k * r[t + k] over m steps, where m is n or less at
    the episode's end; discount = gamma**m; next_obs, terminated and truncated of step t + m - 1.
    """

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._waiting = schema.empty(0)  # rows with fewer than n - 1 later rows
        self._cuts = np.zeros(0, np.bool_)  # for each of them, whether an episode ended after it
        self._last_step_labels = [column.label for column in schema.columns if column.field in _LAST_STEP]

    def add(self, rows: Rows, cuts: Array) -> Rows:
        """Add rows, with an episode's end after each True in `cuts`; return the transitions that are complete."""
        run, cuts = np.concatenate([self._waiting, rows]), np.concatenate([self._cuts, cuts])
        n = self._schema.n_step
        steps = np.arange(len(run))
        ends = np.append(np.flatnonzero(cuts), len(run) + n)  # the episode that goes on ends later
        last = np.minimum(steps + n - 1, ends[np.searchsorted(ends, steps)])
        count = int(np.searchsorted(last, len(run)))
        self._waiting, self._cuts = run[count:].copy(), cuts[count:]
        return self._n_step_rows(run, last[:count])

    def end(self) -> Rows:
        """End the episode after the last added row; return the remaining transitions."""
        if len(self._cuts):
            self._cuts[-1] = True
        return self.add(self._schema.empty(0), self._cuts[:0])

    def _n_step_rows(self, run: Rows, last: Array) -> Rows:
        """Return the first rows of a run as n-step rows; `last` has the number of the last step of each."""
        rows: Rows = run[: len(last)].copy()
        if not len(rows):
            return rows
        target, rewards = self._schema.fields(rows), self._schema.fields(run)["reward"]
        source = self._schema.fields(run[last])
        first = np.arange(len(last))
        total = np.zeros(len(last))
        for k in range(self._schema.n_step):
            inside = first + k <= last
            total[inside] += self._schema.gamma**k * rewards[first[inside] + k]
        target["reward"][:] = total
        target["discount"][:] = self._schema.gamma ** (last - first + 1)
        for label in self._last_step_labels:
            target[label][...] = source[label]
        return rows
