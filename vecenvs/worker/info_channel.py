"""The info channel: attributes of envs, wherever they live, in every row's info.

The worker reads them after each step, before an autoreset. Until every env has been reset once they travel pickled, in
the rows' infos. By then their types are known: numbers and small arrays get a column each (`Specs`,
`BatchColumns.open_info`), beside the observations. What is neither, or does not fit its column any more, goes on
travelling pickled.
"""

from __future__ import annotations

import keyword
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vecenvs.batch.batch_columns import INFO_BYTES, Specs
from vecenvs.batch.values import copy_containers
from vecenvs.env_calls import layers
from vecenvs.transport.protocol import RowExtras

Getter = Callable[[Any], Any]

_BARE = "unwrapped."
_PLAIN = frozenset({bool, int, float, complex, np.ndarray})
_IMMUTABLE = frozenset({bool, int, float, str, type(None)})
_PYTHON_TYPES: dict[np.dtype[Any], type] = {np.dtype(float): float, np.dtype(np.int64): int, np.dtype(bool): bool}


def specs_of(names: Iterable[str], infos: Sequence[dict[str, Any]]) -> Specs:
    """Which of the attributes, as found in every env's reset info, are numbers or arrays of one dtype and shape."""
    specs: Specs = {}
    for name in names:
        kinds = set()
        for info in infos:
            value = info.get(name)
            array = np.asarray(value) if _fits_columns(type(value)) else None
            numeric = array is not None and array.dtype.kind in "biufc"
            kinds.add((array.dtype, array.shape) if array is not None and numeric else None)
        found = kinds.pop() if len(kinds) == 1 else None
        if found is not None and found[0].itemsize * math.prod(found[1]) <= INFO_BYTES:
            specs[name] = found
    return specs


def _fits_columns(kind: type) -> bool:
    """Tell whether an array holds all that there is of such values: not of an IntEnum's, say, or a masked array's."""
    return kind in _PLAIN or issubclass(kind, np.generic)


def stack(values: list[Any]) -> NDArray[Any]:
    """One array of all envs' values: numbers stacked, anything else as an object array (n,)."""
    if all(_fits_columns(type(value)) for value in values):
        arrays = [np.asarray(value) for value in values]
        if len({(array.dtype.kind, array.shape) for array in arrays}) == 1:
            return np.array(values)
    column = np.empty(len(values), dtype=object)
    for i, value in enumerate(values):
        column[i] = value
    return column


