"""Spaces of every kind, and the values of their envs."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from vecenvs.testing.envs.sized import NEAR, BlobSpace, Place, filled, mix
from vecenvs.testing.envs.spaces import LabelSpace

DTYPES = (
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
    "bool",
)
SHAPES: list[tuple[int, ...]] = [(), (0,), (1,), (3,), (2, 0), (2, 3), (4, 3, 3), (17,), (1, 1, 1, 2), (100,)]
LETTERS = "abcXYZ 09äß€\N{GRINNING FACE}"
INFOS = ("none", "numbers", "come and go", "text", "arrays", "nested", "large", "mixed")


def box(shape: tuple[int, ...], dtype: str) -> spaces.Space[Any]:
    """Return a box of all values of a dtype."""
    kind = np.dtype(dtype)
    if kind.kind == "f":
        return spaces.Box(-np.inf, np.inf, shape, kind.type)
    if kind.kind == "b":
        return spaces.Box(0, 1, shape, kind.type)
    limits = np.iinfo(kind)
    return spaces.Box(np.full(shape, limits.min, kind), np.full(shape, limits.max, kind), shape, kind.type)


def draw_space(rng: random.Random, depth: int = 0, *, large: bool = False) -> spaces.Space[Any]:
    """Draw a space. With `large` its values may be large."""
    kind = rng.randrange(12 if depth < 2 else 9)
    if kind <= 2:
        if large and rng.random() < 0.4:
            size = rng.choice([*NEAR, 2**20, 5 * 2**20]) if rng.random() < 0.9 else rng.randrange(1, 300_000)
            dtype = rng.choice(["uint8", "float32", "int64"])
            return box((max(size // np.dtype(dtype).itemsize, 1),), dtype)
        return box(rng.choice(SHAPES), rng.choice(DTYPES))
    if kind == 3:
        return spaces.Discrete(rng.randint(1, 9), start=rng.randint(-3, 3))
    if kind == 4:
        return spaces.MultiDiscrete(np.array(rng.choice([[3], [2, 5], [[2, 3], [4, 5]]])))
    if kind == 5:
        return spaces.MultiBinary(rng.choice([1, 4, (2, 3)]))
    if kind == 6:
        return spaces.Text(rng.choice([5, 300, *([NEAR[4], 150_000] if large else [])]), charset=LETTERS)
    if kind == 7:
        item = rng.choice([spaces.Discrete(5), box((2,), "float32")])
        return rng.choice([spaces.Sequence(item), spaces.Sequence(item, stack=True), spaces.OneOf((item, item))])
    if kind == 8:
        return rng.choice([LabelSpace(), BlobSpace(), spaces.Graph(box((2,), "float32"), spaces.Discrete(3))])
    count = rng.randint(1, 3)
    inner = [draw_space(rng, depth + 1, large=large) for _ in range(count)]
    if kind == 9:
        return spaces.Tuple(inner)
    return spaces.Dict({rng.choice("abcdef") + str(k): space for k, space in enumerate(inner)})


def array(shape: tuple[int, ...], dtype: np.dtype[Any], *key: int) -> Any:
    """Return an array, each byte of which depends on the key."""
    count = int(np.prod(shape))
    if dtype.kind == "b":
        return (filled(count, *key) & 1).astype(bool).reshape(shape)
    if dtype.kind == "f":
        numbers = filled(count * 2, *key).view(np.uint16).astype(dtype)
        if count and mix(*key) % 5 == 0:
            numbers[mix(7, *key) % count] = (np.nan, np.inf, -np.inf, -0.0)[mix(8, *key) % 4]
        return numbers.reshape(shape)
    return filled(count * dtype.itemsize, *key).view(dtype).reshape(shape)


def value(space: spaces.Space[Any], *key: int) -> Any:
    """Return the value of a space that belongs to a key."""
    number = mix(*key)
    if isinstance(space, spaces.Dict):
        return {name: value(sub, k, *key) for k, (name, sub) in enumerate(space.spaces.items())}
    if isinstance(space, spaces.Tuple):
        return tuple(value(sub, k, *key) for k, sub in enumerate(space.spaces))
    if isinstance(space, spaces.Box):
        return array(space.shape, space.dtype, *key)
    if isinstance(space, spaces.Discrete):
        return space.dtype.type(space.start + number % int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        return (filled(space.nvec.size, *key).reshape(space.nvec.shape) % space.nvec).astype(space.dtype)
    if isinstance(space, spaces.MultiBinary):
        return (filled(int(np.prod(space.shape)), *key) & 1).astype(space.dtype).reshape(space.shape)
    if isinstance(space, spaces.Text):
        length = number % space.max_length + 1 if number % 3 else space.max_length
        return "".join(LETTERS[k] for k in (filled(length, *key) % len(LETTERS)).tolist())
    return loose(space, number, *key)


def loose(space: spaces.Space[Any], number: int, *key: int) -> Any:
    """Return the value of a space whose values have no one shape."""
    if isinstance(space, BlobSpace):
        return filled(NEAR[number % len(NEAR)] if number % 3 == 0 else number % 700, *key).tobytes()
    if isinstance(space, LabelSpace):
        return f"label-{number % 10}"
    if isinstance(space, spaces.OneOf):
        chosen = number % len(space.spaces)
        return np.int64(chosen), value(space.spaces[chosen], *key)
    if isinstance(space, spaces.Graph):
        nodes = number % 4
        edges = array((3, 2), np.dtype(np.int32), *key) % max(nodes, 1) if nodes else None
        return spaces.GraphInstance(array((nodes, 2), np.dtype(np.float32), *key),
                                    None if edges is None else np.array([0, 1, 2]), edges)  # fmt: skip
    if isinstance(space, spaces.Sequence):
        if space.stack:
            inner = space.feature_space
            shape = (number % 5 + 1, *inner.shape)
            return (
                array(shape, np.dtype(np.float32), *key) if isinstance(inner, spaces.Box) else np.arange(shape[0]) % 5
            )
        return tuple(value(space.feature_space, k, *key) for k in range(number % 5))
    raise TypeError(space)


class World(NamedTuple):
    """What `SizedEnv` and the ledger ask for. `attrs` are for the ledger: they are not in the envs' own infos."""

    space: spaces.Space[Any]
    action_space: spaces.Space[Any]
    infos: str
    length: int
    attrs: tuple[str, ...] = ()

    def observation(self, place: Place) -> Any:
        return value(self.space, *place)

    def ends(self, place: Place) -> tuple[bool, bool]:
        if place.t < 1 + mix(3, place.tag, place.episode) % self.length:
            return False, False
        how = mix(4, place.tag, place.episode) % 3
        return how != 0, how != 1

    def info(self, place: Place) -> dict[str, Any]:
        kind, number = self.infos, mix(9, *place)
        if kind == "mixed":
            kind = INFOS[number % (len(INFOS) - 1)]
        found: dict[str, Any] = {}
        if kind in ("numbers", "nested"):
            found = {
                "int": place.t,
                "float": float(place.told),
                "flag": bool(number % 2),
                "np": np.float32(number % 99),
            }
        if kind == "come and go":
            found = {f"k{k}": number % 1000 + k for k in range(4) if number >> k & 1}
        if kind == "text":
            found = {"text": f"{place}" * (number % 3), "none": None, "bytes": bytes(number % 5)}
        if kind == "arrays":
            found = {
                "a": array((3,), np.dtype(np.float64), *place),
                "b": array((number % 3, 2), np.dtype(np.int16), *place),
            }
        if kind == "nested":
            found = {"deep": {"list": [1, (place.t,)], **found}, "set": {place.t}, "empty": {}}
        if kind == "large" and number % 2:
            found = {"blob": filled(NEAR[number % len(NEAR)] - number % 40, *place).tobytes()}
        places = {"place.t": place.t, "place.told": place.told, "place.episode": place.episode, "place": place}
        return found | {name: places[name] for name in self.attrs}


SMALL = World(box((1,), "int64"), spaces.Discrete(5), "none", 3)
