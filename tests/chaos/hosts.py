"""The hosts of a round, that is, what its env functions make: single envs, and batched envs of the suite's kinds."""

from __future__ import annotations

import functools
import os
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from chaos.env import ChaosEnv, NamelessEnv
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
    """Return the env functions of these hosts; `single` is the class of the envs. All of NamelessEnv are alike."""
    found: list[Any] = []
    caller = os.getpid()
    for kind, first, size in hosts:
        names = [0 if single is NamelessEnv else first + k for k in range(size)]
        singles = [functools.partial(single, name, caller, form, pad) for name in names]
        found.append(singles[0] if kind == SINGLE else Batched(functools.partial(KINDS[kind][1], singles), size))
    return found


def within(folder: Path, at_once: int, fns: Sequence[Any]) -> list[Any]:
    """Return env functions that raise if more processes than this make their first envs at the same time."""
    found: list[Any] = []
    for number, fn in enumerate(fns):
        make = functools.partial(_make_within, folder, at_once, number, fn.make if isinstance(fn, Batched) else fn)
        found.append(Batched(make, fn.num_envs) if isinstance(fn, Batched) else make)
    return found


_made = set[tuple[int, Path, int]]()  # by this process: what it makes once more has no limit


def _make_within(folder: Path, at_once: int, number: int, make: Any) -> Any:
    if (os.getpid(), folder, number) in _made:
        return make()
    _made.add((os.getpid(), folder, number))
    own = folder / str(os.getpid())
    own.write_bytes(b"")  # no `touch`: cut off between its two calls, it would leave a descriptor
    try:
        time.sleep(0.002)
        starting = [each.name for each in folder.iterdir() if alive(int(each.name))]
        if len(starting) > at_once:
            raise RuntimeError(f"processes {starting} make envs at the same time, and {at_once} may")
        return make()
    finally:
        own.unlink(missing_ok=True)


def alive(pid: int) -> bool:
    """Tell whether a process runs and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