class InfoReader:
    """Reads the attributes of one worker's envs.

    Which layer of an env a name means, the env itself or one of its wrappers, is found out after the env's reset, once:
    from then on `_owners[k][local]` is the one that has attribute k.
    """

    def __init__(self, names: Sequence[str], envs: Sequence[Any], first: int) -> None:
        self._names = names
        self._taken = frozenset(names)
        self._envs = envs
        self._first = first
        paths = [name.removeprefix(_BARE) for name in names]
        self._getters = [operator.attrgetter(path) for path in paths]
        self._read_all = [_read_all(path) for path in paths]
        self._owners: list[list[Any]] = [[None] * len(envs) for _ in names]
        self._sources: list[list[tuple[Getter, Any]]] = [[] for _ in envs]  # the same by env; empty: not found out yet
        self._unresolved = set(range(len(envs)))
        self._seen = list(envs)  # whose owners these are
        self._stash: dict[int, list[Any]] = {}
        self._columns: list[_Column | None] = [None] * len(names)
        self._first_columns: list[_Column | None] = [None] * len(names)

    def open(self, columns: dict[str, NDArray[Any]], first_columns: dict[str, NDArray[Any]]) -> None:
        """Write into these columns from now on: the values of rows, and those after resets."""
        shard = slice(self._first, self._first + len(self._envs))
        self._columns, self._first_columns = (
            [_Column(arrays[name], shard) if name in arrays else None for name in self._names]
            for arrays in (columns, first_columns)
        )

    def first(self, local: int) -> dict[str, Any]:
        """Write the attributes after a reset into their columns; give the others, by name, as copies.

        Those of an env under `keep` are left to `collect`, which reads all envs. AttributeError naming one that no
        layer of the env has.
        """
        self.notice(local)
        if local in self._unresolved:
            self._find_out(local)
        elif local in self._stash:
            return {}
        slot = self._first + local
        return {
            name: value
            for name, column, value in zip(self._names, self._first_columns, self.values(local), strict=True)
            if column is None or not column.put(slot, value)
        }

    def values(self, local: int) -> list[Any]:
        """What they are now, as copies. AttributeError if one is no longer there."""
        sources = self._sources[local]
        found = [get(owner) for get, owner in sources] if sources else self._before_reset(local)
        return found if _IMMUTABLE.issuperset(map(type, found)) else list(map(copy_containers, found))

    def notice(self, local: int) -> None:
        """Forget the owners of an env in whose place another is by now, until that is reset."""
        if self._envs[local] is not self._seen[local]:
            self._seen[local], self._sources[local] = self._envs[local], []
            self._unresolved.add(local)

    def without(self, info: dict[str, Any]) -> dict[str, Any]:
        """Give an env's info without what is named like an attribute: that name is the attribute's."""
        taken = self._taken
        return info if taken.isdisjoint(info) else {key: value for key, value in info.items() if key not in taken}

    def keep(self, local: int) -> None:
        """Read now what belongs to the row under way, since the env is about to be reset within its step."""
        self._stash[local] = self.values(local)

    def collect(
        self, shard: Sequence[int], extras: list[RowExtras], reset_infos: dict[int, dict[str, Any]]
    ) -> list[tuple[int, Exception]]:
        """Write the values of these rows into their columns, the others into extras; give the envs where it failed.

        What envs under `keep` have after their reset and no column holds is added to `reset_infos`, by `local`.
        """
        stash, self._stash = self._stash, {}
        skip = {extra.slot - self._first for extra in extras if extra.failure is not None}
        if skip:
            shard = [local for local in shard if local not in skip]
        failed: list[tuple[int, Exception]] = []
        columns: list[list[Any]] = []
        if not self._unresolved:
            try:
                columns = self._read(shard)
            except Exception:  # of one env: which one, they will tell one by one
                columns = []
        if not columns:
            shard, columns, failed = self._read_each(shard)
        for local, row in stash.items():
            if local in shard:
                left = self._put_back(shard.index(local), row, local, columns)
                if left:
                    reset_infos[local] = {
                        **reset_infos.get(local, {}),
                        **{k: copy_containers(v) for k, v in left.items()},
                    }
        if not shard:
            return failed
        slots = _shifted(shard, self._first)
        whole = len(shard) == len(self._envs)
        for name, column, values in zip(self._names, self._columns, columns, strict=True):
            if not (whole and column is not None and column.put_whole(values)):
                self._store(name, column, slots, values, extras)
        return failed

    def _put_back(self, position: int, row: list[Any], local: int, columns: list[list[Any]]) -> dict[str, Any]:
        """Replace what an env has after its reset by what it had on its row; give what of the former has no column."""
        slot, left = self._first + local, {}
        for name, column, value, values in zip(self._names, self._first_columns, row, columns, strict=True):
            first, values[position] = values[position], value
            if column is None or not column.put(slot, first):
                left[name] = first
        return left

    def _read(self, shard: Sequence[int]) -> list[list[Any]]:
        """Give each attribute's values, in the order of the shard."""
        whole = len(shard) == len(self._envs)
        return [
            read_all(owners if whole else [owners[local] for local in shard])
            for read_all, owners in zip(self._read_all, self._owners, strict=True)
        ]

    def _read_each(self, shard: Sequence[int]) -> tuple[list[int], list[list[Any]], list[tuple[int, Exception]]]:
        """Read env by env: whose attributes could be read, the values by attribute, and who failed."""
        read: dict[int, list[Any]] = {}
        failed: list[tuple[int, Exception]] = []
        for local in shard:
            try:
                read[local] = self.values(local)
            except Exception as exc:
                failed.append((local, exc))
        return list(read), [list(values) for values in zip(*read.values(), strict=True)], failed

    def _store(
        self, name: str, column: _Column | None, slots: Sequence[int], values: list[Any], extras: list[RowExtras]
    ) -> None:
        if column is not None and column.put_all(slots, values):
            return
        found = {extra.slot: extra for extra in extras}
        for slot, value in zip(slots, values, strict=True):
            if column is not None and column.put(slot, value):
                continue
            if slot not in found:
                found[slot] = RowExtras(slot, {})
                extras.append(found[slot])
            found[slot].info[name] = copy_containers(value)

    def _before_reset(self, local: int) -> list[Any]:
        """What an env has that stands for one lost with its worker, until its own reset: None for what it has not."""
        found: list[Any] = []
        for name, get in zip(self._names, self._getters, strict=True):
            try:
                found.append(get(self._resolve(local, name, get)))
            except Exception:  # a property may raise anything before a reset
                found.append(None)
        return found

    def _find_out(self, local: int) -> None:
        found = [self._resolve(local, name, get) for name, get in zip(self._names, self._getters, strict=True)]
        for owners, owner in zip(self._owners, found, strict=True):
            owners[local] = owner
        self._sources[local] = list(zip(self._getters, found, strict=True))
        self._unresolved.discard(local)

    def _resolve(self, local: int, name: str, get: Getter) -> Any:
        found = layers(self._envs[local])
        head = name.removeprefix(_BARE).partition(".")[0]
        for layer in found[-1:] if name.startswith(_BARE) else found:
            if hasattr(layer, head):
                get(layer)  # an AttributeError further down the path shows now
                return layer
        raise AttributeError(
            f"info_attrs names {name!r}, which env {self._first + local} ({type(found[-1]).__name__}) "
            "and its wrappers do not have after a reset"
        )


