"""Read `info_attrs` of a batched env, each for all of its envs at once."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vecenvs.batch.attribute_columns import AttributeColumn
from vecenvs.batch.batch_columns import BatchColumns
from vecenvs.batch.info_batches import Columns, InfoColumn, parts
from vecenvs.batch.values import copy_containers
from vecenvs.worker.hosts.batched_host import BatchedHost
from vecenvs.worker.hosts.block_writer import Mask


class BlockAttributes:
    """The attributes `names`. `store` and `store_first` return those that no column holds: they travel in the infos."""

    def __init__(self, host: BatchedHost, batch: BatchColumns, slots: slice) -> None:
        self.names = batch.info_attrs
        self._host = host
        self._batch = batch
        self._slots = slots

    def without(self, infos: Columns) -> Columns:
        """Return infos without the keys of attributes, which have precedence."""
        return {name: column for name, column in infos.items() if name not in self.names} if self.names else infos

    def read(self) -> Columns:
        """Read the attributes as they are now."""
        return {name: InfoColumn(None, _copied(self._host.read_all(name))) for name in self.names}

    def read_new(self) -> Columns:
        """Read those of a batched env that replaces a lost one and was not reset: None for each that it has not."""
        found: Columns = {}
        for name in self.names:
            try:
                found[name] = InfoColumn(None, _copied(self._host.read_all(name)))
            except AttributeError:
                found[name] = InfoColumn(None, [None] * self._host.num_envs)
        return found

    def store(self, attributes: Columns) -> Columns:
        """Write attributes that belong to a step's rows."""
        return self._put(self._batch.info, attributes)

    def store_first(self, mask: Mask) -> Columns:
        """Read and write the attributes after a reset of the envs of `mask`."""
        return self._put(self._batch.first_info, parts(self.read(), mask))

    def _put(self, columns: dict[str, NDArray[Any]], attributes: Columns) -> Columns:
        left: Columns = {}
        first, stop = self._slots.start, self._slots.stop
        for name, column in attributes.items():
            slots = range(first, stop) if column.rows is None else column.rows + first
            if name not in columns or not AttributeColumn(columns[name], self._slots).put_all(slots, column.values):
                left[name] = column
        return left


def _copied(values: Any) -> Any:
    return values.copy() if isinstance(values, np.ndarray) else [copy_containers(value) for value in values]
