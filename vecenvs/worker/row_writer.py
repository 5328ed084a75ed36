"""Write the rows of a shard, their infos and their failures: what `hosts/block_writer` is for a batched env."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vecenvs._native.twin import number_of
from vecenvs.batch.batch_columns import BatchColumns
from vecenvs.batch.infos import InfoForm, InfoWriter, completed
from vecenvs.batch.values import shown
from vecenvs.transport.protocol import RemoteFailure, RowExtras, Slots
from vecenvs.worker.autoreset import Autoreset, RowFlags
from vecenvs.worker.info_reader import InfoReader
from vecenvs.worker.old_gym import remedy

Infos = list[dict[str, Any]] | InfoForm | bool  # see `RowsBody.infos`


class RowWriter:
    """Writes rows of the envs of an `EnvShard`, the slots first, first + 1, ..."""

    def __init__(
        self,
        envs: Sequence[Any],
        first: int,
        batch: BatchColumns,
        autoreset: Autoreset,
        flags: RowFlags,
        unsettled: list[int | BaseException],
        reader: InfoReader | None,
        *,
        remote: bool,
    ) -> None:
        self._envs = envs
        self._first = first
        self._batch = batch
        self._autoreset = autoreset
        self._flags = flags
        self._unsettled = unsettled
        self._reader = reader
        self._remote = remote
        self._rewards: Any = batch.rewards[first : first + len(envs)].data
        self._info_writer = InfoWriter(batch, slice(first, first + len(envs)))

    def write_rewards(self, shard: Sequence[int], rewards: list[Any], extras: list[RowExtras]) -> None:
        """Write rewards of which some are not plain numbers."""
        for local, reward in zip(shard, rewards, strict=True):
            try:
                self._rewards[local] = number_of(reward)
            except Exception as exc:
                self._rewards[local] = 0.0
                self.fail(local, f"step (its reward is {shown(reward)})", exc, extras)

    def write_first_row(self, local: int, obs: Any, info: dict[str, Any], extras: list[RowExtras]) -> None:
        """Write the observation and the info of a reset."""
        slot = self._first + local
        try:
            self._batch.observations.store_row(slot, obs)
            if info:
                extras.append(RowExtras(slot, self._autoreset.row_info(info), info))
            if self._batch.info and self._reader is not None:
                self._reader.collect([local], extras, {})
        except Exception as exc:
            self.fail(local, "reset", exc, extras)

    def take_infos(self, infos: list[tuple[int, dict[str, Any]]], extras: list[RowExtras], *, together: bool) -> Infos:
        """Return `RowsBody.infos` if every env has an info and they can travel together; else add them to `extras`."""
        if together and len(infos) == len(self._envs):
            own = [info for _, info in infos]
            if self._reader is not None:
                own = list(map(self._reader.without, own))
            if all(own):
                whole = self._info_writer.write(own) if self._remote else completed(own)
                if whole:
                    return whole
        failed = {extra.slot - self._first for extra in extras if extra.failure is not None}
        for local, info in infos:
            if local not in failed:
                own_info = info if self._reader is None else self._reader.without(info)
                extras.append(RowExtras(self._first + local, own_info))
        return False

    def add_reset_infos(self, shard: Slots, extras: list[RowExtras]) -> None:
        """Add the infos of these envs' resets to the extras of their rows."""
        found = {extra.slot: position for position, extra in enumerate(extras)}
        for local in shard:
            info = self._autoreset.reset_infos.pop(local, None)
            if info is None:
                continue
            slot = self._first + local
            if slot in found:
                extras[found[slot]] = extras[found[slot]]._replace(reset_info=info)
            else:
                extras.append(RowExtras(slot, {}, info))

    def fail(self, local: int, doing: str, exc: BaseException, extras: list[RowExtras]) -> None:
        """Note an exception."""
        self._note_failure(local, self.capture(local, doing, exc), extras)
        if doing == "reset":
            self._autoreset.refuse(local, "failed in reset")

    def capture(self, local: int, doing: str, exc: BaseException) -> RemoteFailure:
        """Return the failure that an exception of the env is, with a remedy where one is known."""
        advice = remedy(self._envs[local], exc)
        return RemoteFailure.capture(self._first + local, doing, exc, portable=self._remote, remedy=advice)

    def _note_failure(self, local: int, failure: RemoteFailure, extras: list[RowExtras]) -> None:
        slot = self._first + local
        self._autoreset.refuse(local, "failed before")
        self._autoreset.reset_infos.pop(local, None)
        extras[:] = [extra for extra in extras if extra.slot != slot]
        if local in self._unsettled:
            self._unsettled.remove(local)
        extras.append(RowExtras(slot, {}, None, failure))
        self._flags.set(local, 0)

    def fail_all(self, shard: Sequence[int], why: RemoteFailure) -> list[RowExtras]:
        """Fail all of these envs for a reason that is not known to be one env's; return the extras that say so."""
        self._info_writer.report_again()  # the caller may have been unable to read the last report
        extras: list[RowExtras] = []
        for local in shard:
            self._note_failure(local, why._replace(slot=self._first + local), extras)
        return extras
