"""Seeds and options of a reset, in little memory where all envs have the same ones, or seeds s + i."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from vecenvs.batch.values import copy_containers


class ResetArguments(NamedTuple):
    """What the envs of a reset get.

    `seeds` is an int s if each env i gets the seed s + i, else has a seed or None for each env. `options` is one dict
    for all envs, or with `each_options` has a dict or None for each. None stands for none.
    """

    seeds: int | dict[int, int | None] | None
    options: Any
    each_options: bool = False

    def of(self, env: int) -> tuple[int | None, dict[str, Any] | None]:
        """Return the seed and the options of an env."""
        seeds, options = self.seeds, self.options
        seed = seeds + env if isinstance(seeds, int) else None if seeds is None else seeds.get(env)
        return seed, options.get(env) if self.each_options else options

    def part(self, envs: Iterable[int]) -> ResetArguments:
        """Return what concerns these envs."""
        seeds, options = self.seeds, self.options
        if isinstance(seeds, dict):
            seeds = {env: seeds[env] for env in envs}
        return ResetArguments(seeds, {env: options[env] for env in envs} if self.each_options else options,
                              self.each_options)  # fmt: skip


NONE_GIVEN = ResetArguments(None, None)

# With `episode_seeds` the keys of the infos of resets that tell the episode's seed and its number.
SEED, NUMBER = "episode_seed", "episode_number"


class SeedStream(NamedTuple):
    """An episode of a slot whose resets are all seeded: its number since the slot was given the seed `root`."""

    root: int
    number: int

    def seed(self, slot: int) -> int:
        """Return the seed of the episode: 32 bits, a size that every generator in use takes; `root` for number 0."""
        if not self.number:
            return self.root
        return int(np.random.SeedSequence(self.root, spawn_key=(slot, self.number)).generate_state(1)[0])

    def after(self, count: int = 1) -> SeedStream:
        """Return the episode so many episodes later."""
        return SeedStream(self.root, self.number + count)


def hold(held: dict[int, dict[str, Any]], env: int, name: str, value: Any) -> None:
    """Keep the "seed" or the "options" of the env's next reset in `held`; None takes back what was kept."""
    kept = {key: each for key, each in held.get(env, {}).items() if key != name}
    if value is not None:
        kept[name] = copy_containers(value)
    held[env] = kept
