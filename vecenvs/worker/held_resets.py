"""Seeds and options for the next resets of the envs of a batched env."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.utils.env_checker import data_equivalence
from numpy.typing import NDArray

from vecenvs.batch.reset_arguments import ResetArguments
from vecenvs.batch.values import copy_containers
from vecenvs.errors import VecEnvError


class HeldResets:
    """The seeds and options that commands have said in advance, until a reset uses them. `first` is the first slot."""

    def __init__(self, first: int) -> None:
        self._first = first
        self._held: dict[int, tuple[Any, Any]] = {}  # by env

    def hold(self, env: int, seed: Any, options: Any) -> None:
        """Keep seed and options for the env's next reset which is not the batched env's own."""
        before = self._held.get(env, (None, None))
        self._held[env] = (before[0] if seed is None else seed, before[1] if options is None else options)

    def arguments(
        self, mask: NDArray[np.bool_], given: ResetArguments
    ) -> tuple[Sequence[int | None], dict[str, Any] | None]:
        """Return a seed for each env, and the options, for a reset of the envs of `mask`. What is `given` comes first.

        Raises:
            VecEnvError: their options differ.
        """
        n, first = len(mask), self._first
        if not (self._held or given.each_options or isinstance(given.seeds, dict)):
            start = None if given.seeds is None else given.seeds + first
            return [None] * n if start is None else range(start, start + n), _copied(given.options)
        found: list[int | None] = [None] * n
        nothing = (None, None)
        common: Any = nothing
        for env in np.flatnonzero(mask).tolist():
            asked, held = given.of(first + env), self._held.get(env, nothing)
            found[env] = held[0] if asked[0] is None else asked[0]
            options = held[1] if asked[1] is None else asked[1]
            if common is nothing:
                common = options
            elif options is not common and not data_equivalence(options, common):
                raise VecEnvError(
                    "a batched env takes the same options for all envs that are reset at once: pass one dict for all"
                )
        return found, _copied(common)

    def forget(self, mask: NDArray[np.bool_]) -> None:
        """Forget what a reset of these envs has used."""
        if self._held:
            self._held = {env: held for env, held in self._held.items() if not mask[env]}


def _copied(options: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if options is None else copy_containers(dict(options))
