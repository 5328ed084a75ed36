"""A shard of several parts, of which at least one is a batched env; and what makes a shard of any kind."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from vecenvs.batch.batch_columns import BatchColumns, Specs
from vecenvs.batch.info_batches import joined
from vecenvs.transport.protocol import RemoteFailure, RowExtras, RowsBody, Slots, shifted
from vecenvs.transport.reset_arguments import ResetArguments
from vecenvs.worker.batched_host import BatchedHost
from vecenvs.worker.batched_shard import BatchedShard
from vecenvs.worker.env_shard import EnvShard
from vecenvs.worker.shard import Shard


def make_shard(envs: Sequence[Any], first: int, batch: BatchColumns, autoreset: str, *, remote: bool) -> Shard:
    """Return the shard of these envs and hosts of envs, of slots first, first + 1, ..."""
    if not any(isinstance(env, BatchedHost) for env in envs):
        return cast(Shard, EnvShard(envs, first, batch, autoreset, remote=remote))
    parts: list[Shard] = []
    start = first
    for batched, group in itertools.groupby(envs, lambda env: isinstance(env, BatchedHost)):
        for some in [[env] for env in group] if batched else [list(group)]:
            if batched:
                parts.append(cast(Shard, BatchedShard(some[0], start, batch, autoreset, remote=remote)))
            else:
                parts.append(cast(Shard, EnvShard(some, start, batch, autoreset, remote=remote, whole=False)))
            start += len(parts[-1].all)
    return parts[0] if len(parts) == 1 else cast(Shard, MixedShard(parts, first))


class MixedShard:
    """Shards side by side, stepped one after another."""

    def __init__(self, parts: Sequence[Shard], first: int) -> None:
        starts = list(itertools.accumulate((len(part.all) for part in parts), initial=0))
        self._parts = list(zip(itertools.pairwise(starts), parts, strict=True))
        self._first = first
        self._number = -1
        self._plain: list[bool] = []
        self.all = range(starts[-1])
        self.done: Sequence[Any] = ()
        self._starts = starts[:-1]

    @property
    def unsettled(self) -> list[int | BaseException]:
        """What has to wait until the step has been answered, of the first part that has something."""
        return next((part.unsettled for _, part in self._parts if part.unsettled), [])

    @property
    def flags(self) -> MixedShard:
        return self

    @property
    def autoreset(self) -> MixedShard:
        return self

    @property
    def some(self) -> bool:
        """Whether some row has flags."""
        return any(part.flags.some for _, part in self._parts)

    def read_actions(self) -> Sequence[Any]:
        """Return the actions of each part."""
        return [part.read_actions() for _, part in self._parts]

    def step_all(self, number: int, actions: Sequence[Any]) -> bool:
        """Step all parts; see `EnvShard.step_all`."""
        self._number, self._plain = number, []
        for (_, part), given in zip(self._parts, actions, strict=True):
            self._plain.append(part.step_all(number, given))
        return all(self._plain)

    def has_begun(self, number: int) -> bool:
        """Tell whether `step_all` was called for this command."""
        return self._number == number

    def end_step(self) -> RowsBody | None:
        """Return what there is besides the columns of the last `step_all`."""
        bodies = []
        for position, ((start, stop), part) in enumerate(self._parts):
            plain = position < len(self._plain) and self._plain[position]
            if not plain and not part.has_begun(self._number):  # an exception came before this part's turn
                part.step_all(self._number, part.read_actions())
            body = None if plain else part.end_step()
            if body is not None:
                bodies.append((start, stop, body))
        return _joined(bodies, len(self.all)) if bodies else None

    def step_some(self, some: Slots, actions: Any) -> Any:
        """Step a batched env."""
        (start, _), part = self._part_of(some[0])
        return part.step_some(shifted(some, -start), actions)

    def step_portion(self, some: Slots, actions: Any, until: float) -> Any:
        """Step single envs of one part; see `EnvShard.step_portion`."""
        (start, stop), part = self._part_of(some[0])
        view = isinstance(actions, np.ndarray)
        actions = actions[start:stop] if view else {local - start: action for local, action in actions.items()}
        return part.step_portion(shifted(some, -start), actions, until)

    def reset_some(self, some: Slots, given: ResetArguments) -> Any:
        """Reset envs of one batched env."""
        (start, _), part = self._part_of(some[0])
        return part.reset_some(shifted(some, -start), given)

    def reset_portion(self, some: Slots, given: ResetArguments, until: float) -> Any:
        """Reset single envs of one part; see `EnvShard.reset_portion`."""
        (start, _), part = self._part_of(some[0])
        return part.reset_portion(shifted(some, -start), given, until)

    def try_reset(self, local: int) -> Any:
        """Reset one env of a part that is no batched env; see `EnvShard.try_reset`."""
        (start, _), part = self._part_of(local)
        return part.try_reset(local - start)

    def first_row(self, local: int, outcome: Any) -> Any:
        """Write the first row of a single env; see `EnvShard.first_row`."""
        (start, _), part = self._part_of(local)
        return part.first_row(local - start, outcome)

    def fail(self, shard: Sequence[int], why: RemoteFailure) -> list[RowExtras]:
        """Fail envs for a reason from outside."""
        found: list[RowExtras] = []
        for (start, stop), part in self._parts:
            own = [local - start for local in shard if start <= local < stop]
            found += part.fail(own, why) if own else []
        return found

    def show_envs(self) -> list[Any]:
        """Return the envs of all parts: a copy."""
        return [env for _, part in self._parts for env in part.show_envs()]

    def open_info(self, specs: Specs) -> None:
        """Write attributes of these types to columns from now on."""
        for _, part in self._parts:
            part.open_info(specs)

    def hold(self, local: int, name: str, value: Any) -> None:
        """Keep the seed or the options of the env's next reset."""
        (start, _), part = self._part_of(local)
        part.autoreset.hold(local - start, name, value)

    def resume(self, lost: dict[int, tuple[Any, int | None]]) -> None:
        """Take over slots whose episodes ended with another worker."""
        for (start, stop), part in self._parts:
            slots = range(self._first + start, self._first + stop)
            own = {slot: each for slot, each in lost.items() if slot in slots}
            if own:
                part.autoreset.resume(own)

    def renew(self, local: int, *, begun: bool = False) -> None:
        """Take note that a function was called on the env."""
        (start, _), part = self._part_of(local)
        part.autoreset.renew(local - start, begun=begun)

    def part_of(self, local: int) -> tuple[range, bool]:
        """Return the part of an env, and whether that is one batched env."""
        bounds, part = self._part_of(local)
        return range(*bounds), part.part_of(0)[1]

    def targets(self, some: Sequence[int]) -> Sequence[Any]:
        """Return these envs, or what stands for them while one function is run on them."""
        found: dict[int, Any] = {}
        for (start, stop), part in self._parts:
            own = [local for local in some if start <= local < stop]
            if own:
                found.update(zip(own, part.targets([local - start for local in own]), strict=True))
        return [found[local] for local in some]

    def owned(self) -> dict[int, Any]:
        """Return what has to be closed, by the env that it belongs to."""
        return {start + local: env for (start, _), part in self._parts for local, env in part.owned().items()}

    def _part_of(self, local: int) -> tuple[tuple[int, int], Any]:
        return self._parts[bisect.bisect_right(self._starts, local) - 1]


def _joined(bodies: list[tuple[int, int, RowsBody]], total: int) -> RowsBody:
    """Return the body of a shard, of the bodies of its parts."""
    extras = [extra for _, _, body in bodies for extra in body.extras]
    objects = None
    if any(body.objects is not None for _, _, body in bodies):
        leaves = zip(*(body.objects or [] for _, _, body in bodies), strict=True)
        objects = [np.concatenate(leaf) for leaf in leaves]
    columns = None
    if any(body.columns is not None for _, _, body in bodies):
        columns = tuple(
            joined([(a, b - a, body.columns[k]) for a, b, body in bodies if body.columns is not None], total)
            for k in (0, 1)
        )
    return RowsBody(extras, objects, columns=columns)
