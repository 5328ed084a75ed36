"""Sequences of infos whose dicts are made when a program looks at them."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vecenvs.batch.info_batches import Columns, RowIndex, info_of
from vecenvs.batch.infos import TRUNCATED_KEY
from vecenvs.errors import VecEnvError


class LazyDicts(Sequence[dict[str, Any]]):
    """A sequence of dicts, each made when it is first looked at. It equals the list of them, and is pickled as that.

    It is no subclass of list: code in C reads the items of one from memory, and would miss those not made yet.
    """

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return [self[k] for k in range(*row.indices(len(self)))]
        return self._info(range(len(self))[row])  # IndexError, and negative ones

    @abc.abstractmethod
    def __setitem__(self, row: int, info: dict[str, Any]) -> None:
        """Put another dict in the place of a row's."""

    @abc.abstractmethod
    def _info(self, row: int) -> dict[str, Any]:
        """Return the dict of a row, the same one each time."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (list, LazyDicts)):
            return NotImplemented
        return len(other) == len(self) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # as a list's

    def __repr__(self) -> str:
        return repr(list(self))

    def __reduce__(self) -> tuple[Any, ...]:  # of copies, too
        return list, (list(self),)


Infos = list[dict[str, Any]] | LazyDicts


class LazyInfos(LazyDicts):
    """The infos of n rows.

    A dict belongs to the caller from then on, and what the caller changes in it stays. `columns` has the values by
    name.

    Args:
        n: the number of rows.
        given: returns what the envs have put into their infos.
        complete: makes of `given` what the infos have, beside "TimeLimit.truncated", once that is asked for.
    """

    def __init__(self, n: int, given: Callable[[], Columns], complete: Callable[[Columns], Columns]) -> None:
        self._given = given
        self._columns: Columns | None = None
        self._complete = complete
        self._n = n
        self._made: dict[int, dict[str, Any]] = {}

    @property
    def columns(self) -> Columns:
        """What the infos have by name."""
        if self._columns is None:
            self._columns = self._complete(self.given)
        return self._columns

    @property
    def given(self) -> Columns:
        """What the envs have put into their infos."""
        return self._given()

    def __len__(self) -> int:
        return self._n

    def _info(self, row: int) -> dict[str, Any]:
        info = self._made.get(row)
        if info is None:
            info = info_of(self.columns, row)
            info.setdefault(TRUNCATED_KEY, False)
            self._made[row] = info
        return info

    def __setitem__(self, row: int, info: dict[str, Any]) -> None:
        self._made[range(self._n)[row]] = info

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(self.__getitem__, range(self._n))

    @property
    def materialized(self) -> dict[int, dict[str, Any]]:
        """The dicts that were made, by row. `columns` have everything about the other rows."""
        return self._made

    def flagged(self, key: str) -> NDArray[np.bool_]:
        """Return which rows have True under a key, as a loop over the dicts would."""
        found: NDArray[np.bool_] = np.zeros(self._n, bool)
        column = self.columns.get(key)
        if column is not None and not isinstance(column.values, dict):
            trues = [value is True or (isinstance(value, np.bool_) and bool(value)) for value in column.values]
            found[slice(None) if column.rows is None else column.rows] = trues
        for row, info in self._made.items():
            found[row] = info.get(key) is True
        return found

    def add(self, rows: Iterable[int], infos: Iterable[dict[str, Any]]) -> None:
        """Add further keys to some rows; those that a row has already stay."""
        for row, info in zip(rows, infos, strict=True):
            self._made[row] = {**info, **self[row]}


class LazyResetInfos(LazyDicts):
    """The info of each env's last reset: {} before the first, otherwise a dict with "episode_start"."""

    def __init__(self, n: int) -> None:
        self._begun: NDArray[np.bool_] = np.zeros(n, bool)
        self._all_begun = False
        self._made: dict[int, dict[str, Any]] = {}
        self._unmade: dict[int, Callable[[], Columns]] = {}  # by row: the infos of the resets of which its own is one

    def __len__(self) -> int:
        return len(self._begun)

    def _info(self, row: int) -> dict[str, Any]:
        if row not in self._made:
            info = info_of(self._unmade.pop(row, dict)(), row)
            self._made[row] = {**info, "episode_start": True} if self._begun[row] else {}
        return self._made[row]

    def __setitem__(self, row: int, info: dict[str, Any]) -> None:
        self._begun[row] = True
        self._unmade.pop(row, None)
        if len(info) > 1:  # than "episode_start"
            self._made[row] = info
        else:
            self._made.pop(row, None)

    def own(self, row: int) -> dict[str, Any]:
        """Return the info of a reset that had more than "episode_start", else {}: without making a dict."""
        return self[row] if row in self._unmade else self._made.get(row, {})

    @property
    def nothing_changes(self) -> bool:
        """Whether each env has begun an episode, and no info has more than "episode_start"."""
        return self._all_begun and not (self._made or self._unmade)

    def begin(self, rows: RowIndex, infos: Callable[[], Columns] | None) -> None:
        """Note episodes that began, with what their resets' infos have, if there are any."""
        self._begun[rows] = True
        self._all_begun = self._all_begun or bool(self._begun.all())
        if self._made:
            for row in rows.tolist():
                self._made.pop(row, None)
        if infos is not None:
            self._unmade.update(dict.fromkeys(rows.tolist(), infos))
        elif self._unmade:
            for row in rows.tolist():
                self._unmade.pop(row, None)


def check_wrapped(dones: NDArray[np.bool_], ended: NDArray[np.bool_], infos: Sequence[dict[str, Any]]) -> None:
    """Refuse dones that only a wrapper has changed; add the missing key to infos that a wrapper has made."""
    if not np.array_equal(dones, ended):
        raise VecEnvError(
            "a wrapper changes dones, of which there is no other trace: define the properties terminated and truncated "
            "in the wrapper"
        )
    for info in infos.materialized.values() if isinstance(infos, LazyInfos) else infos:
        info.setdefault(TRUNCATED_KEY, False)
