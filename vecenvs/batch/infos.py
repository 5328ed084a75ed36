"""The infos of a whole shard's rows on their way to the caller.

Most envs with infos return the same keys with numbers of the same types at every step. Such infos travel as bare
numbers, behind a head with their keys and types. All other infos travel pickled, as `protocol.RowExtras`.
"""

from __future__ import annotations

import functools
import pickle
import struct
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, repeat
from typing import Any

import numpy as np

from vecenvs.batch.values import IMMUTABLE, copy_containers

TRUNCATED_KEY = "TimeLimit.truncated"

Make = Callable[[Iterable[tuple[Any, ...]]], list[dict[str, Any]]]

# How `struct` writes a value of each type. Read again and passed to its type, it is the same value.
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
_PYTHON = frozenset({float, int, bool})  # what `struct` reads
_SIZE = struct.Struct("=I")  # of the head, which it precedes


class InfoPacker:
    """Packs the infos of one worker's envs, if they have the same keys and types as at the step before."""

    def __init__(self) -> None:
        self._keys: list[Any] = []  # of the last step, one env's after another's; so are the types
        self._types: list[type] = []
        self._head: bytes | None = None  # None as long as the keys and types have come only once
        self._values: struct.Struct | None = None  # None if they cannot be packed

    def pack(self, infos: Sequence[dict[Any, Any]]) -> bytes | None:
        """Return the infos of all envs as bytes, or None if they have to be pickled."""
        values = list(chain.from_iterable(map(dict.values, infos)))
        keys, types = list(chain.from_iterable(infos)), list(map(type, values))
        if keys != self._keys or types != self._types:
            self._keys, self._types, self._head = keys, types, None
            return None  # the next step's may differ again, and to read a new head takes longer than to unpickle
        if self._head is None:
            self._head, self._values = _form_of(infos, keys, types)
        try:
            return None if self._values is None else self._head + self._values.pack(*values)
        except struct.error:  # an integer beyond 64 bits
            return None


def _form_of(infos: Sequence[dict[Any, Any]], keys: list[Any], types: list[type]) -> tuple[bytes, struct.Struct | None]:
    """Return the head of packed infos and what packs all values; None if envs differ or a value is no number."""
    form = tuple(infos[0]), tuple(map(type, infos[0].values()))
    same = keys == list(form[0]) * len(infos) and types == list(form[1]) * len(infos)
    if not same or not _CODES.keys() >= set(form[1]) or {*map(type, form[0])} != {str}:
        return b"", None
    head = pickle.dumps(form, protocol=5)
    return _SIZE.pack(len(head)) + head, _struct_of(types)


def unpack_infos(packed: bytes | memoryview) -> list[dict[str, Any]]:
    """Return what `InfoPacker.pack` was given, with TRUNCATED_KEY False in every info."""
    start = _SIZE.size + _SIZE.unpack_from(packed)[0]
    row, make = _reader(bytes(packed[_SIZE.size : start]))
    return make(row.iter_unpack(packed[start:]))


@functools.lru_cache(maxsize=64)
def _reader(head: bytes) -> tuple[struct.Struct, Make]:
    keys, types = pickle.loads(head)
    return _struct_of(types), maker(keys, types)


def _struct_of(types: Iterable[type]) -> struct.Struct:
    return struct.Struct("=" + "".join(_CODES[kind] for kind in types))


def maker(keys: Sequence[str], types: Sequence[type] = ()) -> Make:
    """Make a function which turns rows of values into infos, with values of `types` that are not Python's own.

    The function is generated code with the keys in it, which makes a dict in a third of the time of a loop over keys.
    """
    values = [f"v{k}" for k in range(len(keys))]
    others = {f"t{k}": kind for k, kind in enumerate(types) if kind not in _PYTHON}
    made = [f"t{k}({value})" if f"t{k}" in others else value for k, value in enumerate(values)]
    items = dict(zip(keys, made, strict=True)) | {TRUNCATED_KEY: "False"}
    display = ", ".join(f"{key!r}: {value}" for key, value in items.items())
    row = f"({', '.join(values)}{',' if values else ''})"
    make: Make = eval(f"lambda rows: [{{{display}}} for {row} in rows]", others)  # noqa: S307  keys are quoted
    return make


def blank_info(keys: Iterable[str] = ()) -> dict[str, Any]:
    """Return what every info has, and room for these keys."""
    return {**dict.fromkeys(keys), TRUNCATED_KEY: False}


def copies(info: dict[str, Any], n: int) -> list[dict[str, Any]]:
    """Copy an info n times: the fastest way to many small dicts."""
    return list(map(dict.copy, repeat(info, n)))


def fill_in(infos: list[dict[str, Any]], key: str, values: Iterable[Any]) -> None:
    """Set `key` in each info to its value."""
    for info, info[key] in zip(infos, values, strict=True):  # noqa: B007  this writes: one value into each info
        pass


def own_complete(infos: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Copy infos that stay in this process; add what `unpack_infos` adds."""
    if IMMUTABLE.issuperset(map(type, chain.from_iterable(map(dict.values, infos)))):
        return [{**info, TRUNCATED_KEY: False} for info in infos]
    return [{**copy_containers(info), TRUNCATED_KEY: False} for info in infos]
