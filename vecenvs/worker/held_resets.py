"""Seeds and options for the next resets of the envs of a batched env."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vecenvs.batch.values import copy_containers
from vecenvs.errors import VecEnvError

Given = dict[int, tuple[Any, Any]]  # by env: a seed and options


class HeldResets:
    """The seeds and options that commands have said in advance, until a reset uses them."""

    def __init__(self) -> None:
        self._held: Given = {}

    def hold(self, env: int, seed: Any, options: Any) -> None:
        """Keep seed and options for the env's next reset which is not the batched env's own."""
        before = self._held.get(env, (None, None))
        self._held[env] = (before[0] if seed is None else seed, before[1] if options is None else options)

    def arguments(self, mask: NDArray[np.bool_], given: Given) -> tuple[list[int | None], dict[str, Any] | None]:
        """Return a seed for each env, and the options, for a reset of the envs of `mask`. What is `given` comes first.

        Raises:
            VecEnvError: their options differ.
        """
        seeds: list[int | None] = [None] * len(mask)
        if not (given or self._held):
            return seeds, None
        nothing = (None, None)
        common: Any = nothing
        for env in np.flatnonzero(mask).tolist():
            asked, held = given.get(env, nothing), self._held.get(env, nothing)
            seeds[env] = held[0] if asked[0] is None else asked[0]
            options = held[1] if asked[1] is None else asked[1]
            if common is nothing:
                common = options
            elif options is not common and options != common:
                raise VecEnvError("a batched env takes the same options for all envs that are reset at once")
        return seeds, None if common is None or common is nothing else copy_containers(dict(common))

    def forget(self, mask: NDArray[np.bool_]) -> None:
        """Forget what a reset of these envs has used."""
        if self._held:
            self._held = {env: held for env, held in self._held.items() if not mask[env]}
