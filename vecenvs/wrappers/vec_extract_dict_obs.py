"""VecExtractDictObs: return one entry of Dict observations."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from vecenvs.vec_env import Batch, VecEnv
from vecenvs.wrappers.vec_rows import TERMINAL, VecRowsWrapper, last_infos


class VecExtractDictObs(VecRowsWrapper):
    """Replace each observation, also in "terminal_observation", by its entry `key` (baselines' and SB3's wrapper).

    Args:
        venv: a VecEnv with Dict observations.
        key: the entry.

    Raises:
        TypeError: the observations are not a Dict.
        KeyError: they have no such key.
    """

    def __init__(self, venv: VecEnv, key: str) -> None:
        super().__init__(venv)
        space = venv.observation_space
        if not isinstance(space, spaces.Dict):
            raise TypeError(f"VecExtractDictObs takes a key out of Dict observations; these are {space}")
        if key not in space.spaces:
            raise KeyError(f"the observations have no key {key!r}: there are {', '.join(map(str, space.spaces))}")
        self.key = key
        self.observation_space = space.spaces[key]

    def _on_rows(self, batch: Batch, exact: NDArray[np.float64], lock_step: bool) -> None:
        batch.obs = batch.obs[self.key]
        for info in last_infos(batch):
            info[TERMINAL] = info[TERMINAL][self.key]
