"""The answers to a step of all envs, besides the rows in columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vecenvs.batch.infos import blank_info, copies, unpack_infos
from vecenvs.transport.protocol import RowExtras, RowsBody

Infos = list[dict[str, Any]]

_NOTHING = RowsBody([])


class LockStep:
    """The workers' answers to the current step, or to the last one.

    `number` is the command's number. `plain` is true if no worker has flagged a row or sent extras. `bodies` has the
    bodies of answers, by worker; `infos` the complete infos of shards in which every env has returned some.
    """

    def __init__(self, shards: Sequence[range]) -> None:
        self.number = 0
        self.plain = True
        self.bodies: dict[int, RowsBody] = {}
        self.infos: dict[int, Infos] = {}
        self._shards = shards

    def note(self, worker: int, body: RowsBody | None, *, plain: bool) -> None:
        """Keep the body of a worker's answer; None if there is none."""
        self.plain = self.plain and plain
        if body is not None:
            if body.infos is not None:
                self.note_infos(worker, body.infos)
            self.bodies[worker] = body

    def note_infos(self, worker: int, infos: Infos | bytes) -> None:
        """Keep the infos of a whole shard; from another process they are packed."""
        self.infos[worker] = infos if isinstance(infos, list) else unpack_infos(infos)

    def extras(self) -> list[RowExtras]:
        """Return the extras of all workers."""
        return [extra for body in self.bodies.values() for extra in body.extras]

    def all_infos(self) -> Infos:
        """Return every env's info, once the infos of some whole shard have come."""
        if len(self._shards) == 1:
            return self.infos[0]
        found: Infos = []
        for worker, shard in enumerate(self._shards):
            found.extend(self.infos[worker] if worker in self.infos else copies(blank_info(), len(shard)))
        return found

    def by_slot(self, worker: int) -> dict[int, RowExtras]:
        """Return one worker's extras by slot; infos of the whole shard are turned into extras."""
        found = {}
        if worker in self.infos:
            found = {s: RowExtras(s, info) for s, info in zip(self._shards[worker], self.infos[worker], strict=True)}
        for extra in self.bodies.get(worker, _NOTHING).extras:
            whole = found.get(extra.slot)
            found[extra.slot] = extra if whole is None else extra._replace(info={**extra.info, **whole.info})
        return found
