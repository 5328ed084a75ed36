"""The replay buffer, in one process. cpprb stores transitions and draws by priority."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from vecenvs import array_file
from vecenvs.arguments import parse_int, parse_number
from vecenvs.replay.schema import Rows, Schema
from vecenvs.replay.storage import Positions, PrioritizedStorage, Storage
from vecenvs.worker.process import HeldSignals

FILE = array_file.Kind("a saved replay buffer", "vecenvs-replay", 2)
PIECE = 65536  # rows: the memory that saving and restoring take besides the buffer


class ReplayBuffer:
    """The newest `capacity` transitions. Not thread-safe.

    A batch is a dict of arrays with n rows each: `obs`, `action` and `next_obs` structured as their spaces; `reward`
    float32; `terminated` and `truncated` bool; `explorer` int32; `episode` int64. With `n_step` > 1 it also has
    `discount` float32, gamma**m for the m steps in `reward`; with `prioritized` also `weights` float32 and `indexes`
    int64.

    Args:
        observation_space: a space whose parts all have a fixed shape.
        action_space: likewise.
        capacity: the number of transitions.
        prioritized: draw in proportion to priority to the power `alpha`, in place of uniformly. New transitions get
            the largest priority so far.
        alpha: from 0 on.
        n_step: the number of steps in a transition.
        gamma: the discount per step, from 0 to 1.
        seed: makes uniform samples repeatable.

    Raises:
        ValueError: an argument is out of range, a space has a part without a fixed shape, or there is a `seed` with
            `prioritized`, where cpprb seeds the draws from the system.
        BackendUnavailable: cpprb is not installed.
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
        self.drawn_words = self.schema.words + 2 * prioritized  # of a row that is drawn, with its weight and index
        self.inserted = 0  # transitions ever added; also the index of the next one
        self._rng = np.random.default_rng(seed)
        self._origin = 0  # the index of the transition that was stored at position 0 first
        words = self.schema.words
        self._storage = (
            PrioritizedStorage(self.capacity, words, alpha) if prioritized else Storage(self.capacity, words)
        )

    def __len__(self) -> int:
        """Return the number of stored transitions."""
        return len(self._storage)

    def add(self, transitions: Mapping[str, Any], priorities: Any = None) -> int:
        """Store n transitions.

        Args:
            transitions: a dict of columns, structured as a batch. `explorer` and `episode` are optional.
            priorities: n numbers from 0 on, for a prioritised buffer.

        Returns:
            n.

        Raises:
            ValueError: a field is missing, unknown, or has another shape. Nothing is stored.
            TypeError: a field's dtype would lose values. Nothing is stored.
        """
        return self.add_rows(self.schema.pack(transitions), priorities)

    def add_rows(self, rows: Rows, priorities: Any = None) -> int:
        """Store rows that `Schema.pack` of an equal schema has packed, as `add` does."""
        rows = self.schema.check_rows(rows)
        given = None
        if priorities is not None:
            self._check_prioritized("priorities")
            given = _parse_priorities(priorities, len(rows))
        dropped = max(len(rows) - self.capacity, 0)  # the rest would overwrite them
        with HeldSignals():  # positions are counted from `inserted`
            self._storage.add(rows[dropped:], None if given is None else given[dropped:])
            self._origin += dropped
            self.inserted += len(rows)
        return len(rows)

    def sample(self, batch_size: int, *, beta: float = 0.4) -> dict[str, Any]:
        """Draw a batch from all stored transitions, with replacement.

        Args:
            batch_size: the number of rows.
            beta: the exponent of the weights in a prioritised buffer.

        Returns:
            A batch as described above. The arrays belong to the caller.

        Raises:
            ValueError: fewer than `batch_size` transitions are stored, or `beta` is negative.
        """
        return self.schema.batches(self.sample_rows(batch_size, 1, beta=beta), batch_size)[0]

    def sample_rows(self, batch_size: int, batches: int, *, beta: float = 0.4, out: Rows | None = None) -> Rows:
        """Draw several batches as `sample` does, as rows for `Schema.batches`, into `out` if given."""
        if parse_int("batch_size", batch_size, 1) > len(self):
            raise ValueError(
                f"a batch of {batch_size} from {len(self)} stored transitions: store more first, or sample fewer"
            )
        beta = parse_beta(beta)
        n, words = batch_size * batches, self.schema.words
        rows = np.empty((n, self.drawn_words), np.uint64) if out is None else out[:n]
        if isinstance(self._storage, PrioritizedStorage):
            # One draw per batch: cpprb stratifies each draw by priority, and orders it accordingly.
            drawn = [self._storage.draw(batch_size, beta) for _ in range(batches)]
            found, positions, weights = (np.concatenate(parts) for parts in zip(*drawn, strict=True))
            rows[:, words] = weights.astype(np.float64).view(np.uint64)
            rows[:, words + 1] = self._indexes_of(positions).view(np.uint64)
        else:
            # Counted from the oldest transition on, so that a restored buffer draws the same.
            positions = self._rng.integers(0, len(self), n)
            if self.inserted - self._origin > self.capacity:
                positions += (self.inserted - self._origin) % self.capacity
                positions[positions >= self.capacity] -= self.capacity
            found = self._storage.rows_at(positions)
        rows[:, :words] = found
        return rows

    def update_priorities(self, indexes: Any, priorities: Any) -> int:
        """Set the priorities of sampled transitions.

        Args:
            indexes: the `indexes` of a batch, int64 (n,).
            priorities: n numbers from 0 on.

        Returns:
            How many were set; the other transitions have been overwritten since they were drawn.

        Raises:
            ValueError: an index does not exist, a priority is not a number from 0 on, or the buffer is not prioritised.
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
        with HeldSignals():
            storage.update(self._positions_of(numbers[there]), given[there])
        return int(there.sum())

    def clear(self) -> None:
        """Remove all transitions. Indexes continue from the last one."""
        with HeldSignals():
            self._storage.clear()
            self._origin = self.inserted

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to one .npz file without pickles. It replaces an existing file only when it is complete.

        Args:
            path: the file.
        """
        header: dict[str, Any] = {
            "schema": self.schema.describe(),
            "inserted": self.inserted,
            "random": None if self.prioritized else self._rng.bit_generator.state,
        }
        if isinstance(self._storage, PrioritizedStorage):
            header["max_priority"] = self._storage.max_priority
        array_file.write(path, FILE, header, self._arrays())

    def _arrays(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yield what is stored from the oldest transition on: rows in pieces, and priorities."""
        indexes = np.arange(self.inserted - len(self), self.inserted)
        for k, piece in enumerate(np.array_split(indexes, len(indexes) // PIECE + 1)):
            yield f"rows/{k}", self._storage.rows_at(self._positions_of(piece))
        if isinstance(self._storage, PrioritizedStorage):
            yield "priorities", self._storage.priorities_at(self._positions_of(indexes))

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Replace the stored transitions by those of a file from `save`.

        The file's priorities are used if both buffers are prioritised; else all transitions get the same priority.

        Args:
            path: the file.

        Raises:
            ValueError: the file is damaged, has another layout, or more transitions than fit. Nothing is changed.
        """
        with array_file.ArrayFile(path, FILE) as file:
            pieces = [name for name in file.arrays if name.partition("/")[0] == "rows"]
            count, priorities = self._check(file, pieces)
            with HeldSignals():  # all of it is restored, or nothing
                self.clear()
                self.inserted = self._origin = file.header["inserted"] - count
                for name in pieces:
                    n = len(rows := file.read(name))
                    self.add_rows(rows, None if priorities is None else priorities[:n])
                    priorities = None if priorities is None else priorities[n:]
                if isinstance(self._storage, PrioritizedStorage):
                    self._storage.raise_max_priority(file.header.get("max_priority", 0.0))
                elif file.header["random"] is not None:
                    self._rng.bit_generator.state = file.header["random"]

    def _check(self, file: array_file.ArrayFile, pieces: list[str]) -> tuple[int, NDArray[np.float32] | None]:
        """Return the number of rows and the priorities to restore; ValueError unless all of the file can be used."""
        header = file.header
        try:
            difference = self.schema.difference(header["schema"])
            if header["random"] is not None:
                np.random.default_rng().bit_generator.state = header["random"]
            if not 0.0 <= parse_number("max_priority", header.get("max_priority", 0.0)) < np.finfo(np.float32).max:
                raise ValueError(f"max_priority={header['max_priority']}")
            inserted = parse_int("inserted", header["inserted"])
        except Exception as exc:  # a foreign header may cause anything
            raise file.wrong(f"its header cannot be read ({type(exc).__name__}: {exc})") from exc
        if difference:
            raise ValueError(f"{file.path} holds another layout: {difference}. Nothing was restored")
        if not pieces or any(
            dtype != np.uint64 or shape[1:] != (self.schema.words,)
            for dtype, shape in (file.arrays[name] for name in pieces)
        ):
            raise file.wrong(f"its rows are not uint64 (n, {self.schema.words})")
        count = sum(file.arrays[name][1][0] for name in pieces)
        if not count <= inserted < 2**63:
            raise file.wrong(f"it has {count} rows, and {inserted} were inserted")
        if count > self.capacity:
            raise ValueError(
                f"{file.path} holds {count} transitions, but capacity={self.capacity}. Nothing was restored: make "
                "the buffer larger"
            )
        if "priorities" not in file.arrays:
            return count, None
        try:
            priorities = _parse_priorities(file.read("priorities"), count)
        except (TypeError, ValueError) as exc:
            raise file.wrong(str(exc)) from exc
        return count, priorities if self.prioritized else None

    def _positions_of(self, indexes: NDArray[Any]) -> Positions:
        return (indexes.astype(np.int64) - self._origin) % self.capacity

    def _indexes_of(self, positions: Positions) -> NDArray[np.int64]:
        """Return the index of the newest transition at each position."""
        newest = self.inserted - 1
        return newest - (newest - self._origin - positions) % self.capacity

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


def parse_beta(beta: Any) -> float:
    """Return the exponent of the weights as a number. TypeError or ValueError if it is none, or below 0."""
    if not 0 <= (number := parse_number("beta", beta)) < math.inf:
        raise ValueError(f"beta must be a number from 0 on, not {beta!r}")
    return number
