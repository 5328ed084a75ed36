"""Reading of the info channel: attributes of envs, wherever they live, in every row's info.

The worker reads them after each step, before an autoreset; they travel as any other infos do, see `batch/infos.py`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from vecenvs.batch.infos import own_value
from vecenvs.env_calls import layers
from vecenvs.transport.protocol import Slots

Getter = Callable[[Any], Any]

_BARE = "unwrapped."
_IMMUTABLE = frozenset({bool, int, float, str, type(None)})


class Collected(NamedTuple):
    """The attributes of some envs.

    `columns` has one list for each attribute, with the values on the rows of the envs `shard`; `failed` are the others,
    and why they could not be read. `begun` are those in `keep`, `first` the lists of their values after the reset.
    """

    shard: Slots
    columns: list[list[Any]]
    failed: list[tuple[int, Exception]]
    begun: list[int]
    first: list[list[Any]]


class InfoReader:
    """Reads the attributes `names` of one worker's envs.

    A name may mean an attribute of the env or of one of its wrappers. Which one is found out once, after the env's
    first reset: from then on `_owners[k][local]` is the layer that has attribute k.
    """

    def __init__(self, names: Sequence[str], envs: Sequence[Any], first: int) -> None:
        self.names = tuple(names)
        self._taken = frozenset(names)
        self._envs = envs
        self._first = first
        paths = [name.removeprefix(_BARE) for name in names]
        self._getters = [operator.attrgetter(path) for path in paths]
        self._owners: list[list[Any]] = [[None] * len(envs) for _ in names]
        self._sources: list[list[tuple[Getter, Any]]] = [[] for _ in envs]  # the same by env; empty until found out
        self._unresolved = set(range(len(envs)))
        self._seen = list(envs)  # whose owners these are
        self._stash: dict[int, list[Any]] = {}
        self._given: dict[int, list[Any]] = {}  # of envs in other workers, by those that have not been reset

    def first(self, local: int) -> dict[str, Any]:
        """Return copies of the env's attributes after a reset, by name.

        Those of an env in `keep` are left to `collect`, which reads all envs. Raise AttributeError for a name that no
        layer of the env has.
        """
        self.notice(local)
        if local in self._unresolved:
            self._find_out(local)
        elif local in self._stash:
            return {}
        return dict(zip(self.names, self.values(local), strict=True))

    def values(self, local: int) -> list[Any]:
        """Return copies of the env's attributes. Raise AttributeError if one is no longer there."""
        sources = self._sources[local]
        found = [get(owner) for get, owner in sources] if sources else self._before_reset(local)
        return found if _IMMUTABLE.issuperset(map(type, found)) else list(map(own_value, found))

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

    def give(self, local: int, values: list[Any]) -> None:
        """Take the values of the env in whose place this one, which has not been reset, is."""
        self._given[local] = values

    def forget(self, local: int) -> None:
        """Forget what `keep` has read of an env whose row is a failure."""
        self._stash.pop(local, None)

    def collect(self, shard: Slots) -> Collected:
        """Read the attributes of these envs for their rows."""
        stash = {local: self._stash.pop(local) for local in shard if local in self._stash} if self._stash else {}
        failed: list[tuple[int, Exception]] = []
        try:
            columns = [] if self._unresolved else self._read(shard)
        except Exception:  # of one env: reading one by one tells which
            columns = []
        if not columns:
            shard, columns, failed = self._read_each(shard)
        if not stash:
            return Collected(shard, columns, failed, [], [])
        begun = [local for local in stash if local in shard]
        places = [shard.index(local) for local in begun]
        first = [[values[place] for place in places] for values in columns]
        for place, local in zip(places, begun, strict=True):
            for values, value in zip(columns, stash[local], strict=True):
                values[place] = value
        return Collected(shard, columns, failed, begun, first)

    def _read(self, shard: Sequence[int]) -> list[list[Any]]:
        """Return each attribute's values, in the order of the shard."""
        whole = isinstance(shard, range) and len(shard) == len(self._envs)  # a list may have another order
        return [
            list(map(get, owners if whole else [owners[local] for local in shard]))
            for get, owners in zip(self._getters, self._owners, strict=True)
        ]

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

    def _before_reset(self, local: int) -> list[Any]:
        """Return the values of an env that replaces a lost one and has not been reset: None for those it has not."""
        if local in self._given:
            return self._given[local]
        found: list[Any] = []
        for name, get in zip(self.names, self._getters, strict=True):
            try:
                found.append(get(self._resolve(local, name, get)))
            except Exception:  # a property may raise anything before a reset
                found.append(None)
        return found

    def _find_out(self, local: int) -> None:
        found = [self._resolve(local, name, get) for name, get in zip(self.names, self._getters, strict=True)]
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
