"""Seeds and options for the next resets of the envs of a batched env."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vecenvs.batch.values import copy_containers
from vecenvs.errors import VecEnvError
from vecenvs.transport.reset_arguments import ResetArguments, hold
from vecenvs.worker.hosts.batched_host import MASK


class NextResets:
    """The seeds and options that commands have said in advance, until a reset uses them. `first` is the first slot."""

    def __init__(self, first: int) -> None:
        self._first = first
        self._held: dict[int, dict[str, Any]] = {}  # by env

    def hold(self, env: int, name: str, value: Any) -> None:
        """Keep the "seed" or the "options" of the env's next reset which is not the batched env's own; see `hold`."""
        hold(self._held, env, name, value)

    def of(self, env: int) -> dict[str, Any] | None:
        """Return what is kept for the env, None for nothing."""
        return self._held.get(env) or None

    def arguments(
        self, mask: NDArray[np.bool_], given: ResetArguments, *, apart: bool
    ) -> list[tuple[NDArray[np.bool_], Sequence[int | None], dict[str, Any] | None]]:
        """Return the arguments of a reset of the envs of `mask`. What is `given` comes first.

        Returns:
            For each group of envs with the same options its mask, a seed for each env of the batch, and the options.

        Raises:
            VecEnvError: there are several groups, and the batched env cannot reset some of its envs `apart`; or options
                have a mask of their own. The options that were kept are forgotten.
        """
        n, first = len(mask), self._first
        seeds: list[int | None] | range = [None] * n
        groups = [(given.options, mask)]
        if self._held or given.each_options or isinstance(given.seeds, dict):
            seeds, groups = self._grouped(mask, given)
        elif given.seeds is not None:
            seeds = range(given.seeds + first, given.seeds + first + n)
        problem = ""
        if len(groups) > 1 and not apart:
            problem = "a batched env that cannot reset some of its envs takes the same options for all: pass one dict"
        elif any(MASK in (options or ()) for options, _ in groups):
            problem = f"options[{MASK!r}] is how a batched env is told which envs to reset: call reset(mask) instead"
        if problem:
            for env in list(self._held):
                self.hold(env, "options", None)
            raise VecEnvError(problem)
        return [(rows, seeds, _copied(options)) for options, rows in groups]

    def _grouped(
        self, mask: NDArray[np.bool_], given: ResetArguments
    ) -> tuple[list[int | None], list[tuple[Any, NDArray[np.bool_]]]]:
        """Return the seeds, and groups of envs with the same options."""
        seeds: list[int | None] = [None] * len(mask)
        groups: list[tuple[Any, NDArray[np.bool_]]] = []
        for env in np.flatnonzero(mask).tolist():
            seed, options = given.of(self._first + env)
            held = self._held.get(env, {})
            seeds[env] = held.get("seed") if seed is None else seed
            options = held.get("options") if options is None else options
            rows = next((rows for other, rows in groups if _equal(other, options)), None)
            if rows is None:
                groups.append((options, rows := np.zeros(len(mask), bool)))
            rows[env] = True
        return seeds, groups

    def forget(self, mask: NDArray[np.bool_]) -> None:
        """Forget what a reset of these envs has used."""
        if self._held:
            self._held = {env: held for env, held in self._held.items() if not mask[env]}


def _equal(one: Any, other: Any) -> bool:
    if one is other or type(one) is not type(other):
        return one is other
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_equal(value, other[key]) for key, value in one.items())
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, np.ndarray):
        return (one.dtype, one.shape) == (other.dtype, other.shape) and _equal(one.tolist(), other.tolist())
    try:
        return bool(one == other or (one != one and other != other))  # both NaN
    except Exception:  # whatever a foreign class raises
        return False


def _copied(options: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if options is None else copy_containers(dict(options))
