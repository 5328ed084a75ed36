"""The infos of a whole shard's rows on their way to the caller.

Most envs that give infos give the same keys with the same types of numbers at every step. Those travel as bare numbers:
their *form* is announced once, and again whenever it changes. Everything else travels pickled, as `protocol.RowExtras`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, repeat
from typing import Any, NamedTuple

import numpy as np

from vecenvs.batch.values import IMMUTABLE, copy_containers

TRUNCATED_KEY = "TimeLimit.truncated"

Make = Callable[[Iterable[tuple[Any, ...]]], list[dict[str, Any]]]

# How `struct` writes a value of each type. Read again and given to its type, it is the same value.
_CODES: dict[type, str] = {
    float: "d",
    int: "q",
    bool: "?",
    np.float64: "d",
    np.float32: "f",
    np.int64: "q",
    np.int32: "i",
    np.uint8: "B",
    np.bool_: "?",
}
_PYTHON = frozenset({float, int, bool})
_MAX_FORMS = 32  # envs whose infos change their form more often gain nothing by it


class Form(NamedTuple):
    """What all infos of a shard look like."""

    keys: tuple[str, ...]
    types: tuple[type, ...]


class Announced(NamedTuple):
    """Packed infos of a new form, which those that follow will have, too."""

    form: Form
    data: bytes


class InfoPacker:
    """The worker's end, for `count` envs."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._forms = 0
        self._keys: list[str] = []
        self._types: list[type] = []
        self._struct = struct.Struct("=")

    def pack(self, infos: Sequence[dict[str, Any]]) -> bytes | Announced | None:
        """Give the infos of all envs as numbers; None if they have no common form or hold anything else."""
        values = list(chain.from_iterable(map(dict.values, infos)))
        if list(chain.from_iterable(infos)) == self._keys and list(map(type, values)) == self._types:
            try:
                return self._struct.pack(*values)
            except struct.error:  # an integer beyond 64 bits
                return None
        return self._announce(infos, values)

    def _announce(self, infos: Sequence[dict[str, Any]], values: list[Any]) -> Announced | None:
        form = Form(tuple(infos[0]), tuple(map(type, infos[0].values())))
        keys, types = list(form.keys) * self._count, list(form.types) * self._count
        known = all(kind in _CODES for kind in form.types) and all(type(key) is str for key in form.keys)
        if self._forms >= _MAX_FORMS or not known:
            return None
        if list(chain.from_iterable(infos)) != keys or list(map(type, values)) != types:
            return None
        packing = struct.Struct("=" + "".join(_CODES[kind] for kind in form.types) * self._count)
        try:
            data = packing.pack(*values)
        except struct.error:
            return None
        self._forms += 1
        self._keys, self._types, self._struct = keys, types, packing
        return Announced(form, data)


def blank_info(keys: Iterable[str] = ()) -> dict[str, Any]:
    """What every info has, and room for these keys."""
    return {**dict.fromkeys(keys), TRUNCATED_KEY: False}


def copies(info: dict[str, Any], n: int) -> list[dict[str, Any]]:
    """Copy an info n times: the quickest way to many small dicts."""
    return list(map(dict.copy, repeat(info, n)))


def fill_in(infos: list[dict[str, Any]], key: str, values: Iterable[Any]) -> None:
    """Give each info its value of `key`."""
    for info, info[key] in zip(infos, values, strict=True):  # noqa: B007  this writes: one value into each info
        pass


class InfoUnpacker:
    """The caller's end of one worker's infos. They come complete, with TRUNCATED_KEY False."""

    def __init__(self) -> None:
        self._row = struct.Struct("=")
        self._make: Make = maker(())

    def unpack(self, packed: bytes | Announced) -> list[dict[str, Any]]:
        """Give one dict per env."""
        if isinstance(packed, Announced):
            form, packed = packed
            self._row = struct.Struct("=" + "".join(_CODES[kind] for kind in form.types))
            self._make = maker(form.keys, form.types)
        return self._make(self._row.iter_unpack(packed))


def maker(keys: Sequence[str], types: Sequence[type] = ()) -> Make:
    """Make the function that makes an info of each row of values; those of `types` that are not Python's own as such.

    Written as code, in which the keys stand, a dict takes a third of the time.
    """
    values = [f"v{k}" for k in range(len(keys))]
    others = {f"t{k}": kind for k, kind in enumerate(types) if kind not in _PYTHON}
    made = [f"t{k}({value})" if f"t{k}" in others else value for k, value in enumerate(values)]
    items = dict(zip(keys, made, strict=True)) | {TRUNCATED_KEY: "False"}
    display = ", ".join(f"{key!r}: {value}" for key, value in items.items())
    row = f"({', '.join(values)}{',' if values else ''})"
    make: Make = eval(f"lambda rows: [{{{display}}} for {row} in rows]", others)  # noqa: S307  keys are quoted
    return make


def own_complete(infos: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Copy infos that need no transport, complete as `InfoUnpacker.unpack` gives them."""
    if IMMUTABLE.issuperset(map(type, chain.from_iterable(map(dict.values, infos)))):
        return [{**info, TRUNCATED_KEY: False} for info in infos]
    return [{**copy_containers(info), TRUNCATED_KEY: False} for info in infos]
