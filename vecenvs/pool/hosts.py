"""What the workers of a VecEnv step, their hosts: which envs are stepped together, and which worker has which."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence
from functools import partial
from types import FunctionType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vecenvs.arguments import check_choice, parse_int, split
from vecenvs.batched import Batched, width
from vecenvs.env_calls import SlotFn
from vecenvs.errors import VecEnvError, describe_indices
from vecenvs.pool.subsets import WorkerSlots
from vecenvs.worker.rules import Rules, WorkShare

_SHOWN = 4  # hosts in an error


class Hosts:
    """Which slots the entries of `env_fns` make, and which of them are stepped together.

    A worker has one host: a batched env, or single envs of which no batched env lies between two. `num_envs` is the
    number of slots, `ranges` has those of each function, `batched` those of each batched env.
    """

    def __init__(self, env_fns: Sequence[Any]) -> None:
        self.fns = list(env_fns)
        starts = list(itertools.accumulate(map(width, env_fns), initial=0))
        self.num_envs = starts[-1]
        self.ranges = [range(a, b) for a, b in itertools.pairwise(starts)]
        self.batched: list[range] = []
        self._single: list[range] = []
        for single, group in itertools.groupby(zip(self.ranges, env_fns, strict=True), _is_single):
            slots = [each for each, _ in group]
            if single:
                self._single.append(range(slots[0].start, slots[-1].stop))
            else:
                self.batched += slots
        self._starts = [slots.start for slots in self.batched]

    def functions_of(self, shard: range) -> list[Any]:
        """Return the functions that make the envs of a shard."""
        return [fn for slots, fn in zip(self.ranges, self.fns, strict=True) if shard.start <= slots.start < shard.stop]

    def default_workers(self, cores: int) -> int:
        """Return how many workers there are for so many cores: at most one for each function, one for each host."""
        return max(1, min(len(self.fns), cores), len(self.batched) + len(self._single))

    def shards_of(self, num_workers: int, *, caller_steps: bool = False) -> list[range]:
        """Return the slots of each worker. Single envs are divided where there are more workers than hosts.

        With `caller_steps` the caller has the last shard, or all from that one on: one for each host that is left.

        Raises:
            ValueError: there are fewer workers than hosts, or more than functions.
        """
        hosts, most = sorted([*self.batched, *self._single], key=_start), len(self.ranges)
        least = 1 if caller_steps else len(hosts)
        possible = f"{least} to {most}" if least < most else f"{most}"
        if 1 <= parse_int("num_workers", num_workers) < least:
            shown = "; ".join(describe_indices(host) for host in hosts[:_SHOWN])
            raise ValueError(
                f"num_workers={num_workers} is too few for envs {shown}{'; ...' if least > _SHOWN else ''}: a worker "
                f"has one batched env, or the single ones from one batched env to the next. Pass num_workers={possible}"
            )
        if not 1 <= num_workers <= most:
            what = "batched and single envs" if self.batched else "envs"
            raise ValueError(
                f"num_workers={num_workers} for {most} {what}: give {possible}, or None for one per usable core"
            )
        counts = [1] * len(self._single)
        for _ in range(num_workers - len(hosts)):
            largest = max(range(len(counts)), key=lambda k: len(self._single[k]) / counts[k])
            counts[largest] += 1
        parts = (
            range(host.start + part.start, host.start + part.stop)
            for host, count in zip(self._single, counts, strict=True)
            for part in split(len(host), count)
        )
        return sorted([*self.batched, *parts], key=_start)

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

    def host_of(self, slot: int) -> range | None:
        """Return the slots of the batched env that steps this one; None for a single env."""
        position = bisect.bisect_right(self._starts, slot) - 1
        return self.batched[position] if position >= 0 and slot in self.batched[position] else None

    def check_concurrency(self, concurrency: str | None, *, caller_steps: bool) -> None:
        """Refuse a way of running envs that there is not, or not with these envs, or not in the caller's share."""
        if concurrency is None:
            return
        check_choice("concurrency", concurrency, ("asyncio", "threads"))
        given = f"concurrency={concurrency!r} is for single envs that wait"
        if self.batched:
            raise ValueError(f"{given}, and a Batched steps its envs together: leave one of them out")
        if caller_steps:
            raise ValueError(f"{given}, none of which the caller steps: leave caller_steps=True out")

    def check_recycled(self, num_workers: int | None, *, caller_steps: bool) -> int:
        """Return the number of workers, each of one env but the caller's; refuse another one, and batched envs."""
        if self.batched:
            raise ValueError("recycle is for workers of one env each, and a Batched has several: leave recycle out")
        if num_workers is None:
            return self.num_envs
        if any(len(shard) > 1 for shard in self.shards_of(num_workers)[: num_workers - caller_steps]):
            raise ValueError(
                f"recycle is for workers of one env each, and num_workers={num_workers} share {self.num_envs} envs: "
                f"pass num_workers={self.num_envs}, or leave recycle out"
            )
        return num_workers

    def check_spares(self, rules: Rules) -> None:
        """Refuse spares where there can be none."""
        if not rules.spares:
            return
        if rules.root is None:
            raise ValueError("spares need episode_seeds=True: else an env that was reset in advance is another one")
        if rules.autoreset == "async":
            raise ValueError(
                "spares are for modes in which steps wait for resets: leave them out, or autoreset='async'"
            )
        if rules.concurrency == "asyncio":
            raise ValueError("spares have threads, and concurrency='asyncio' has none: leave one of them out")
        if self.batched:
            raise ValueError("spares take the places of single envs, and a Batched has none: leave spares out")

    def check_alike(self, shards: Sequence[range], spares: int) -> None:
        """Raise ValueError if the functions of a worker may make different envs: spares serve any of its slots."""
        for shard in shards if spares else ():
            first = self.fns[shard.start]
            for slot in shard[1:]:
                if not _alike(first, self.fns[slot]):
                    raise ValueError(
                        f"spares serve all slots of a worker, and the env functions of envs {shard.start} and {slot} "
                        "are different ones: give the same function for all envs of a worker, num_workers="
                        f"{self.num_envs}, or leave spares out"
                    )

    def check_whole(self, what: str, parts: Sequence[WorkerSlots]) -> None:
        """Raise VecEnvError if a part, which is one worker's, has some of the envs of a batched env, but not all."""
        for part in parts if self.batched else ():
            host = self.host_of(part.slots[0])
            if host is not None and len(part.slots) < len(host):
                raise VecEnvError(
                    f"{what} for envs {describe_indices(part.slots)}: envs {describe_indices(host)} are one batched "
                    "env, which steps all its envs at once: name all of them or none"
                )


