"""What the workers answer to a step of all envs, besides the columns."""

from __future__ import annotations

from collections.abc import Sequence

from vecenvs.transport.protocol import RowExtras, RowsBody

_NOTHING = RowsBody([])


class StepAnswers:
    """The answers to the step that is under way, or to the last one.

    `number` is the number of its command. `plain` tells whether no worker has flagged a row or sent extras. By worker,
    `bodies` has what came besides columns.
    """

    def __init__(self, shards: Sequence[range]) -> None:
        self.number = 0
        self.plain = True
        self.bodies: dict[int, RowsBody] = {}
        self._shards = shards

    def add(self, worker: int, body: RowsBody | None, *, plain: bool) -> None:
        """Add what came with a shard's rows."""
        self.plain = self.plain and plain
        if body is not None:
            self.bodies[worker] = body

    def shard(self, worker: int) -> range:
        """Return the slots of a worker."""
        return self._shards[worker]

    def extras(self) -> list[RowExtras]:
        """Return the extras of all workers."""
        return [extra for body in self.bodies.values() for extra in body.extras]

    def by_slot(self, worker: int) -> dict[int, RowExtras]:
        """Return what one worker has sent as extras, by slot."""
        shard, body = self._shards[worker], self.bodies.get(worker, _NOTHING)
        found = {slot: RowExtras(slot, info) for slot, info in zip(shard, body.infos or (), strict=False)}
        for extra in body.spread(shard.start, range(len(shard))).extras:
            whole = found.get(extra.slot)
            found[extra.slot] = extra if whole is None else extra._replace(info={**extra.info, **whole.info})
        return found
