"""Put the values of `info_attrs` into infos, and into one array for all envs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from numpy.typing import NDArray

from vecenvs.batch.attribute_columns import PYTHON_TYPES, specs_of, stack
from vecenvs.batch.batch_columns import BatchColumns, Specs
from vecenvs.batch.infos import TRUNCATED_KEY, blank_info, copies, fill_in
from vecenvs.batch.lazy_infos import Infos
from vecenvs.batch.values import copy_containers
from vecenvs.env_calls import check_name
from vecenvs.errors import VecEnvError


class InfoColumns:
    """The last values of the attributes: in the batch's columns, or as they came with a row's info if they do not fit.

    `specs` are the types of the columns, None while there are no columns.
    """

    def __init__(self, names: Sequence[str], batch: BatchColumns) -> None:
        self.names = tuple(names)
        self.specs: Specs | None = None
        self.closed = bool(names)  # whether there are attributes, and some worker may have no columns for them yet
        self.whole = False  # whether there are attributes, each with a column
        self._batch = batch
        self._odd: dict[str, dict[int, Any]] = {name: {} for name in names}
        self.blank: Callable[[], Any] = partial(copies, blank_info(), batch.n)  # makes an info for each env
        self._infos_of: Callable[[list[Any]], list[dict[str, Any]]]  # set with `whole`
        self._first_cells: list[tuple[str, memoryview]] = []  # reading an item is faster than with numpy
        self._first_rows: list[tuple[str, NDArray[Any]]] = []

    def open(self, reset_infos: Sequence[dict[str, Any]]) -> Specs:
        """Make columns for the attributes that are numeric in every env's reset info; return their types.

        Repeatable. Workers that have not been told these types yet send the values with their rows.
        """
        specs = self.specs or specs_of(self._odd, reset_infos)
        self._batch.open_info(specs)
        if len(specs) == len(self._odd):
            self._infos_of, self.whole = _infos_of(specs), True
        first_cells, first_rows = [], []
        for name, column in self._batch.first_info.items():
            if column.ndim == 1 and column.dtype in PYTHON_TYPES:
                first_cells.append((name, column.data))
            else:
                first_rows.append((name, column))
        self._first_cells, self._first_rows = first_cells, first_rows
        self.specs = specs  # last, as a worker that replaces another is told these
        return specs

    def first(self, slot: int) -> dict[str, Any]:
        """Return the values after the slot's last reset, as far as they have columns."""
        found = {name: cells[slot] for name, cells in self._first_cells}
        for name, rows in self._first_rows:
            found[name] = rows[slot].copy() if rows.ndim > 1 else rows[slot]
        return found

    def filled(self) -> list[dict[str, Any]]:
        """Return the infos of all rows of a step, if every value is in its column: see `whole`."""
        for odd in self._odd.values():
            odd.clear()
        return self._infos_of([_items(column) for column in self._batch.info.values()])

    def copied(self) -> dict[str, NDArray[Any]]:
        """Return copies of the columns of all rows of a step, if every value is in its column: see `whole`."""
        for odd in self._odd.values():
            odd.clear()
        return {name: column.copy() for name, column in self._batch.info.items()}

    def fill(self, slots: Sequence[int], infos: Infos) -> None:
        """Add the columns' values to the infos of these slots' rows; keep the values that came with the rows.

        Every info has the key "TimeLimit.truncated" already; an info without other keys came without values. `slots` is
        a range if and only if it is all of them.
        """
        more = [j for j, info in enumerate(infos) if len(info) > 1]
        for name, odd in self._odd.items():
            column = self._batch.info.get(name)
            if odd:
                for slot in slots:
                    odd.pop(slot, None)
            if column is None:
                odd.update((slot, copy_containers(info[name])) for slot, info in zip(slots, infos, strict=True))
                continue
            rows = column if isinstance(slots, range) else column[list(slots)]
            values = _items(rows)
            for j in more:
                if name in infos[j]:
                    values[j] = infos[j][name]
                    odd[slots[j]] = copy_containers(values[j])
            fill_in(infos, name, values)

    def keep(self, slot: int, info: dict[str, Any]) -> None:
        """Keep a row's values: its columns may be overwritten before the next row."""
        for name, odd in self._odd.items():
            odd[slot] = copy_containers(info[name])

    def kept(self, slot: int) -> dict[str, Any]:
        """Return copies of the values that `keep` was given for the slot."""
        return {name: copy_containers(odd[slot]) for name, odd in self._odd.items()}

    def stacked(self, name: str) -> NDArray[Any]:
        """Return one array of every env's last value; see `VecEnv.info_array`."""
        check_name(name)
        if name not in self._odd:
            raise VecEnvError(f"{name!r} is none of info_attrs={list(self._odd)}: name it when constructing")
        column, odd = self._batch.info.get(name), self._odd[name]
        if column is not None and not odd:
            return column.copy()
        missing = [slot for slot in range(self._batch.n) if column is None and slot not in odd]
        if missing:
            raise VecEnvError(f"no value of {name!r} yet for env {missing[0]}: reset() first")
        values = dict(enumerate(() if column is None else _items(column))) | odd
        return stack([copy_containers(values[slot]) for slot in range(self._batch.n)])


def _items(column: NDArray[Any]) -> list[Any]:
    """Return a column's values: numbers as Python's own where these are the same."""
    return column.tolist() if column.dtype in PYTHON_TYPES and column.ndim == 1 else list(column.copy())


def _infos_of(names: Iterable[str]) -> Callable[[list[Any]], list[dict[str, Any]]]:
    """Make a function which returns the info of each row, of the values of these names by name and row.

    Dicts whose keys stand in code take two thirds of the time of copies which are filled name by name.
    """
    given = [f"value_{k}" for k, _ in enumerate(names)]
    items = ", ".join(f"{name!r}: {value}" for name, value in zip(names, given, strict=True))
    code = f"lambda columns: [{{{items}, {TRUNCATED_KEY!r}: False}} for ({', '.join(given)},) in zip(*columns)]"
    found: Callable[[list[Any]], list[dict[str, Any]]] = eval(code)  # noqa: S307
    return found
