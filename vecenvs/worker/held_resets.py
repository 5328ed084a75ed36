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
        self, mask: NDArray[np.bool_], given: ResetArguments, *, apart: bool
    ) -> list[tuple[NDArray[np.bool_], Sequence[int | None], dict[str, Any] | None]]:
        """Return the arguments of a reset of the envs of `mask`. What is `given` comes first.

        Returns:
            For each group of envs with the same options its mask, a seed for each env of the batch, and the options.

        Raises:
            VecEnvError: there are several groups, and the batched env cannot reset some of its envs `apart`. The
                options that were kept are forgotten.
        """
        n, first = len(mask), self._first
        if not (self._held or given.each_options or isinstance(given.seeds, dict)):
            start = None if given.seeds is None else given.seeds + first
            return [(mask, [None] * n if start is None else range(start, start + n), _copied(given.options))]
        seeds: list[int | None] = [None] * n
        groups: list[tuple[Any, NDArray[np.bool_]]] = []
        for env in np.flatnonzero(mask).tolist():
            asked, held = given.of(first + env), self._held.get(env, (None, None))
            seeds[env] = held[0] if asked[0] is None else asked[0]
            options = held[1] if asked[1] is None else asked[1]
            same = (rows for other, rows in groups if other is options or data_equivalence(other, options))
            rows = next(same, None)
            if rows is None:
                groups.append((options, rows := np.zeros(n, bool)))
            rows[env] = True
        if len(groups) > 1 and not apart:
            self._held = {env: (seed, None) for env, (seed, _) in self._held.items()}
            raise VecEnvError(
                "a batched env that cannot reset some of its envs takes the same options for all: pass one dict for all"
            )
        return [(rows, seeds, _copied(options)) for options, rows in groups]

    def forget(self, mask: NDArray[np.bool_]) -> None:
        """Forget what a reset of these envs has used."""
        if self._held:
            self._held = {env: held for env, held in self._held.items() if not mask[env]}


def _copied(options: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if options is None else copy_containers(dict(options))
