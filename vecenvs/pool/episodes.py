"""Keep how each slot's episode began, and the seeds and options for the next one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vecenvs.batch.batch_columns import DONE, FIRST, Allocator, BatchColumns
from vecenvs.batch.columns import SpaceColumns
from vecenvs.batch.info_batches import Columns, info_of
from vecenvs.batch.lazy_infos import LazyResetInfos
from vecenvs.pool.hosts import Hosts
from vecenvs.pool.info_columns import InfoColumns
from vecenvs.transport.protocol import Command, LastStep
from vecenvs.transport.reset_arguments import NUMBER, SEED, ResetArguments, SeedStream


class Episodes:
    """The episodes of all slots. `reset_infos` has the info of each slot's last reset, {} before the first."""

    def __init__(
        self, shards: Sequence[range], batch: BatchColumns, infos: InfoColumns, hosts: Hosts, root: int | None = None
    ) -> None:
        self.reset_infos: Any = LazyResetInfos(batch.n) if hosts.batched else [{} for _ in range(batch.n)]
        self._shards = shards
        self._hosts = hosts
        self._batch = batch
        self._infos = infos
        self._seeds: dict[int, int] = {}  # the last seed of each slot: seeds after a restart derive from it
        self._root = root  # with `episode_seeds`: slot i has the root seed root + i until it is given a seed
        self._streams: dict[int, SeedStream] = {}  # each slot's episode, as far as rows have told
        self._last_rows: SpaceColumns | None = None
        self._ended: NDArray[np.bool_] = np.zeros(batch.n, bool)  # whether that row was its episode's last one
        self._begun_before: set[int] = set()  # slots whose next first row is of a reset before `hold`
        self._held: tuple[dict[int, Any], dict[int, Any]] = ({}, {})  # seeds and options for each slot's next reset
        self._seeded: dict[int, int] = {}  # root seeds that resets under way were given: they come first
        self._given: dict[int, Any] | None = None  # options of resets under way, if they are recorded
        self.options: dict[int, Any] = {}  # with which each slot's episode began, if they are recorded

    def begin(self, slot: int, reset_info: dict[str, Any] | None = None) -> None:
        """Record an episode whose first row has come."""
        info = self._infos.reset_info(slot) if self._infos.used else {}
        if reset_info:
            info = {**reset_info, **info}
        if NUMBER in info and self._root is not None:
            root = info[SEED] if info[NUMBER] == 0 else self._seeded.get(slot, self._stream(slot).root)
            self._streams[slot] = SeedStream(root, info[NUMBER])
        if self._given is not None:
            self.options[slot] = self._options_of(slot)
            self._given.pop(slot, None)
        self._seeded.pop(slot, None)
        if slot in self._begun_before:
            self._begun_before.discard(slot)
        else:
            for held in self._held:
                held.pop(slot, None)
        info["episode_start"] = True
        self.reset_infos[slot] = info

    @property
    def nothing_changes(self) -> bool:
        """Whether an episode of a batched env that begins without an info of its own changes nothing here."""
        return self.reset_infos.nothing_changes and not (self._infos.used or self._tells)

    @property
    def _tells(self) -> bool:
        return bool(self._begun_before or any(self._held) or self._root is not None)

    def begin_all(
        self, rows: NDArray[np.int64], infos: dict[int, dict[str, Any]], columns: Callable[[], Columns] | None = None
    ) -> None:
        """Record episodes of batched envs whose first rows have come.

        `infos` has some of the resets' infos, by slot, and `columns` returns those of the others, if there are any.
        """
        if infos or self._infos.used or self._tells:
            for slot in rows.tolist():
                self.begin(slot, infos[slot] if slot in infos else info_of(columns() if columns else {}, slot))
        else:
            self.reset_infos.begin(rows, columns)

    def drop_first_rows(self, slots: Iterable[int]) -> None:
        """Note that resets of these slots have begun whose first rows will not be returned: another overtakes them."""
        for slot in slots:
            if slot in self._begun_before:
                self._begun_before.discard(slot)
                continue
            self._use_held(slot, 0)

    def _use_held(self, slot: int, number: int) -> None:
        """Note that a slot's reset has used what was held for it; the slot's last episode is of this number then."""
        seed, _ = (held.pop(slot, None) for held in self._held)
        if seed is not None and self._root is not None:
            self._streams[slot] = SeedStream(seed, number)

    def record_seeds(self, slots: Iterable[int], given: ResetArguments) -> None:
        """Record the seeds that resets get, if workers may be replaced."""
        if self._last_rows is not None:
            seeds = ((slot, given.of(slot)[0]) for slot in slots)
            self._seeds.update((slot, seed) for slot, seed in seeds if seed is not None)

    def record_streams(self, slots: Iterable[int], given: ResetArguments | None) -> None:
        """Record the root seeds that resets under way give their slots, once they succeed."""
        for slot in slots if self._root is not None else ():
            self._seeded.pop(slot, None)
            if given is not None and (seed := given.of(slot)[0]) is not None:
                self._seeded[slot] = seed

    def _stream(self, slot: int) -> SeedStream:
        return self._streams.get(slot) or SeedStream((self._root or 0) + slot, -1)

    def keep_options(self) -> None:
        """Keep, from now on, the options of each slot's episode."""
        self._given = {}

    def record_options(self, slots: Iterable[int], given: ResetArguments | None) -> None:
        """Record the options that resets get, if they are kept."""
        if self._given is not None:
            self._given.update((slot, None if given is None else given.of(slot)[1]) for slot in slots)

    def _options_of(self, slot: int) -> Any:
        """Return the options of a slot's reset that is under way, or comes next."""
        given = (self._given or {}).get(slot)
        return self._held[1].get(slot) if given is None and slot not in self._begun_before else given

    def next_reset(self, slot: int) -> tuple[int, int, Any]:
        """Return the seed, the number and the options of a slot's next episode, where resets are seeded."""
        seed = self._seeded.get(slot, self._held[0].get(slot))
        stream = self._stream(slot).after() if seed is None else SeedStream(seed, 0)
        return stream.seed(slot), stream.number, self._options_of(slot)

    def hold(self, seeds: dict[int, Any], options: dict[int, Any], ready: Collection[int]) -> None:
        """Keep the seeds and options for the next resets: a worker that is replaced before loses those it was sent.

        `ready` slots have a row that has not been returned. Where it is a first row, that episode began before.
        """
        slots, first = {*seeds, *options}, self._with_first_rows(ready)
        for slot in first - self._begun_before:
            if self._given is not None:
                self._given[slot] = self._options_of(slot)
            self._use_held(slot, -1)
        self._begun_before = (self._begun_before - slots) | (first & slots)
        for held, given in zip(self._held, (seeds, options), strict=True):
            for slot in given:  # None takes back what was kept
                held.pop(slot, None)
            held.update((slot, value) for slot, value in given.items() if value is not None)

    def keep_rows(self) -> None:
        """Keep, from now on, a copy of every slot's last returned row.

        When a worker dies, the columns may hold what it has written since.
        """
        observations = self._batch.observations
        self._last_rows = SpaceColumns(observations.layout, self._batch.n, Allocator().take)

    def record_rows(self, slots: Sequence[int] | slice) -> None:
        """Record that the rows in the columns of these slots are being returned."""
        if self._last_rows is not None:
            for last, column in zip(self._last_rows.arrays, self._batch.observations.arrays, strict=True):
                last[slots] = column[slots]
            self._ended[slots] = self._waits_for_reset(slots)

    def first_commands(
        self, worker: int, ready: Collection[int], restarts: int, handed: LastStep | None = None
    ) -> list[tuple[Command, Any]]:
        """Return the first commands of a worker that replaces another, in the `restarts`-th replacement.

        Envs that have begun an episode go through `EnvShard.resume`, with their last returned row and a new seed. Those
        of `ready` have a row that has not been returned. `handed` is the last step of a worker's only env, which
        retired.
        """
        shard = self._shards[worker]
        columns = self._batch.observations
        last = self._last_rows or columns
        first_rows = self._with_first_rows(ready)
        used = first_rows - self._begun_before  # the resets of these rows have used what was held

        def goes_on(slot: int) -> SeedStream | int | None:
            seed = self._seeded.get(slot, self._held[0].get(slot) if slot in used else None)
            stream = self._stream(slot) if seed is None else SeedStream(seed, -1)
            return self._next_seed(slot, restarts) if self._root is None else stream.after(1 + (slot in first_rows))

        def last_step(slot: int) -> LastStep:
            if slot in ready:
                return LastStep(columns.row(slot), returned=bool(self._waits_for_reset(slot)))
            return LastStep(last.row(slot), returned=bool(self._ended[slot]))

        slots = [slot for slot in shard if self.reset_infos[slot] or slot in ready]
        begun = {slot: (handed or last_step(slot), goes_on(slot)) for slot in slots}
        held = tuple({s: given[s] for s in shard if s in given and s not in used} for given in self._held)
        prepared: list[tuple[Command, Any]] = [(Command.PREPARE, held)] if any(held) else []
        return [(Command.RESUME, (begun, self._infos.forms(worker))), *prepared]

    def _waits_for_reset(self, slots: Sequence[int] | slice | int) -> Any:
        """Tell of the rows in the columns which end an episode, without the next one's first observation."""
        flags = self._batch.flags[slots]
        return ((flags & DONE) != 0) & ((flags & FIRST) == 0)

    def _with_first_rows(self, slots: Iterable[int]) -> set[int]:
        return {slot for slot in slots if self._batch.flags[slot] & FIRST}

    def _next_seed(self, slot: int, restarts: int) -> int | None:
        """Return a new seed for an env whose random generator is lost: a function of its last seed.

        The envs of a batched env get s, s + 1, ..., since not every batched env takes a list of seeds.
        """
        host = self._hosts.host_of(slot)
        first = slot if host is None or host.start not in self._seeds else host.start
        if first not in self._seeds:
            return None
        seed = int(np.random.SeedSequence([self._seeds[first], restarts]).generate_state(1)[0])
        return seed if host is None else seed // 2 + slot - first  # some envs take no more than 32 bits
