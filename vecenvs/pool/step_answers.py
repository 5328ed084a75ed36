"""What the workers answer to a step of all envs, besides the columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vecenvs.batch.batch_columns import BatchColumns
from vecenvs.batch.infos import InfoForm, InfoTable, blank_info, copies
from vecenvs.transport.protocol import RowExtras, RowsBody

Infos = list[dict[str, Any]]

_NOTHING = RowsBody([])


class StepAnswers:
    """The answers to the step that is under way, or to the last one.

    `number` is the number of its command. `plain` tells whether no worker has flagged a row or sent extras. By worker,
    `bodies` has what came besides columns, and `infos` the complete infos of shards in which every env gave some: None
    if they lie in columns.
    """

    def __init__(self, shards: Sequence[range], batch: BatchColumns) -> None:
        self.number = 0
        self.plain = True
        self.bodies: dict[int, RowsBody] = {}
        self.infos: dict[int, Infos | None] = {}
        self._shards = shards
        self._batch = batch
        self._tables: dict[int, InfoTable] = {}  # by worker: its columns of infos
        self._whole: InfoTable | None = None  # the columns of all workers, if they have the same

    def add(self, worker: int, body: RowsBody | None, *, plain: bool) -> None:
        """Add what came with a shard's rows."""
        self.plain = self.plain and plain
        if body is not None:
            if body.infos:
                self.add_infos(worker, body.infos)
            self.bodies[worker] = body

    def add_infos(self, worker: int, infos: Infos | InfoForm | bool) -> None:
        """Add the infos of a whole shard: see `RowsBody.infos`."""
        if isinstance(infos, InfoForm):
            self._open(worker, infos)
        self.infos[worker] = infos if isinstance(infos, list) else None

    def _open(self, worker: int, form: InfoForm) -> None:
        shard = self._shards[worker]
        self._tables[worker] = InfoTable(self._batch, form, slice(shard.start, shard.stop))
        alike = len(self._tables) == len(self._shards) and all(each.form == form for each in self._tables.values())
        self._whole = InfoTable(self._batch, form, slice(None)) if alike else None

    def shard(self, worker: int) -> range:
        """Return the slots of a worker."""
        return self._shards[worker]

    def extras(self) -> list[RowExtras]:
        """Return the extras of all workers."""
        return [extra for body in self.bodies.values() for extra in body.extras]

    def all_infos(self) -> Infos:
        """Return an info for every env: those of whole shards as they came, new ones for the others."""
        if self._whole is not None and len(self.infos) == len(self._shards):
            return self._whole.infos()
        found: Infos = []
        for worker, shard in enumerate(self._shards):
            found.extend(self.infos_of(worker) if worker in self.infos else copies(blank_info(), len(shard)))
        return found

    def infos_of(self, worker: int) -> Infos:
        """Return the infos of a whole shard, one of those in `infos`."""
        infos = self.infos[worker]
        return self._tables[worker].infos() if infos is None else infos

    def by_slot(self, worker: int) -> dict[int, RowExtras]:
        """Return what one worker has sent as extras, by slot."""
        found = {}
        if worker in self.infos:
            infos = self.infos_of(worker)
            found = {slot: RowExtras(slot, info) for slot, info in zip(self._shards[worker], infos, strict=True)}
        shard = self._shards[worker]
        for extra in self.bodies.get(worker, _NOTHING).spread(shard.start, range(len(shard))).extras:
            whole = found.get(extra.slot)
            found[extra.slot] = extra if whole is None else extra._replace(info={**extra.info, **whole.info})
        return found
