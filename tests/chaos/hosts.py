"""The hosts of a round, that is, what its env functions make: single envs, and batched envs of the suite's kinds."""

from __future__ import annotations

import functools
import os
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

from chaos.env import ChaosEnv
from vecenvs.batched import Batched
from vecenvs.testing.envs.batches import KINDS

SINGLE = ""
BY_ITSELF = frozenset({"same_step", "next_step", "arrays", "vec_env", "vec_env_next"})  # resets ended episodes itself
OPAQUE = frozenset({"arrays"})  # shows no single envs, and resets all of them at once
MOST_ENVS = 7


class Host(NamedTuple):
    """What one env function makes: a batched env of this kind, or a SINGLE env."""

    kind: str
    first: int
    size: int

    @property
    def slots(self) -> range:
        return range(self.first, self.first + self.size)


def draw_hosts(rng: random.Random, mode: str, info_attrs: Sequence[str]) -> list[Host]:
    """Draw the hosts of a round: some single, some batched, all of the same kind or mixed."""
    kinds = [kind for kind, (its, _) in KINDS.items() if its == mode and not (info_attrs and kind in OPAQUE)]
    if not kinds or rng.random() < 0.4:
        return [Host(SINGLE, k, 1) for k in range(rng.randint(1, 6))]
    if rng.random() < 0.5:
        kinds = [rng.choice(kinds)]
    found: list[Host] = []
    for _ in range(rng.randint(1, 4)):
        start = found[-1].slots.stop if found else 0
        kind = SINGLE if rng.random() < 0.3 else rng.choice(kinds)
        size = 1 if kind == SINGLE else rng.choice([1, 2, 2, 3, 4])
        if start + size <= MOST_ENVS:
            found.append(Host(kind, start, size))
    return found


def functions(hosts: Sequence[Host], form: str, pad: int, single: type[ChaosEnv] = ChaosEnv) -> list[Any]:
    """Return the env functions of these hosts; `single` is the class of the envs."""
    found: list[Any] = []
    for kind, first, size in hosts:
        singles = [functools.partial(single, first + k, os.getpid(), form, pad) for k in range(size)]
        found.append(singles[0] if kind == SINGLE else Batched(functools.partial(KINDS[kind][1], singles), size))
    return found
