"""What the workers answer to a step of all envs, besides the columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vecenvs.batch.infos import blank_info, copies, unpack_infos
from vecenvs.transport.protocol import RowExtras, RowsBody

Infos = list[dict[str, Any]]

_NOTHING = RowsBody([])


class StepAnswers:
    """The answers to the step that is under way, or to the last one.

    `number` is the number of its command. `plain` tells whether no worker has flagged a row or sent extras. By worker,
    `bodies` has what came besides columns, and `infos` the complete infos of shards in which every env gave some.
    """

    def __init__(self, shards: Sequence[range]) -> None:
        self.number = 0
        self.plain = True
        self.bodies: dict[int, RowsBody] = {}
        self.infos: dict[int, Infos] = {}
        self._shards = shards

    def add(self, worker: int, body: RowsBody | None, *, plain: bool) -> None:
        """Add what came with a shard's rows."""
        self.plain = self.plain and plain
        if body is not None:
            if body.infos is not None:
                self.add_infos(worker, body.infos)
            self.bodies[worker] = body

    def add_infos(self, worker: int, infos: Infos | bytes) -> None:
        """Add the infos of a whole shard, which are packed unless they come from this process."""
        self.infos[worker] = infos if isinstance(infos, list) else unpack_infos(infos)

    def extras(self) -> list[RowExtras]:
        """Return the extras of all workers."""
        return [extra for body in self.bodies.values() for extra in body.extras]

    def all_infos(self) -> Infos:
        """Return an info for every env: those of whole shards as they came, new ones for the others."""
        if len(self._shards) == 1:
            return self.infos[0]
        found: Infos = []
        for worker, shard in enumerate(self._shards):
            found.extend(self.infos[worker] if worker in self.infos else copies(blank_info(), len(shard)))
        return found

    def by_slot(self, worker: int) -> dict[int, RowExtras]:
        """Return what one worker has sent as extras, by slot."""
        found = {}
        if worker in self.infos:
            found = {s: RowExtras(s, info) for s, info in zip(self._shards[worker], self.infos[worker], strict=True)}
        for extra in self.bodies.get(worker, _NOTHING).extras:
            whole = found.get(extra.slot)
            found[extra.slot] = extra if whole is None else extra._replace(info={**extra.info, **whole.info})
        return found
