"""Files of single episodes, which the callers of envs write and `python -m vecenvs rerun` plays again."""

from __future__ import annotations

import abc
import itertools
import math
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from numpy.typing import NDArray

from vecenvs._version import __version__
from vecenvs.array_file import ArrayFile, ArrayFileError, Kind, write
from vecenvs.batch.layout import SpaceLayout
from vecenvs.errors import VecEnvError
from vecenvs.state.encoding import Decoder, Encoder, EncodingError
from vecenvs.state.packing import Packer, unpacked

FILE = Kind("a record of an episode", "vecenvs-episode", 1)
COMPARED = 1024  # observations of so many bytes have checksums
RAISED, DIED, ENDED = "raised", "died", "ended"  # how an episode has come to its end

_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # of splitmix64


class Described(abc.ABC):
    """An env function that can be made again from data, without a pickle."""

    @abc.abstractmethod
    def description(self) -> dict[str, Any] | None:
        """Return what makes it again, as JSON takes it; None if there is more to it."""


class Record(NamedTuple):
    """An episode of T steps.

    `actions` has T rows for each leaf, and None for leaves without a fixed shape, of which `objects` has a list of
    encoded values for each step. There are T + 1 `checksums`, or none if observations are too large. An episode that
    has `raised` or `died` may have an action more than rewards: the one without an answer.
    """

    slot: int
    number: int
    seed: int
    outcome: str
    told: str  # an exception's text, or how a worker has ended
    actions: list[NDArray[Any] | None]
    objects: list[Any]
    rewards: NDArray[np.float64]
    flags: NDArray[np.uint8]
    checksums: NDArray[np.uint64]
    options: Any
    next_reset: dict[str, Any]  # the arguments of the reset that was to follow, as far as these are known
    calls: Sequence[tuple[int, str, Any]]  # before which step what was called; a list of arguments can be repeated
    inexact: str  # why it may not be possible to run it again
    action_space: str
    observation_space: str
    env: dict[str, Any] | None  # see `Described`
    function: bytes  # the env function's pickle, if there is no other way


def compares(layout: SpaceLayout) -> bool:
    """Tell whether observations have checksums."""
    return not layout.has_objects and 0 < layout.row_bytes <= COMPARED


def checksums(parts: Sequence[NDArray[Any]], n: int) -> NDArray[np.uint64]:
    """Return 64 bits for each of n observations, whose leaves have n rows each: a sum of their words by factors."""
    total = np.zeros(n, np.uint64)
    place = 0
    for part in parts:
        rows = np.ascontiguousarray(part).reshape(n, math.prod(part.shape[1:])).view(np.uint8)
        words = -(-rows.shape[1] // 8)
        if rows.shape[1] % 8:
            rows = np.concatenate([rows, np.zeros((n, words * 8 - rows.shape[1]), np.uint8)], axis=1)
        total += (rows.view(np.uint64) * _factors(place + words)[place:]).sum(axis=1, dtype=np.uint64)
        place += words
    return total


def _factors(count: int) -> NDArray[np.uint64]:
    found = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_GOLDEN)
    found = (found ^ (found >> np.uint64(30))) * np.uint64(_FIRST)
    found = (found ^ (found >> np.uint64(27))) * np.uint64(_SECOND)
    return (found ^ (found >> np.uint64(31))) | np.uint64(1)


def encoded(value: Any) -> Any:
    """Return a value as JSON takes it. EncodingError if it is no plain data."""
    packer = Packer()
    node = packer.packed(Encoder(None).encode(value))
    return [node, b"".join(packer.parts).hex()]


def decoded(found: Any) -> Any:
    """Return the value of what `encoded` has returned."""
    node, data = found
    return Decoder(None, trusted=False).decode(unpacked(node, bytes.fromhex(data)))


def encoded_or_none(value: Any) -> Any:
    """Return `encoded`, or None for what is no plain data."""
    try:
        return encoded(value)
    except EncodingError:
        return None


_PLAIN = ("slot", "number", "seed", "outcome", "told", "objects", "next_reset", "calls", "inexact", "action_space",
          "observation_space", "env", "options")  # fmt: skip


def write_record(folder: str, record: Record) -> str:
    """Write a record under a name that no file has; return its path. OSError if that is impossible."""
    os.makedirs(folder, exist_ok=True)
    name = os.path.join(folder, f"env{record.slot}-episode{record.number}-seed{record.seed}")
    path = next(path for k in itertools.count(1) if not os.path.exists(path := f"{name}{f'-{k}' * (k > 1)}.npz"))
    arrays = [(f"action{k}", leaf) for k, leaf in enumerate(record.actions) if leaf is not None]
    arrays += [("rewards", record.rewards), ("flags", record.flags), ("checksums", record.checksums)]
    if record.function:
        arrays.append(("function", np.frombuffer(record.function, np.uint8)))
    written_by = {"vecenvs": __version__, "gymnasium": gymnasium.__version__, "numpy": np.__version__}
    plain = {each: getattr(record, each) for each in _PLAIN}
    write(path, FILE, {"written_by": written_by, "leaves": len(record.actions), **plain}, arrays)
    return path


def read_record(path: str | os.PathLike[str]) -> Record:
    """Read a record, without looking into its function's pickle. VecEnvError if it is no record, or damaged."""
    try:
        with ArrayFile(path, FILE) as file:
            header = file.header
            names = [f"action{k}" for k in range(_number(header["leaves"]))]
            actions = [file.read(name) if name in file.arrays else None for name in names]
            rewards, flags, sums = (file.read(name) for name in ("rewards", "flags", "checksums"))
            function = file.read("function").tobytes() if "function" in file.arrays else b""
        record = Record(
            **{name: header[name] for name in _PLAIN},
            actions=actions,
            rewards=rewards,
            flags=flags,
            checksums=sums,
            function=function,
        )
        _check(record)
    except OSError:
        raise
    except ArrayFileError as exc:
        raise VecEnvError(str(exc)) from exc
    except Exception as exc:  # a file may have anything in it
        raise VecEnvError(f"{os.fsdecode(path)!r} is not {FILE.what}: {type(exc).__name__}: {str(exc)[:500]}") from exc
    return record


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"{value!r} is no number")
    return value


def _check(record: Record) -> None:
    """Raise an exception unless all parts have the types and lengths that they should."""
    steps = len(record.rewards)
    for value in (record.slot, record.number, record.seed):
        _number(value)
    texts = (record.outcome, record.told, record.inexact, record.action_space, record.observation_space)
    if not all(type(text) is str for text in texts) or type(record.env) not in (dict, type(None)):
        raise ValueError("a text is none")
    lengths = {len(leaf) for leaf in record.actions if leaf is not None} | ({len(record.objects)} - {0})
    if len(lengths) > 1 or not lengths <= {steps, steps + 1} or len(record.flags) != steps:
        raise ValueError(f"it has {lengths} actions and {len(record.flags)} flags for {steps} rewards")
    if [each.dtype.str for each in (record.rewards, record.flags, record.checksums)] != ["<f8", "|u1", "<u8"]:
        raise ValueError("its arrays have wrong dtypes")
    if record.rewards.ndim != 1 or len(record.checksums) not in (0, steps + 1):
        raise ValueError(f"it has {len(record.checksums)} checksums for {steps} steps")
    kinds: list[tuple[Any, type]] = [(record.next_reset, dict), (record.calls, list), (record.objects, list)]
    if not all(isinstance(value, kind) for value, kind in kinds):
        raise TypeError("its calls are no list")
    for step, name, _ in record.calls:
        if (type(step), type(name)) != (int, str):
            raise TypeError(f"its calls have {name!r}")
