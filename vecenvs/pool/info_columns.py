"""Read infos from the batch's columns, and put the values of `info_attrs` into one array for all envs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vecenvs.batch.batch_columns import BatchColumns
from vecenvs.batch.infos import RESET, STEP, TRUNCATED_KEY, InfoForm, InfoTable, blank_info, copies
from vecenvs.batch.lazy_infos import Infos
from vecenvs.batch.values import copy_containers
from vecenvs.env_calls import check_name
from vecenvs.errors import VecEnvError
from vecenvs.transport.protocol import rows_of, slots_of


class InfoColumns:
    """The infos that rows have in columns, and the last values of the attributes `names`, wherever they came.

    `used` tells whether any row may have an info in columns.
    """

    def __init__(self, names: Sequence[str], batch: BatchColumns, shards: Sequence[range]) -> None:
        self.names = tuple(names)
        self._names = frozenset(names)
        self.used = False
        self.blank: Callable[[], Any] = partial(copies, blank_info(), batch.n)  # makes an info for each env
        self._batch = batch
        self._shards = shards
        self._owner = [worker for worker, shard in enumerate(shards) for _ in shard]
        self._marks = (batch.info_marks[STEP].data, batch.info_marks[RESET].data)
        self._tables: list[dict[int, InfoTable]] = [{} for _ in shards]  # by worker and mark
        self._known: dict[InfoForm, InfoTable] = {}
        self._last: tuple[bytes, InfoTable | None] = b"", None  # the marks of all rows, and the table that all have
        # Where the attributes of the last rows are, and the table that all of these have, if there is one.
        self._sources: list[InfoTable | dict[str, Any] | None] = [None] * batch.n
        self._source: InfoTable | None = None
        self._complete: set[InfoTable | None] = set()  # tables with all attributes

    def open(self, worker: int, forms: tuple[InfoForm, ...]) -> None:
        """Take the forms of a worker's infos. Repeatable."""
        self._tables[worker] = {number: self._table_of(form) for number, form in enumerate(forms, 1)}
        self._last = b"", None
        self.used = True

    def forms(self, worker: int) -> tuple[InfoForm, ...]:
        """Return the forms of a worker's infos: one that replaces it goes on from these."""
        return tuple(table.form for table in self._tables[worker].values())

    def _table_of(self, form: InfoForm) -> InfoTable:
        if form not in self._known:
            self._known[form] = table = InfoTable(self._batch, form)
            if self._names.issubset(form.keys):
                self._complete.add(table)
        return self._known[form]

    def all_alike(self) -> InfoTable | None:
        """Return the table of all rows, None if they differ or one has none."""
        marks = self._marks[STEP].tobytes()
        if marks != self._last[0]:
            tables = self._tables_of(range(len(marks)))
            self._last = marks, tables[0] if tables.count(tables[0]) == len(tables) else None
        return self._last[1]

    def infos(self, slots: Sequence[int]) -> list[dict[str, Any]]:
        """Return the infos of these rows as far as they have columns, with "TimeLimit.truncated" in each."""
        tables = self._tables_of(slots)
        first = tables[0] if tables else None
        if first is not None and tables.count(first) == len(tables):
            return first.infos(rows_of(slots_of([*slots])))
        return [
            {**(table.info(slot) if table is not None else {}), TRUNCATED_KEY: False}
            for slot, table in zip(slots, tables, strict=True)
        ]

    def reset_info(self, slot: int) -> dict[str, Any]:
        """Return the info of a reset on this row as far as it has columns."""
        table = self._tables[self._owner[slot]].get(self._marks[RESET][slot])
        return {} if table is None else table.info(slot)

    def _tables_of(self, slots: Iterable[int]) -> list[InfoTable | None]:
        marks, tables, owner = self._marks[STEP], self._tables, self._owner
        return [tables[owner[slot]].get(marks[slot]) for slot in slots]

    # Attributes

    def note(self, slots: Sequence[int], infos: Infos) -> None:
        """Note where the attributes of these rows are, which are being returned; those in no columns are copied."""
        self._source = None
        for slot, table, info in zip(slots, self._tables_of(slots), infos, strict=True):
            if table in self._complete:
                self._sources[slot] = table
            else:
                self._sources[slot] = {name: copy_containers(info[name]) for name in self.names if name in info}

    def note_step(self, slots: Sequence[int], infos: Infos) -> None:
        """Do the same for rows of a step, of all envs but those that are being reset; `infos` are all of its rows."""
        table = self.all_alike() if len(slots) == self._batch.n else None
        if table not in self._complete:
            self.note(slots, [infos[slot] for slot in slots])
        elif table is not self._source:
            self._source, self._sources = table, [table] * self._batch.n

    def last(self, slot: int) -> dict[str, Any]:
        """Return copies of the attributes of a slot's last row."""
        source = self._sources[slot]
        info = source.info(slot) if isinstance(source, InfoTable) else source or {}
        return {name: copy_containers(info[name]) for name in self.names if name in info}

    def stacked(self, name: str) -> NDArray[Any]:
        """Return one array of every env's last value; see `VecEnv.info_array`."""
        check_name(name)
        if name not in self.names:
            raise VecEnvError(f"{name!r} is none of info_attrs={list(self.names)}: name it when constructing")
        if self._source is not None:
            return self._source.array(name)
        rows = [self.last(slot) for slot in range(self._batch.n)]
        missing = [slot for slot, info in enumerate(rows) if name not in info]
        if missing:
            raise VecEnvError(f"no value of {name!r} yet for env {missing[0]}: reset() first")
        return stack([info[name] for info in rows])


def stack(values: list[Any]) -> NDArray[Any]:
    """Return one array of all envs' values: numbers stacked, anything else as an object array (n,)."""
    kinds = {type(value) for value in values}
    if all(kind in (bool, int, float, complex, np.ndarray) or issubclass(kind, np.generic) for kind in kinds):
        arrays = [np.asarray(value) for value in values]
        if len({(array.dtype.kind, array.shape) for array in arrays}) == 1:
            return np.array(values)
    column = np.empty(len(values), dtype=object)
    for i, value in enumerate(values):
        column[i] = value
    return column
