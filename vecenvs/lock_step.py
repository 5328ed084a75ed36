"""What comes of a step of all envs besides the columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from vecenvs.infos import Announced, InfoUnpacker, blank_info, copies
from vecenvs.protocol import Extra, RowBody

Infos = list[dict[str, Any]]


class LockStep:
    """Of the step that is under way, or was last: what the workers that have answered said.

    `plain` tells whether none of them has flagged a row or sent extras. `infos` has, by worker, the complete infos of
    whole shards, where there are some; the others' infos are blank but for `extras`.
    """

    def __init__(self, shards: Sequence[range]) -> None:
        self.plain = True
        self.extras: list[Extra] = []
        self.infos: dict[int, Infos] = {}
        self._shards = shards
        self._unpackers = [InfoUnpacker() for _ in shards]

    def note(self, worker: int, body: RowBody, *, plain: bool) -> None:
        """Keep what came with a shard's rows. If a signal's handler raises here, no extras have been kept yet."""
        self.plain = self.plain and plain
        if body.infos is not None:
            self.note_infos(worker, body.infos)
        self.extras += body.extras

    def note_infos(self, worker: int, infos: Infos | bytes | Announced) -> None:
        """Keep the infos of a whole shard, packed unless it is in this process."""
        self.infos[worker] = infos if isinstance(infos, list) else self._unpackers[worker].unpack(infos)

    def renew(self, worker: int) -> None:
        """Another process takes a worker's place, and packs its infos as it likes."""
        self._unpackers[worker] = InfoUnpacker()

    def take_extras(self) -> list[Extra]:
        """Hand out the extras."""
        extras, self.extras = self.extras, []
        return extras

    def all_infos(self) -> Infos:
        """Give every env's info, where those of some whole shards have come: those themselves."""
        if len(self._shards) == 1:
            return self.infos[0]
        found: Infos = []
        for worker, shard in enumerate(self._shards):
            found.extend(self.infos[worker] if worker in self.infos else copies(blank_info(), len(shard)))
        return found

    def by_slot(self, extras: Iterable[Extra]) -> dict[int, Extra]:
        """Give these extras, and the infos of whole shards as such, by slot."""
        found = {
            slot: Extra(slot, info)
            for worker, infos in self.infos.items()
            for slot, info in zip(self._shards[worker], infos, strict=True)
        }
        for extra in extras:
            whole = found.get(extra.slot)
            found[extra.slot] = extra if whole is None else extra._replace(info={**extra.info, **whole.info})
        return found
