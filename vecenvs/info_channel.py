"""The info channel: attributes of envs, wherever they live, in every row's info.

The worker reads them after each step, before an autoreset. Until every env has been reset once they travel pickled, in
the rows' infos. By then their types are known: numbers and small arrays get a column each (`Specs`, `Board.open_info`),
beside the observations'. What is neither, or does not fit its column any more, goes on travelling pickled.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vecenvs.board import INFO_BYTES, Specs
from vecenvs.calls import layers
from vecenvs.protocol import Extra, own

_NUMERIC = (bool, int, float, np.generic, np.ndarray)


def specs_of(names: Iterable[str], infos: Sequence[dict[str, Any]]) -> Specs:
    """Which of the attributes, as found in every env's reset info, are numbers or arrays of one dtype and shape."""
    specs: Specs = {}
    for name in names:
        kinds = set()
        for info in infos:
            value = info.get(name)
            array = np.asarray(value) if isinstance(value, _NUMERIC) else None
            numeric = array is not None and array.dtype.kind in "biufc"
            kinds.add((array.dtype, array.shape) if array is not None and numeric else None)
        found = kinds.pop() if len(kinds) == 1 else None
        if found is not None and found[0].itemsize * math.prod(found[1]) <= INFO_BYTES:
            specs[name] = found
    return specs


def stack(values: list[Any]) -> NDArray[Any]:
    """One array of all envs' values: numbers stacked, anything else as an object array (n,)."""
    kinds = {(np.asarray(v).dtype.kind, np.asarray(v).shape) for v in values if isinstance(v, _NUMERIC)}
    if len(kinds) == 1 and all(isinstance(value, _NUMERIC) for value in values):
        return np.array(values)
    column = np.empty(len(values), dtype=object)
    for i, value in enumerate(values):
        column[i] = value
    return column


class InfoReader:
    """Reads the attributes of one worker's envs."""

    def __init__(self, names: Sequence[str], envs: Sequence[Any], first: int) -> None:
        self._names = names
        self._envs = envs
        self._first = first
        self._getters: list[list[Callable[[], Any]] | None] = [None] * len(envs)
        self._stash: dict[int, list[Any]] = {}
        self.columns: dict[str, NDArray[Any]] = {}

    def values(self, local: int) -> list[Any]:
        """What the attributes are now. AttributeError naming one that no layer of the env has."""
        getters = self._getters[local]
        if getters is None:
            getters = self._getters[local] = [self._resolve(local, name) for name in self._names]
        return [getter() for getter in getters]

    def info(self, local: int) -> dict[str, Any]:
        """The same, by name, as copies."""
        return dict(zip(self._names, map(own, self.values(local)), strict=True))

    def keep(self, local: int) -> None:
        """Read now what belongs to the row under way, since the env is about to be reset."""
        self._stash[local] = list(map(own, self.values(local)))

    def collect(self, shard: Iterable[int], extras: list[Extra]) -> list[tuple[int, Exception]]:
        """Write the values of these rows into their columns, the others into extras; give the envs where it failed."""
        stash, self._stash = self._stash, {}
        skip = {extra.slot for extra in extras if extra.failure is not None}
        slots: list[int] = []
        rows: list[list[Any]] = []
        failed: list[tuple[int, Exception]] = []
        for local in shard:
            if self._first + local in skip:
                continue
            try:
                rows.append(stash[local] if local in stash else self.values(local))
                slots.append(self._first + local)
            except Exception as exc:
                failed.append((local, exc))
        if rows:
            for name, values in zip(self._names, zip(*rows, strict=True), strict=True):
                self._store(name, slots, values, extras)
        return failed

    def _store(self, name: str, slots: list[int], values: Sequence[Any], extras: list[Extra]) -> None:
        column = self.columns.get(name)
        block = None if column is None else _fitting(values, column)
        if column is not None and block is not None:
            if slots[-1] - slots[0] == len(slots) - 1:
                column[slots[0] : slots[-1] + 1] = block
            else:
                column[slots] = block
            return
        found = {extra.slot: extra for extra in extras}
        for slot, value in zip(slots, values, strict=True):
            if slot not in found:
                found[slot] = Extra(slot, {})
                extras.append(found[slot])
            found[slot].info[name] = own(value)

    def _resolve(self, local: int, name: str) -> Callable[[], Any]:
        env = self._envs[local]
        bare, path = name.startswith("unwrapped."), name.removeprefix("unwrapped.")
        for layer in layers(env)[-1:] if bare else layers(env):
            if hasattr(layer, path.partition(".")[0]):
                get = operator.attrgetter(path)
                get(layer)  # an AttributeError further down the path shows now
                return partial(get, layer)
        raise AttributeError(
            f"info_attrs names {name!r}, which env {self._first + local} ({type(env.unwrapped).__name__}) "
            "and its wrappers do not have after a reset"
        )


def _fitting(values: Sequence[Any], column: NDArray[Any]) -> NDArray[Any] | None:
    """The values as one array, if the column can hold it; None if some env's value is of another type by now."""
    try:
        block = np.array(values)
    except ValueError:  # arrays of different shapes
        return None
    fits = block.shape[1:] == column.shape[1:] and np.can_cast(block.dtype, column.dtype, "same_kind")
    return block if fits else None
