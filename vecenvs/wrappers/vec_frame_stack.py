"""VecFrameStack: join each observation with those before it in its episode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from vecenvs.arguments import parse_int
from vecenvs.batch.layout import SpaceLayout
from vecenvs.vec_env import Batch, VecEnv
from vecenvs.wrappers.vec_rows import (
    TERMINAL,
    VecRowsWrapper,
    begins,
    check_last,
    dict_space,
    last_rows,
    lost,
    repeats,
    shows_next,
)
from vecenvs.wrappers.vec_transpose_image import channels_first, is_image

Array = NDArray[Any]
Order = str | None


class VecFrameStack(VecRowsWrapper):
    """Join the last `n_stack` observations of each env along one axis, the newest last (baselines' and SB3's wrapper).

    Zeros stand before an episode's first observation. "terminal_observation" is stacked too, with the observations
    before it in its episode. Rows that repeat an observation (in async mode, or of an env whose worker was replaced)
    leave the stack as it is.

    Args:
        venv: a VecEnv with Box observations, or Dict observations of them, whose entries are stacked one by one.
        n_stack: the number of observations, at least 1.
        channels_order: the axis: "first" or "last" of an observation's axes. None takes the first axis of images
            whose first axis is the shortest, and the last axis otherwise. For Dict observations it may be a mapping
            with an entry for each key.

    Raises:
        TypeError: the observations are of another space, or `channels_order` is a mapping for a Box.
        ValueError: a Box has no axes, or `channels_order` has other keys or values than those above.
    """

    def __init__(self, venv: VecEnv, n_stack: int, channels_order: Order | Mapping[str, Order] = None) -> None:
        super().__init__(venv)
        self.copy = True
        self.n_stack = parse_int("n_stack", n_stack, 1)
        self._layout = SpaceLayout(venv.observation_space)
        axes: list[int] = []
        self.observation_space = _stacked_space(venv.observation_space, self.n_stack, channels_order, axes, "")
        leaves = zip(SpaceLayout(self.observation_space).leaves, axes, strict=True)
        self._stacks = [np.zeros((self.num_envs, *leaf.shape), leaf.dtype) for leaf, _ in leaves]
        self._axes = axes

    def close(self) -> None:
        super().close()
        self._stacks = []  # a closed VecEnv, which may be kept, holds no rows

    def _on_rows(self, batch: Batch, exact: NDArray[np.float64], lock_step: bool) -> None:
        starts = begins(batch) | shows_next(batch, self.autoreset)
        stale = repeats(batch) | lost(batch)
        ends = last_rows(batch)
        check_last((batch.infos[j] for j in ends), self.venv.observation_space)
        terminals = [self._layout.flatten(batch.infos[j][TERMINAL]) for j in ends]
        # In same_step mode a row shows the next episode: the last observation is in its info alone.
        apart = np.flatnonzero(starts[ends] & ~stale[ends])
        stacked: list[Array] = []
        finals: list[Array] = []
        for k, obs in enumerate(self._layout.flatten(batch.obs)):
            stack, axis = self._stacks[k], self._axes[k]
            before = stack[batch.indices]
            rows = _pushed(before, obs, axis)
            rows[stale] = before[stale]
            final = rows[ends]
            if len(apart):
                final[apart] = _pushed(before[ends[apart]], np.stack([terminals[m][k] for m in apart]), axis)
            rows[starts] = _pushed(np.zeros_like(rows[starts]), obs[starts], axis)
            stack[batch.indices] = rows
            stacked.append(rows)
            finals.append(final)
        for m, j in enumerate(ends):
            batch.infos[j][TERMINAL] = self._layout.unflatten([final[m] for final in finals])
        batch.obs = self._layout.unflatten(stacked)


def _pushed(stack: Array, obs: Array, axis: int) -> Array:
    """Drop the oldest frame and append the newest. `axis` counts from the end, so it fits rows and batches."""
    newer: Any = (..., slice(obs.shape[axis], None), *[slice(None)] * (-axis - 1))
    return np.concatenate((stack[newer], obs), axis=axis)


def _stacked_space(
    space: spaces.Space[Any], n: int, order: Order | Mapping[str, Order], axes: list[int], where: str
) -> spaces.Space[Any]:
    """Return the stacked space; append to `axes` the axis of each leaf, in their order."""
    if isinstance(space, spaces.Dict):
        if isinstance(order, Mapping) and set(order) != set(space.spaces):
            raise ValueError(f"channels_order has {sorted(order)}, the observations{where} {sorted(space.spaces)}")
        return dict_space(
            {
                key: _stacked_space(
                    sub, n, order[key] if isinstance(order, Mapping) else order, axes, f"{where}[{key!r}]"
                )
                for key, sub in space.spaces.items()
            }
        )
    if not isinstance(space, spaces.Box):
        raise TypeError(f"VecFrameStack stacks Box observations, alone or in a Dict; observations{where} are {space}")
    if not space.shape:
        raise ValueError(f"observations{where} have no axis to stack along: {space}")
    if isinstance(order, Mapping):
        raise TypeError("channels_order is a mapping, but the observations are no Dict: give 'first', 'last' or None")
    if order not in ("first", "last", None):
        raise ValueError(f"channels_order must be 'first', 'last' or None, not {order!r}")
    first = order == "first" if order is not None else is_image(space) and channels_first(space)
    axis = -len(space.shape) if first else -1
    axes.append(axis)
    low, high = np.repeat(space.low, n, axis=axis), np.repeat(space.high, n, axis=axis)
    return spaces.Box(low, high, dtype=space.dtype.type)
