"""`Batched`: marks a function that makes one env which steps many envs at once."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vecenvs.errors import VecEnvError, describe_indices

MODES = ("same_step", "next_step", "disabled")


class Batched:
    """A function that makes one batched env, as an entry of `env_fns`.

    All engines take a list of these, also mixed with functions that make a single env each. The envs are numbered
    through: the functions `[Batched(make, 4), make_one]` make the envs 0 to 3 and 4.

    Args:
        make: a function without arguments that returns a gymnasium.vector.VectorEnv, a VecEnv, or any object with
            `reset` and `step` over arrays or tensors (see docs/batched.md).
        num_envs: how many envs the batched env steps at once.
        autoreset: what it does at the end of an episode, "same_step", "next_step" or "disabled", where its metadata
            has no "autoreset_mode".

    Raises:
        TypeError: `make` is not a function, or `num_envs` not an int.
        ValueError: `num_envs` is less than 1, or `autoreset` is unknown.
    """

    def __init__(self, make: Callable[[], Any], num_envs: int, autoreset: str | None = None) -> None:
        if not callable(make):
            raise TypeError(f"Batched takes a function that makes a batched env (lambda: ...), not {make!r}")
        given: Any = num_envs
        if isinstance(given, bool) or not hasattr(given, "__index__"):
            raise TypeError(f"Batched: num_envs must be an int, not {given!r}")
        self.make = make
        self.num_envs: int = given.__index__()
        if self.num_envs < 1:
            raise ValueError(f"Batched: num_envs must be at least 1, not {num_envs}")
        if autoreset not in (None, *MODES):
            raise ValueError(f"Batched: autoreset {autoreset!r} is none of {', '.join(map(repr, MODES))}")
        self.autoreset = autoreset

    def __call__(self) -> Any:
        """Make the batched env."""
        return self.make()

    def __repr__(self) -> str:
        return f"Batched({self.make!r}, {self.num_envs})"


def width(env_fn: Any) -> int:
    """Return how many envs an env function makes."""
    return env_fn.num_envs if isinstance(env_fn, Batched) else 1


def divide(widths: Sequence[int], count: int) -> list[range]:
    """Divide entries of so many envs into `count` groups of adjacent ones, with about as many envs each.

    Returns:
        The envs of each group. Where all entries are single envs, larger groups come first.
    """
    ends = list(itertools.accumulate(widths))
    groups: list[range] = []
    used = start = 0
    for left in range(count, 0, -1):
        wanted = start + math.ceil((ends[-1] - start) / left)
        last = min(bisect.bisect_left(ends, wanted), len(ends) - left)  # each of the other groups gets one, too
        if last > used and ends[last] - wanted > wanted - ends[last - 1]:
            last -= 1
        groups.append(range(start, ends[last]))
        used, start = last + 1, ends[last]
    return groups


class Hosts:
    """Which slots the entries of `env_fns` make, and which of them are stepped together.

    `ranges` has the slots of each function, `batched` those of each batched env, and `num_envs` is their number.
    """

    def __init__(self, env_fns: Sequence[Any]) -> None:
        self.fns = list(env_fns)
        starts = list(itertools.accumulate(map(width, env_fns), initial=0))
        self.num_envs = starts[-1]
        self.ranges = [range(a, b) for a, b in itertools.pairwise(starts)]
        self.batched = [slots for slots, fn in zip(self.ranges, env_fns, strict=True) if isinstance(fn, Batched)]
        self._starts = [slots.start for slots in self.batched]

    def functions_of(self, shard: range) -> list[Any]:
        """Return the functions that make the envs of a shard."""
        return [fn for slots, fn in zip(self.ranges, self.fns, strict=True) if shard.start <= slots.start < shard.stop]

    def shards_of(self, count: int) -> list[range]:
        """Return the slots of `count` groups of adjacent functions: see `divide`."""
        return divide([len(slots) for slots in self.ranges], count)

    def grouped(self, count: int) -> list[NDArray[np.int64]]:
        """Divide the envs into groups of whole batched envs and single ones, of about the same sizes."""
        if type(count) is not int:
            raise TypeError(f"groups takes the number of groups, an int, not {count!r}")
        if not 1 <= count <= len(self.ranges):
            most = len(self.ranges)
            raise ValueError(
                f"{count} groups of {most} batched envs and single ones, none of which is divided: give 1 to {most}"
            )
        groups: list[list[int]] = [[] for _ in range(count)]
        for slots in self.ranges:
            min(groups, key=len).extend(slots)
        return [np.array(group, dtype=np.int64) for group in groups]

    def groups_of(self, slots: Sequence[int]) -> dict[int, list[int]]:
        """Return, for those of `slots` in batched envs, the slots that lie in one of them, by its first slot."""
        found: dict[int, list[int]] = {}
        for slot in slots:
            host = self.host_of(slot)
            if host is not None:
                found.setdefault(host.start, []).append(slot)
        return found

    def host_of(self, slot: int) -> range | None:
        """Return the slots of the batched env that steps this one; None for a single env."""
        position = bisect.bisect_right(self._starts, slot) - 1
        return self.batched[position] if position >= 0 and slot in self.batched[position] else None

    def check_whole(self, what: str, slots: Sequence[int]) -> None:
        """Raise VecEnvError if `slots` has some of the envs of a batched env, but not all."""
        if len(slots) == self.num_envs or not self.batched:
            return
        for group in self.groups_of(slots).values():
            host = self.host_of(group[0])
            if host is not None and len(group) < len(host):
                raise VecEnvError(
                    f"{what} for envs {describe_indices(sorted(group))}: envs {describe_indices(host)} are one batched "
                    "env, which steps all its envs at once: name all of them or none"
                )
