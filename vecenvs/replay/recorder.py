"""From the steps of a VecEnv to transitions: what is one, and what each of them has."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from vecenvs.replay.nstep import NStep
from vecenvs.replay.schema import Array, Rows, Schema

Mask = NDArray[np.bool_]


class Recorder:
    """Collects the steps of `num_envs` envs and gives their transitions as packed rows.

    Every array given to `add` has num_envs rows and must not change any more.
    """

    def __init__(self, schema: Schema, num_envs: int, explorer: int) -> None:
        self._schema = schema
        self._num_envs = num_envs
        self._explorer = explorer
        self._steps: list[list[Array]] = []
        self._masks: list[Mask] = []
        self._cuts: list[Mask] = []
        self._streams = [NStep(schema) for _ in range(num_envs)] if schema.n_step > 1 else []
        self._labels = [column.label for column in schema.columns if column.field not in ("explorer", "discount")]
        self.count = 0  # transitions that wait, n-step windows that are open not counted

    def add(
        self,
        obs: Sequence[Array],
        action: Sequence[Array],
        next_obs: Sequence[Array],
        scalars: Sequence[Array],
        mask: Mask,
        cut: Mask,
    ) -> None:
        """Note one step, leaf by leaf. `scalars`: reward, terminated, truncated, episode.

        Rows where `mask` is False are no transitions; after those where `cut` is True the episode does not go on.
        """
        self._steps.append([*obs, *action, *next_obs, *scalars])
        self._masks.append(mask)
        self._cuts.append(cut)
        self.count += int(np.count_nonzero(mask))

    def take(self) -> Rows:
        """Give the transitions noted since the last time; n-step ones n - 1 steps late."""
        if not self._steps:
            return self._schema.empty(0)
        rows = self._schema.empty(len(self._steps) * self._num_envs)
        fields = self._schema.fields(rows)
        for label, parts in zip(self._labels, zip(*self._steps, strict=True), strict=True):
            np.concatenate(parts, out=fields[label], casting="same_kind")
        fields["explorer"][:] = self._explorer
        masks, cuts = np.stack(self._masks), np.stack(self._cuts)
        self._steps, self._masks, self._cuts, self.count = [], [], [], 0
        if not self._streams:
            return rows if masks.all() else rows[masks.ravel()]
        grid = rows.reshape(len(masks), self._num_envs, -1)
        found = [self._windows(env, grid[:, env], masks[:, env], cuts[:, env]) for env in range(self._num_envs)]
        return np.concatenate(found)

    def _windows(self, env: int, rows: Rows, mask: Mask, cut: Mask) -> Rows:
        """The n-step transitions of one env. After a cut that is no transition itself, the one before was the last."""
        stream, before = self._streams[env], np.cumsum(mask)
        kept, cuts = np.ascontiguousarray(rows[mask]), cut[mask]
        parts = []
        for count in before[cut & ~mask].tolist():
            if count:
                cuts[count - 1] = True
            else:
                parts.append(stream.end())
        return np.concatenate([*parts, stream.add(kept, cuts)])
