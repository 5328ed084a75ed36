"""Read `info_attrs` of a batched env, each for all of its envs at once."""

from __future__ import annotations

from typing import Any

import numpy as np

from vecenvs.batch.batch_columns import BatchColumns
from vecenvs.batch.info_batches import Columns, InfoColumn, select_rows
from vecenvs.batch.infos import RESET, STEP, InfoWriter, kind_of_all, own_value
from vecenvs.worker.hosts.batched_host import BatchedHost
from vecenvs.worker.hosts.block_writer import Mask


class BlockAttributes:
    """The attributes `names`. `store` and `store_first` return those that have no columns: they travel pickled."""

    def __init__(self, host: BatchedHost, batch: BatchColumns, slots: slice) -> None:
        self.names = batch.info_attrs
        self.host = host
        self._batch = batch
        self._slots = slots
        self.info_writer = InfoWriter(batch, slots)

    def without(self, infos: Columns) -> Columns:
        """Return infos without the keys of attributes, which have precedence."""
        return {name: column for name, column in infos.items() if name not in self.names} if self.names else infos

    def read(self) -> Columns:
        """Read the attributes as they are now."""
        return {name: InfoColumn(None, _copied(self.host.read_all(name))) for name in self.names}

    def read_new(self) -> Columns:
        """Read those of a batched env that replaces a lost one and was not reset: None for each that it has not."""
        found: Columns = {}
        for name in self.names:
            try:
                found[name] = InfoColumn(None, _copied(self.host.read_all(name)))
            except AttributeError:
                found[name] = InfoColumn(None, [None] * self.host.num_envs)
        return found

    def store(self, attributes: Columns, mask: Mask | None = None) -> Columns:
        """Write attributes that belong to a step's rows, or to first rows of the envs of `mask`."""
        if mask is None or mask.all():
            self.info_writer.clear(self._slots)
            return self._put(STEP, attributes)
        self.info_writer.clear((np.flatnonzero(mask) + self._slots.start).tolist())
        return self._put(STEP, select_rows(attributes, mask))

    def store_first(self, mask: Mask) -> Columns:
        """Read and write the attributes after a reset of the envs of `mask`."""
        self._batch.info_marks[RESET, self._slots][mask] = 0
        return self._put(RESET, select_rows(self.read(), mask))

    def _put(self, which: int, attributes: Columns) -> Columns:
        """Write the attributes that have columns; return the others."""
        left = {name: each for name, each in attributes.items() if kind_of_all(each.values) is None}
        names = tuple(name for name in attributes if name not in left)
        if not names:
            return left
        own = attributes[names[0]].rows  # all have the same
        rows = self._slots if own is None else (own + self._slots.start).tolist()
        fit = self.info_writer.write_columns(which, rows, names, [attributes[name].values for name in names])
        return left if fit else attributes


def _copied(values: Any) -> Any:
    return values.copy() if isinstance(values, np.ndarray) else list(map(own_value, values))
