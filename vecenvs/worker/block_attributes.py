"""Read `info_attrs` of a batched env, each for all of its envs at once."""

from __future__ import annotations

from typing import Any

import numpy as np

from vecenvs.batch.batch_columns import BatchColumns
from vecenvs.batch.info_batches import Columns, InfoColumn, parts
from vecenvs.batch.values import copy_containers
from vecenvs.worker.batched_host import BatchedHost
from vecenvs.worker.block_writer import BlockWriter, Mask


class BlockAttributes:
    """The attributes `names`. `store` and `store_first` return those that have no columns."""

    def __init__(self, host: BatchedHost, batch: BatchColumns, writer: BlockWriter) -> None:
        self.names = batch.info_attrs
        self._host = host
        self._batch = batch
        self._writer = writer

    def without(self, infos: Columns) -> Columns:
        """Return infos without the keys of attributes, which have precedence."""
        return {name: column for name, column in infos.items() if name not in self.names} if self.names else infos

    def read(self) -> Columns:
        """Read the attributes as they are now."""
        return {name: InfoColumn(None, _copied(self._host.read_all(name))) for name in self.names}

    def store(self, attributes: Columns) -> Columns:
        """Write attributes that belong to a step's rows."""
        return self._writer.put(self._batch.info, attributes)

    def store_first(self, mask: Mask) -> Columns:
        """Read and write the attributes after a reset of the envs of `mask`."""
        return parts(self._writer.put(self._batch.first_info, self.read(), mask), mask)


def _copied(values: Any) -> Any:
    return values.copy() if isinstance(values, np.ndarray) else [copy_containers(value) for value in values]
