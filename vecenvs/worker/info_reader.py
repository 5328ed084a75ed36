"""Reading of the info channel: attributes of envs, wherever they live, in every row's info.

The worker reads them after each step, before an autoreset. They travel pickled, in the rows' infos, until every env
has been reset once. Then their types are known, and numbers and small arrays get a column each, beside the
observations (`attribute_columns.py`, `BatchColumns.open_info`). Other values, and those that do not fit their column
any more, still travel pickled.
"""

from __future__ import annotations

import keyword
import operator
from collections.abc import Callable, Sequence
from typing import Any

from numpy.typing import NDArray

from vecenvs.batch.attribute_columns import AttributeColumn
from vecenvs.batch.values import copy_containers
from vecenvs.env_calls import layers
from vecenvs.transport.protocol import RowExtras, Slots, shifted

Getter = Callable[[Any], Any]

_BARE = "unwrapped."
_IMMUTABLE = frozenset({bool, int, float, str, type(None)})


class InfoReader:
    """Reads the attributes `names` of one worker's envs.

    A name may mean an attribute of the env or of one of its wrappers. Which one is found out once, after the env's
    first reset: from then on `_owners[k][local]` is the layer that has attribute k.
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
        self._sources: list[list[tuple[Getter, Any]]] = [[] for _ in envs]  # the same by env; empty until found out
        self._unresolved = set(range(len(envs)))
        self._seen = list(envs)  # whose owners these are
        self._stash: dict[int, list[Any]] = {}
        self._columns: list[AttributeColumn | None] = [None] * len(names)
        self._first_columns: list[AttributeColumn | None] = [None] * len(names)

    def open(self, columns: dict[str, NDArray[Any]], first_columns: dict[str, NDArray[Any]]) -> None:
        """Write the values of rows to `columns` from now on, and those after resets to `first_columns`."""
        shard = slice(self._first, self._first + len(self._envs))
        self._columns, self._first_columns = (
            [AttributeColumn(arrays[name], shard) if name in arrays else None for name in self._names]
            for arrays in (columns, first_columns)
        )

    def first(self, local: int) -> dict[str, Any]:
        """Write the attributes after a reset to their columns; return copies of the others, by name.

        Those of an env in `keep` are left to `collect`, which reads all envs. Raise AttributeError for a name that no
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
        """Return copies of the env's attributes. Raise AttributeError if one is no longer there."""
        sources = self._sources[local]
        found = [get(owner) for get, owner in sources] if sources else self._before_reset(local)
        return found if _IMMUTABLE.issuperset(map(type, found)) else list(map(copy_containers, found))

    def notice(self, local: int) -> None:
        """Forget which layers have the attributes if the caller has put another env in this place."""
        if self._envs[local] is not self._seen[local]:
            self._seen[local], self._sources[local] = self._envs[local], []
            self._unresolved.add(local)

    def without(self, info: dict[str, Any]) -> dict[str, Any]:
        """Return an env's info without keys that are names of attributes: the attribute has precedence."""
        taken = self._taken
        return info if taken.isdisjoint(info) else {key: value for key, value in info.items() if key not in taken}

    def keep(self, local: int) -> None:
        """Read the env's attributes for the current row now, since the env is about to be reset within its step."""
        self._stash[local] = self.values(local)

    def collect(
        self, shard: Slots, extras: list[RowExtras], reset_infos: dict[int, dict[str, Any]]
    ) -> list[tuple[int, Exception]]:
        """Write these rows' values to their columns or to `extras`; return the envs whose attributes could not be read.

        Values after the reset of an env in `keep` that no column holds are added to its `reset_infos`.
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
            except Exception:  # of one env: reading one by one tells which
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
        slots = shifted(shard, self._first)
        whole = self._is_whole(shard)
        for name, column, values in zip(self._names, self._columns, columns, strict=True):
            if not (whole and column is not None and column.put_whole(values)):
                self._store(name, column, slots, values, extras)
        return failed

    def _put_back(self, position: int, row: list[Any], local: int, columns: list[list[Any]]) -> dict[str, Any]:
        """Replace an env's values after its reset by those of its row; return the former that have no column."""
        slot, left = self._first + local, {}
        for name, column, value, values in zip(self._names, self._first_columns, row, columns, strict=True):
            first, values[position] = values[position], value
            if column is None or not column.put(slot, first):
                left[name] = first
        return left

    def _read(self, shard: Sequence[int]) -> list[list[Any]]:
        """Return each attribute's values, in the order of the shard."""
        whole = self._is_whole(shard)
        return [
            read_all(owners if whole else [owners[local] for local in shard])
            for read_all, owners in zip(self._read_all, self._owners, strict=True)
        ]

    def _is_whole(self, shard: Sequence[int]) -> bool:
        return isinstance(shard, range) and len(shard) == len(self._envs)  # a list may have another order

    def _read_each(self, shard: Sequence[int]) -> tuple[list[int], list[list[Any]], list[tuple[int, Exception]]]:
        """Read env by env; return the envs that could be read, their values by attribute, and the failures."""
        read: dict[int, list[Any]] = {}
        failed: list[tuple[int, Exception]] = []
        for local in shard:
            try:
                read[local] = self.values(local)
            except Exception as exc:
                failed.append((local, exc))
        return list(read), [list(values) for values in zip(*read.values(), strict=True)], failed

    def _store(
        self,
        name: str,
        column: AttributeColumn | None,
        slots: Sequence[int],
        values: list[Any],
        extras: list[RowExtras],
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
        """Return the values of an env that replaces a lost one and has not been reset: None for those it has not."""
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
                get(layer)  # raise AttributeError for the rest of the path now
                return layer
        raise AttributeError(
            f"info_attrs names {name!r}, which env {self._first + local} ({type(found[-1]).__name__}) "
            "and its wrappers do not have after a reset"
        )


def _read_all(path: str) -> Callable[[list[Any]], list[Any]]:
    """Make a function which returns the attribute at `path` of each object in a list.

    Python reads an attribute whose name stands in code twice as fast as one passed by name, and this is done for every
    env at every step.
    """
    if not all(part.isidentifier() and not keyword.iskeyword(part) for part in path.split(".")):
        get = operator.attrgetter(path)
        return lambda owners: list(map(get, owners))
    read: Callable[[list[Any]], list[Any]] = eval(f"lambda owners: [owner.{path} for owner in owners]")  # noqa: S307
    return read
