"""Write the rows of a shard, their infos and their failures: what `hosts/block_writer` is for a batched env."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vecenvs._native.twin import number_of
from vecenvs.batch.batch_columns import BatchColumns
from vecenvs.batch.infos import RESET, STEP, InfoWriter, completed
from vecenvs.batch.values import copy_containers, shown
from vecenvs.transport.protocol import RemoteFailure, RowExtras, Slots, rows_of, shifted
from vecenvs.worker.autoreset import FAILED, Autoreset, RowFlags
from vecenvs.worker.info_reader import InfoReader
from vecenvs.worker.old_gym import remedy


class RowWriter:
    """Writes rows of the envs of an `EnvShard`, the slots first, first + 1, ..."""

    def __init__(
        self,
        envs: Sequence[Any],
        first: int,
        batch: BatchColumns,
        autoreset: Autoreset,
        flags: RowFlags,
        deferred: list[int | BaseException],
        reader: InfoReader | None,
        *,
        remote: bool,
    ) -> None:
        self._envs = envs
        self._first = first
        self._batch = batch
        self._autoreset = autoreset
        self._flags = flags
        self._deferred = deferred
        self._reader = reader
        self._remote = remote
        self._rewards: Any = batch.rewards[first : first + len(envs)].data
        self._slots = slice(first, first + len(envs))
        self.info_writer = InfoWriter(batch, self._slots)

    def write_rewards(self, shard: Sequence[int], rewards: list[Any], extras: list[RowExtras]) -> None:
        """Write rewards of which some are not plain numbers."""
        for local, reward in zip(shard, rewards, strict=True):
            try:
                self._rewards[local] = number_of(reward)
            except Exception as exc:
                self._rewards[local] = 0.0
                self.fail(local, f"step (its reward is {shown(reward)})", exc, extras)

    def write_first_row(self, local: int, obs: Any, info: dict[str, Any], extras: list[RowExtras]) -> None:
        """Write the observation of an async reset; its info travels pickled.

        This is done in a thread, whose rows are not in order with those that report new forms of infos.
        """
        slot = self._first + local
        try:
            self._batch.observations.store_row(slot, obs)
            self.info_writer.clear([slot])
            if info:
                extras.append(RowExtras(slot, copy_containers(info), info))
        except Exception as exc:
            self.fail(local, "reset", exc, extras)

    def write_infos(
        self,
        shard: Slots,
        infos: list[tuple[int, dict[str, Any]]],
        doing: str,
        extras: list[RowExtras],
        *,
        together: bool,
    ) -> list[dict[str, Any]] | None:
        """Write the infos of these envs' rows, and of their resets: to columns, or else to `extras`.

        Return those of rows instead if they may travel `together`, each env has one and all stay in this process.
        """
        reader, resets, direct = self._reader, self._autoreset.reset_infos, self._reader is None and not self._remote
        whole = None
        if together and direct and len(infos) == len(self._envs):
            whole, infos = completed([info for _, info in infos]), []
        gone = {extra.slot - self._first for extra in extras if extra.failure is not None} if extras else ()
        if gone:
            shard = [local for local in shard if local not in gone]
        names: tuple[str, ...] = ()
        columns: list[list[Any]] = []
        collected = None
        if reader is not None:
            names, collected = reader.names, reader.collect(shard)
            shard, columns = collected.shard, collected.columns
            for local, error in collected.failed:
                self.fail(local, doing, error, extras)
            infos = [(local, reader.without(info)) for local, info in infos] if infos else infos
        given = dict(infos) if infos else {}
        own = [given.get(local, {}) for local in shard] if given else []
        if direct:
            extras += [RowExtras(self._first + local, info) for local, info in infos if local not in gone]
        elif shard:
            whole_shard = together and len(shard) == len(self._envs)
            rows = self._slots if whole_shard else rows_of(shifted(shard, self._first))
            left = self.info_writer.write(STEP, rows, own, names, columns)
            extras += [RowExtras(slot, info) for slot, info in left]
        if collected is not None and collected.begun:
            self._write_resets(collected.begun, extras, names, collected.first)
        if resets:
            self._write_resets([local for local in shard if local in resets], extras)
        return whole

    def _write_resets(
        self,
        begun: list[int],
        extras: list[RowExtras],
        names: tuple[str, ...] = (),
        columns: Sequence[Sequence[Any]] = (),
    ) -> None:
        resets = self._autoreset.reset_infos
        infos = [resets.pop(local, {}) for local in begun] if resets else []
        slots = [self._first + local for local in begun]
        if self._remote or self._reader is not None:
            left = self.info_writer.write(RESET, slots, infos, names, columns)
        else:
            left = [*zip(slots, infos, strict=True)]
        found = {extra.slot: position for position, extra in enumerate(extras)} if left else {}
        for slot, info in left:
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
        errors = self._autoreset.errors
        advice = (errors is not None and errors.spent(local)) or remedy(self._envs[local], exc)
        return RemoteFailure.capture(self._first + local, doing, exc, portable=self._remote, remedy=advice)

    def _note_failure(self, local: int, failure: RemoteFailure, extras: list[RowExtras]) -> None:
        slot = self._first + local
        self._autoreset.refuse(local, FAILED)
        self._autoreset.reset_infos.pop(local, None)
        if self._reader is not None:
            self._reader.forget(local)
        extras[:] = [extra for extra in extras if extra.slot != slot]
        if local in self._deferred:
            self._deferred.remove(local)
        extras.append(RowExtras(slot, {}, None, failure))
        self._flags.set(local, 0)

    def fail_all(self, shard: Sequence[int], why: RemoteFailure) -> list[RowExtras]:
        """Fail all of these envs for a reason that is not known to be one env's; return the extras that say so."""
        self.info_writer.report_again()  # the caller may have been unable to read the last report
        extras: list[RowExtras] = []
        for local in shard:
            self._note_failure(local, why._replace(slot=self._first + local), extras)
        return extras
