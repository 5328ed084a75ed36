"""VecTransposeImage: images with the channels first, as PyTorch's convolutions take them."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from vecenvs.vec_env import Batch, VecEnv
from vecenvs.wrappers.vec_rows import TERMINAL, VecRowsWrapper, dict_space, last_infos


class VecTransposeImage(VecRowsWrapper):
    """Turn images (h, w, c) into (c, h, w), also in Dict observations and "terminal_observation" (SB3's wrapper).

    An image is a Box (h, w, c) of uint8 from 0 to 255; other entries of a Dict stay as they are. The arrays are
    transposed views of those that `venv` returns: no copy is made.

    Args:
        venv: the VecEnv to wrap.
        skip: change nothing.

    Raises:
        ValueError: there is no image, or one has its channels first already: its first axis is the shortest.
    """

    def __init__(self, venv: VecEnv, skip: bool = False) -> None:
        super().__init__(venv)
        self.skip = skip
        self._keys: tuple[str, ...] = ()
        space = venv.observation_space
        if skip:
            return
        if isinstance(space, spaces.Dict):
            self._keys = tuple(key for key, sub in space.spaces.items() if is_image(sub))
            if not self._keys:
                raise ValueError(f"none of the observations {', '.join(map(str, space.spaces))} is an image: {space}")
            subspaces = dict(space.spaces)
            subspaces.update((key, _transposed_space(subspaces[key], key)) for key in self._keys)
            self.observation_space = dict_space(subspaces)
        else:
            self.observation_space = _transposed_space(space)

    def _on_rows(self, batch: Batch, exact: NDArray[np.float64], lock_step: bool) -> None:
        if self.skip:
            return
        batch.obs = self._transpose(batch.obs)
        for info in last_infos(batch):
            info[TERMINAL] = self._transpose(info[TERMINAL])

    def _transpose(self, obs: Any) -> Any:
        """Transpose one observation or a batch of them."""
        if not isinstance(obs, dict):
            return np.moveaxis(obs, -1, -3)
        return {key: np.moveaxis(value, -1, -3) if key in self._keys else value for key, value in obs.items()}


def is_image(space: spaces.Space[Any]) -> bool:
    """Tell whether a space is one of images: Box, uint8, three axes, bounds 0 and 255 (SB3's rule)."""
    return (
        isinstance(space, spaces.Box)
        and space.dtype == np.uint8
        and len(space.shape) == 3
        and bool(np.all(space.low == 0) and np.all(space.high == 255))
    )


def channels_first(space: spaces.Box) -> bool:
    """Tell whether an image's first axis, as the shortest, has its channels (SB3's rule)."""
    return int(np.argmin(space.shape)) == 0


def _transposed_space(space: spaces.Space[Any], key: str | None = None) -> spaces.Box:
    where = "the observations are" if key is None else f"the observations {key!r} are"
    if not isinstance(space, spaces.Box) or not is_image(space):
        raise ValueError(f"{where} no images (a Box of uint8 from 0 to 255 with three axes): {space}")
    if channels_first(space):
        raise ValueError(f"{where} of shape {space.shape}, channels first already: leave VecTransposeImage out")
    return spaces.Box(np.moveaxis(space.low, -1, 0), np.moveaxis(space.high, -1, 0), dtype=np.uint8)
