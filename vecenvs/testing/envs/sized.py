"""An env whose rows have any size, each byte of them told by its env, life, episode, step and all that it was given."""

from __future__ import annotations

import os
import signal
import time
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from vecenvs.testing.envs.sampled import digest

KIB = 1024
LIMITS = tuple(kib * KIB for kib in (4, 32, 64, 100, 256))
"""MPI's eager messages; a ring's entries and pieces; buffers of sockets and frames; objects that Ray sends inline."""
NEAR = tuple(limit + more for limit in LIMITS for more in (-1, 0, 1))
LARGE = (1024 * KIB, 5 * 1024 * KIB)
SIZES = (1, 2, 700, *NEAR, *LARGE)
"""Bytes, around every limit between a caller and an env."""
FORMS = ("text", "object", "dict", "box")
_WORD = 2**64 - 1
_LETTERS = frozenset(map(chr, range(256)))


def mix(*numbers: int) -> int:
    """Return a hash of integers, of 64 bits."""
    found = 0
    for number in numbers:
        found = ((found ^ (number & _WORD)) * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019) & _WORD
        found ^= found >> 29
    return found


def filled(size: int, *key: int) -> NDArray[np.uint8]:
    """Return so many bytes, uint8, that all depend on the key and on their position."""
    words = np.arange(size // 8 + 1, dtype=np.uint64)
    words += np.uint64(mix(*key))
    for odd in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB):
        words ^= words >> np.uint64(30)
        words *= np.uint64(odd)
    words ^= words >> np.uint64(31)
    return words.view(np.uint8)[:size]


class BlobSpace(spaces.Space[Any]):
    """A space of a class that no library knows."""

    def __init__(self) -> None:
        super().__init__(None, None)

    def sample(self, mask: Any = None, probability: Any = None) -> bytes:
        return bytes(self.np_random.integers(0, 256, 9, np.uint8))

    def contains(self, x: Any) -> bool:
        return isinstance(x, (bytes, dict))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BlobSpace)

    def __hash__(self) -> int:
        return hash(BlobSpace)


class Place(NamedTuple):
    """What a row depends on. `told` is a checksum of the episode's seed, options and actions."""

    tag: int
    life: int
    episode: int
    t: int
    told: int


class Rows(NamedTuple):
    """The rows of a world, from the places of its envs alone.

    Attributes:
        form: one of FORMS.
        sizes: the sizes in bytes, of which each observation and info has one; that of a Box is the first.
        action_size: the bytes of an action.
    """

    form: str
    sizes: tuple[int, ...]
    action_size: int = 1

    @property
    def action_space(self) -> spaces.Space[Any]:
        """The space of the actions: bytes."""
        return spaces.Box(0, 255, (self.action_size,), np.uint8)

    @property
    def space(self) -> spaces.Space[Any]:
        """The space of the observations."""
        if self.form == "object":
            return BlobSpace()
        text = spaces.Text(max(self.sizes), charset=_LETTERS)
        if self.form == "text":
            return text
        box = spaces.Box(0, 255, (self.sizes[0],), np.uint8)
        return box if self.form == "box" else spaces.Dict({"box": box, "text": text, "number": spaces.Discrete(1000)})

    def observation(self, place: Place) -> Any:
        """Return the observation at a place."""
        if self.form == "box":
            return filled(self.sizes[0], *place)
        blob = filled(self.sizes[mix(1, *place[:4]) % len(self.sizes)], *place)
        if self.form == "object":
            return blob.tobytes() if place.t % 2 else {"array": blob, "place": tuple(place)}
        text = blob.tobytes().decode("latin-1")
        if self.form == "text":
            return text
        return {"box": filled(self.sizes[0], *place), "text": text, "number": np.int64(mix(*place) % 1000)}

    def info(self, place: Place) -> dict[str, Any]:
        """Return the info at a place: empty, or with bytes or an array of one of the sizes."""
        kind = mix(2, *place[:4])
        if kind % 4 == 0:
            return {}
        blob = filled(self.sizes[kind // 4 % len(self.sizes)], 1, *place)
        return {"place": tuple(place), "blob": blob.tobytes() if kind % 4 == 1 else blob, "number": float(place.told)}

    def ends(self, place: Place) -> tuple[bool, bool]:
        """Return whether the episode is terminated and whether it is truncated at a place."""
        if place.t < 1 + mix(3, place.tag, place.episode) % 3:
            return False, False
        how = mix(4, place.tag, place.episode) % 3
        return how != 0, how != 1


def told_first(seed: int | None, options: dict[str, Any] | None) -> int:
    """Return the checksum with which an episode begins."""
    return zlib.crc32((options or {}).get("blob", b""), zlib.crc32(str(seed).encode()))


def told_next(told: int, action: Any) -> int:
    """Return the checksum after an action."""
    return zlib.crc32(digest(action).to_bytes(4, "little"), told)


def reward_at(place: Place) -> float:
    """Return the reward of a step that led to a place: exact in float32."""
    return float(mix(5, *place) % 2**20)


class ToldError(Exception):
    """What an env raises that was told to."""


class SizedEnv(gymnasium.Env[Any, Any]):
    """An env of `Rows` or of a class like it.

    Args:
        tag: a number, to tell envs apart.
        rows: its rows.
        births: a file that grows by a byte with each env made for this tag: its `life` is its number. None: 1.
        caller: the process that no env ends.

    Attributes:
        nap: the seconds that each reset and step takes.
        fate: what the next step does: "raise", or "die" (end its process), once; or nothing of this kind, "".
    """

    def __init__(self, tag: int, rows: Any, births: Path | None = None, caller: int | None = None) -> None:
        self.observation_space, self.action_space = rows.space, rows.action_space
        self.rows, self.caller = rows, caller
        self.nap, self.fate = 0.0, ""
        life = 1
        if births is not None:
            with births.open("ab") as file:
                file.write(b".")
                file.flush()
                life = file.tell()
        self.place = Place(tag, life, 0, 0, 0)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        time.sleep(self.nap)
        tag, life, episode, *_ = self.place
        self.place = Place(tag, life, episode + 1, 0, told_first(seed, options))
        return self.rows.observation(self.place), self.rows.info(self.place)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(self.nap)
        fate, self.fate = self.fate, ""
        if fate == "raise":
            raise ToldError(f"env {self.place.tag} was told to")
        if fate == "die" and os.getpid() != self.caller:
            os.kill(os.getpid(), signal.SIGKILL)
        self.place = self.place._replace(t=self.place.t + 1, told=told_next(self.place.told, action))
        terminated, truncated = self.rows.ends(self.place)
        return (
            self.rows.observation(self.place),
            reward_at(self.place),
            terminated,
            truncated,
            self.rows.info(self.place),
        )
