"""The replay buffer in one process: transitions in, batches out. cpprb stores and draws."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from vecenvs.arguments import parse_int, parse_number
from vecenvs.replay import checkpoint
from vecenvs.replay.blocks import Block, BlockLayout
from vecenvs.replay.schema import Rows, Schema
from vecenvs.replay.storage import PrioritizedStorage, Slots, UniformStorage


class ReplayBuffer:
    """The newest `capacity` transitions between two spaces, for one thread.

    A batch is a dict of arrays with n rows each: `obs`, `action`, `next_obs` structured as their spaces, `reward`
    float32, `terminated` and `truncated` bool, `explorer` int32, `episode` int64; with `n_step` > 1 `discount` float32,
    gamma**m for the m steps that `reward` sums up; if `prioritized` also `weights` float32 and `indexes` int64.

    Priorities count to the power `alpha`; new transitions get the largest there has been. `seed` makes uniform samples
    repeatable. Prioritised ones cannot be: cpprb seeds their draws from the system, so a seed raises ValueError then.
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        capacity: int,
        *,
        prioritized: bool = False,
        alpha: float = 0.6,
        n_step: int = 1,
        gamma: float = 0.99,
        seed: int | np.random.SeedSequence | None = None,
    ) -> None:
        self.capacity = parse_int("capacity", capacity, 1)
        if prioritized and seed is not None:
            raise ValueError(
                "seed has no effect with prioritized=True: cpprb seeds those draws from the system. Leave it out"
            )
        if not parse_number("alpha", alpha) >= 0.0:
            raise ValueError(f"alpha must be from 0 on, not {alpha!r}")
        self.schema = Schema(observation_space, action_space, n_step, gamma)
        self.prioritized = prioritized
        self.block_layout = BlockLayout(self.schema, prioritized)
        self.inserted = 0  # ever: the number of the next transition
        self._rng = np.random.default_rng(seed)
        self._first = 0  # the number of the transition that slot 0 got first
        words = self.schema.words
        self._storage: UniformStorage | PrioritizedStorage
        self._storage = (
            PrioritizedStorage(self.capacity, words, alpha) if prioritized else UniformStorage(self.capacity, words)
        )

    def __len__(self) -> int:
        """How many transitions are stored."""
        return len(self._storage)

    def add(self, transitions: Mapping[str, Any], priorities: Any = None) -> int:
        """Store columns of n transitions, structured as a batch is; give n.

        `explorer` and `episode` may be left out. ValueError or TypeError name the field that is missing, unknown or of
        another shape or dtype; nothing is stored then. `priorities`: n numbers from 0 on, if prioritised.
        """
        return self.add_rows(self.schema.pack(transitions), priorities)

    def add_rows(self, rows: Rows, priorities: Any = None) -> int:
        """As `add`, for rows that `Schema.pack` has packed for an equal schema."""
        rows = self.schema.check_rows(rows)
        given = None
        if priorities is not None:
            self._check_prioritized("priorities")
            given = _parse_priorities(priorities, len(rows))
        dropped = max(len(rows) - self.capacity, 0)  # would be overwritten by the rest
        if isinstance(self._storage, PrioritizedStorage):
            self._storage.add(rows[dropped:], None if given is None else given[dropped:])
        elif len(rows):
            self._storage.add(rows[dropped:])
        self._first += dropped
        self.inserted += len(rows)
        return len(rows)

    def sample(self, batch_size: int, *, beta: float = 0.4) -> dict[str, Any]:
        """Draw a batch from everything stored, with replacement; the arrays are the caller's own.

        `beta` is the exponent of the weights, prioritised. ValueError if fewer than `batch_size` are stored.
        """
        return self.block_layout.open(self.sample_block(batch_size, 1, beta=beta), batch_size).take()

    def sample_block(self, batch_size: int, batches: int, *, beta: float = 0.4, out: Block | None = None) -> Block:
        """Draw several batches at once, as `block_layout` lays them out: into `out`, or into an array of its own."""
        self.check_batch(batch_size)
        if isinstance(self._storage, UniformStorage):
            # From the oldest on, so that a restored buffer draws the same.
            slots = self._rng.integers(0, len(self), batch_size * batches)
            if self.inserted - self._first > self.capacity:
                slots += (self.inserted - self._first) % self.capacity
                slots[slots >= self.capacity] -= self.capacity
            return self.block_layout.build(self._storage.rows_at(slots), out=out)
        # One after another: cpprb spreads each draw evenly over the priorities, and orders it so.
        drawn = [self._storage.draw(batch_size, beta) for _ in range(batches)]
        rows, slots, weights = (np.concatenate(parts) for parts in zip(*drawn, strict=True))
        return self.block_layout.build(rows, (weights, self._numbers(slots)), out)

    def check_batch(self, batch_size: int) -> None:
        """Raise ValueError if a batch of that size cannot be drawn now."""
        if parse_int("batch_size", batch_size, 1) > len(self):
            raise ValueError(
                f"a batch of {batch_size} from {len(self)} stored transitions: store more first, or sample fewer"
            )

    def update_priorities(self, indexes: Any, priorities: Any) -> int:
        """Give sampled transitions, by their `indexes`, new priorities; tell for how many.

        The others have been overwritten since they were drawn. ValueError for an index that was never given out, or a
        priority that is no number from 0 on.
        """
        storage = self._check_prioritized("update_priorities")
        numbers = np.atleast_1d(np.asarray(indexes))
        if numbers.dtype.kind not in "iu" or numbers.ndim != 1:
            raise ValueError(f"indexes must be those of a batch, int64 (n,), not {numbers.dtype} {numbers.shape}")
        given = _parse_priorities(priorities, len(numbers))
        if len(numbers) and not (numbers.min() >= 0 and numbers.max() < self.inserted):
            raise ValueError(
                f"indexes from {numbers.min()} to {numbers.max()}, but 0 to {self.inserted - 1} have been stored"
            )
        there = numbers >= self.inserted - len(self)
        storage.update(self._slots(numbers[there]), given[there])
        return int(there.sum())

    def clear(self) -> None:
        """Forget what is stored. Indexes go on from where they were."""
        self._storage.clear()
        self._first = self.inserted

    def save(self, path: str | os.PathLike[str], extra: Mapping[str, Any] | None = None) -> None:
        """Write everything to one .npz file, which replaces one of that name only when complete.

        `extra`, what JSON takes, is given back by `restore`.
        """
        header: dict[str, Any] = {
            "schema": self.schema.describe(),
            "inserted": self.inserted,
            "random": None if self.prioritized else self._rng.bit_generator.state,
            "extra": dict(extra or {}),
        }
        numbers = np.arange(self.inserted - len(self), self.inserted)
        priorities = None
        if isinstance(self._storage, PrioritizedStorage):
            header["max_priority"] = self._storage.max_priority
            priorities = self._storage.priorities_at(self._slots(numbers))
        pieces = np.array_split(numbers, len(numbers) // checkpoint.PIECE + 1)
        rows = (self._storage.rows_at(self._slots(piece)) for piece in pieces)
        checkpoint.write(path, header, rows, (len(numbers), self.schema.words), priorities)

    def restore(self, path: str | os.PathLike[str]) -> dict[str, Any]:
        """Take over what `save` wrote, in place of what is stored; give its `extra`.

        ValueError that says why if it has another layout, or more transitions than fit. Priorities are taken over if
        both are prioritised; without any, all transitions get the same.
        """
        with checkpoint.Reader(path) as reader:
            return self.restore_from(reader)

    def restore_from(self, reader: checkpoint.Reader) -> dict[str, Any]:
        """As `restore`, from an open file. Everything is checked before anything is changed."""
        header = reader.header
        random, max_priority = header["random"], header.get("max_priority", 0.0)
        try:
            difference = self.schema.difference(header["schema"])
            if random is not None:
                np.random.default_rng().bit_generator.state = random
            if not 0.0 <= parse_number("max_priority", max_priority) < np.finfo(np.float32).max:
                raise ValueError(f"max_priority={max_priority}")
        except Exception as exc:  # whatever comes of a header of another kind
            raise reader.foreign(f"whose header cannot be read ({type(exc).__name__}: {exc})") from exc
        if difference:
            raise ValueError(f"{reader.path} holds another layout: {difference}. Nothing was restored")
        if reader.words != self.schema.words:
            raise reader.foreign(f"whose rows have {reader.words} words, where such a layout has {self.schema.words}")
        if reader.count > self.capacity:
            raise ValueError(
                f"{reader.path} holds {reader.count} transitions, but capacity={self.capacity}. Nothing was "
                "restored: make the buffer larger"
            )
        priorities = reader.priorities if self.prioritized else None
        self.clear()
        self.inserted = self._first = header["inserted"] - reader.count
        done = 0
        for rows in reader.rows():
            self.add_rows(rows, None if priorities is None else priorities[done : done + len(rows)])
            done += len(rows)
        if isinstance(self._storage, PrioritizedStorage):
            self._storage.restore_max(max_priority)
        elif random is not None:
            self._rng.bit_generator.state = random
        extra: dict[str, Any] = header["extra"]
        return extra

    def _slots(self, numbers: NDArray[Any]) -> Slots:
        return (numbers.astype(np.int64) - self._first) % self.capacity

    def _numbers(self, slots: Slots) -> NDArray[np.int64]:
        """The number of the transition in each slot: the largest below `inserted` that goes there."""
        newest = self.inserted - 1
        return newest - (newest - self._first - slots) % self.capacity

    def _check_prioritized(self, what: str) -> PrioritizedStorage:
        if not isinstance(self._storage, PrioritizedStorage):
            raise ValueError(f"{what} on a uniform buffer: make it with prioritized=True")
        return self._storage


def _parse_priorities(priorities: Any, n: int) -> NDArray[np.float32]:
    given = np.asarray(priorities, np.float32)
    if given.shape != (n,):
        raise ValueError(f"priorities have shape {given.shape}, but {n} transitions take ({n},)")
    if not (np.isfinite(given).all() and (given >= 0.0).all()):
        raise ValueError("priorities must be finite numbers from 0 on, such as absolute TD errors")
    return given
