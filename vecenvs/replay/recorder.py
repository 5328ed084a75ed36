"""Conversion of a VecEnv's steps to transitions."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from vecenvs.replay.nstep import NStep
from vecenvs.replay.schema import Array, Rows, Schema

Mask = NDArray[np.bool_]


class Recorder:
    """Collects the steps of `num_envs` envs and returns their transitions as packed rows.

    Arrays given to `add` have num_envs rows, and must not be changed later.
    """

    def __init__(self, schema: Schema, num_envs: int, explorer: int) -> None:
        self._schema = schema
        self._num_envs = num_envs
        self._explorer = explorer
        self._steps: list[tuple[list[Array], Mask, Mask]] = []
        self._nsteps = [NStep(schema) for _ in range(num_envs)] if schema.n_step > 1 else []
        self._labels = [column.label for column in schema.columns if column.field not in ("explorer", "discount")]
        self.count = 0  # one-step transitions since the last `take`

    def add(
        self,
        obs: Sequence[Array],
        action: Sequence[Array],
        next_obs: Sequence[Array],
        scalars: Sequence[Array],
        mask: Mask,
        cut: Mask,
    ) -> None:
        """Add one step, as arrays per leaf; `scalars` are reward, terminated, truncated and episode.

        Rows where `mask` is False are no transitions. An episode ends after each row where `cut` is True.
        """
        self._steps.append(([*obs, *action, *next_obs, *scalars], mask, cut))
        self.count += int(np.count_nonzero(mask))

    def take(self) -> Rows:
        """Return the transitions since the last call; n-step transitions have a delay of n - 1 steps."""
        if not self._steps:
            return self._schema.empty(0)
        rows = self._schema.empty(len(self._steps) * self._num_envs)
        fields = self._schema.fields(rows)
        columns, masks, cuts = zip(*self._steps, strict=True)
        for label, parts in zip(self._labels, zip(*columns, strict=True), strict=True):
            np.concatenate(parts, out=fields[label], casting="same_kind")
        fields["explorer"][:] = self._explorer
        mask, cut = np.stack(masks), np.stack(cuts)
        nsteps = [copy.copy(nstep) for nstep in self._nsteps]
        if nsteps:
            grid = rows.reshape(len(mask), self._num_envs, -1).swapaxes(0, 1)
            rows = np.concatenate([*map(self._nstep_rows, nsteps, grid, mask.T, cut.T)])
        elif not mask.all():
            rows = rows[mask.ravel()]
        self._steps, self._nsteps, self.count = [], nsteps, 0  # last: a signal's handler may raise in any call
        return rows

    def _nstep_rows(self, nstep: NStep, rows: Rows, mask: Mask, cut: Mask) -> Rows:
        """Return the n-step transitions of one env; a cut on a row that is no transition moves to the one before."""
        before = np.cumsum(mask)
        kept, cuts = np.ascontiguousarray(rows[mask]), cut[mask]
        parts = []
        for count in before[cut & ~mask].tolist():
            if count:
                cuts[count - 1] = True
            else:
                parts.append(nstep.end())
        return np.concatenate([*parts, nstep.add(kept, cuts)])
