"""The infos of a whole shard's rows on their way to the caller.

Most envs that give infos give the same keys with the same types of numbers at every step. Those travel as bare numbers:
their *form* is announced once, and again whenever it changes. Everything else travels pickled, as `protocol.Extra`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import chain, repeat
from typing import Any, NamedTuple

import numpy as np

from vecenvs.protocol import CONTAINERS, own

TRUNCATED_KEY = "TimeLimit.truncated"

# How a value of each type is written (`struct`, `numpy`); reading gives the same type and value again.
_CODES: dict[type, tuple[str, str]] = {
    float: ("d", "f8"),
    int: ("q", "i8"),
    bool: ("?", "?"),
    np.float64: ("d", "f8"),
    np.float32: ("f", "f4"),
    np.int64: ("q", "i8"),
    np.int32: ("i", "i4"),
    np.uint8: ("B", "u1"),
    np.bool_: ("?", "?"),
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
        packing = struct.Struct("=" + "".join(_CODES[kind][0] for kind in form.types) * self._count)
        try:
            data = packing.pack(*values)
        except struct.error:
            return None
        self._forms += 1
        self._keys, self._types, self._struct = keys, types, packing
        return Announced(form, data)


class InfoUnpacker:
    """The caller's end of one worker's infos. They come complete, with TRUNCATED_KEY False."""

    def __init__(self) -> None:
        self._keys: tuple[str, ...] = ()
        self._dtype: np.dtype[Any] = np.dtype([])
        self._python: list[bool] = []

    def unpack(self, packed: bytes | Announced) -> list[dict[str, Any]]:
        """Give one dict per env."""
        if isinstance(packed, Announced):
            form, packed = packed
            fields = [(f"f{k}", "=" + _CODES[kind][1]) for k, kind in enumerate(form.types)]
            self._keys, self._dtype = (*form.keys, TRUNCATED_KEY), np.dtype(fields)
            self._python = [kind in _PYTHON for kind in form.types]
        rows = np.frombuffer(packed, self._dtype)
        columns = [
            rows[name].tolist() if python else list(rows[name])
            for name, python in zip(self._dtype.names or (), self._python, strict=True)
        ]
        keys = self._keys
        return [dict(zip(keys, row, strict=True)) for row in zip(*columns, repeat(False))]


def own_complete(infos: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Copy infos that need no transport, complete as `InfoUnpacker.unpack` gives them."""
    if CONTAINERS.isdisjoint(map(type, chain.from_iterable(map(dict.values, infos)))):
        return [{**info, TRUNCATED_KEY: False} for info in infos]
    return [{**own(info), TRUNCATED_KEY: False} for info in infos]