def shares_of(work: tuple[float, float], shards: Sequence[range], concurrency: str | None) -> list[WorkShare]:
    """Return each worker's share of a `work_limit`. ValueError if one would have none, or envs compute."""
    at_once, per_second = work
    if min(work) == math.inf:
        return [WorkShare()] * len(shards)
    if concurrency is None:
        raise ValueError("work_limit is for envs that wait at the same time: give concurrency='threads' or 'asyncio'")
    if at_once < len(shards):
        raise ValueError(
            f"work_limit lets {at_once:g} envs work at once, but each of {len(shards)} workers needs one: give "
            f"num_workers={at_once:g}"
        )
    total = shards[-1].stop
    return [
        WorkShare(
            at_once if at_once == math.inf else at_once // len(shards) + (worker < at_once % len(shards)),
            per_second * len(shard) / total,
        )
        for worker, shard in enumerate(shards)
    ]


def _alike(one: Any, other: Any) -> bool:
    """Tell whether two env functions are known to make the same env."""
    if isinstance(one, SlotFn):
        return one.alike(other)
    return _parts_of(one) == _parts_of(other)


def _parts_of(function: Any) -> list[Any]:
    """Return what makes up a function: a lambda that is made in a loop is another object each time."""
    if isinstance(function, partial):
        return [*_parts_of(function.func), [*map(id, function.args)], {k: id(v) for k, v in function.keywords.items()}]
    if isinstance(function, FunctionType):
        cells = [id(cell.cell_contents) for cell in function.__closure__ or ()]
        defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        return [function.__code__, cells, [*map(id, defaults)]]
    return [id(function)]


def _is_single(entry: tuple[range, Any]) -> bool:
    return not isinstance(entry[1], Batched)


def _start(slots: range) -> int:
    return slots.start