def _read_all(path: str) -> Callable[[list[Any]], list[Any]]:
    """Make the function that gives the attribute of each of some objects.

    Python reads an attribute written into code twice as fast as one given by name, and this is done for every env at
    every step.
    """
    if not all(part.isidentifier() and not keyword.iskeyword(part) for part in path.split(".")):
        get = operator.attrgetter(path)
        return lambda owners: list(map(get, owners))
    read: Callable[[list[Any]], list[Any]] = eval(f"lambda owners: [owner.{path} for owner in owners]")  # noqa: S307
    return read


def _shifted(shard: Sequence[int], by: int) -> Sequence[int]:
    return range(shard.start + by, shard.stop + by) if isinstance(shard, range) else [local + by for local in shard]


class _Column:
    """One attribute's column. Numbers of its own type take a short way into it."""

    def __init__(self, array: NDArray[Any], shard: slice) -> None:
        self._array = array
        self._shard = array[shard]
        self._kind = _PYTHON_TYPES.get(array.dtype) if array.ndim == 1 else None
        self._kinds = {self._kind}
        self._cells: Any = array.data  # an item costs less than numpy takes

    def put(self, slot: int, value: Any) -> bool:
        """Write one value. False if the column cannot hold it: it is of another type by now."""
        if type(value) is not self._kind:
            return self.put_all([slot], [value])
        try:
            self._cells[slot] = value
        except ValueError:  # an int of more than 64 bits
            return False
        return True

    def put_whole(self, values: list[Any]) -> bool:
        """Write one value for each env of the shard, if all are numbers of the column's own type. False if not."""
        if {*map(type, values)} != self._kinds:
            return False
        try:
            self._shard[:] = values
        except OverflowError:  # an int of more than 64 bits
            return False
        return True

    def put_all(self, slots: Sequence[int], values: list[Any]) -> bool:
        """Write values into these rows, in ascending order. False if the column does not take them all as one block.

        What it takes in a block it takes one by one, to the same effect: an env's values do not depend on its shard.
        """
        kind = type(values[0])
        if {*map(type, values)} != {kind} or (kind is np.ndarray and len({value.dtype for value in values}) > 1):
            return False  # numpy would find a common type for them
        if not _fits_columns(kind):
            return False
        block: Any = values
        if kind is not self._kind:
            try:
                given = np.array(values)
                with np.errstate(all="ignore"):
                    block = given.astype(self._array.dtype)
            except Exception:  # arrays of different shapes, or what will be no array
                return False
            if given.dtype.kind != block.dtype.kind or block.shape[1:] != self._array.shape[1:]:
                return False
            if given.dtype != block.dtype and not np.array_equal(block, given, equal_nan=True):  # another value
                return False
        adjacent = slots[-1] - slots[0] == len(slots) - 1
        try:
            self._array[slice(slots[0], slots[-1] + 1) if adjacent else slots] = block
        except OverflowError:  # an int of more than 64 bits
            return False
        return True
