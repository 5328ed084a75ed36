"""Which rows of a command travel together, so that neither every row costs a message nor one row waits for another."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter as clock
from typing import Any

from vecenvs.batch.batch_columns import BatchColumns
from vecenvs.transport.protocol import Command, Slots, rows_of, shifted
from vecenvs.transport.reset_arguments import ResetArguments
from vecenvs.worker.shard import Shard

_STEP_SOME, _RESET = int(Command.STEP_SOME), int(Command.RESET)  # plain ints compare faster
TOGETHER = 2e-4  # seconds; rows that are done within this time of each other travel together


class Portions:
    """Knows which envs are slow. An env that is goes alone as long as it is, so other rows do not wait for it.

    A portion ends with the env at whose end it has taken TOGETHER. So if it took twice as long, that env is slow.
    """

    def __init__(self) -> None:
        self._slow: set[int] = set()

    def before_slow(self, some: Slots) -> Slots:
        """Return those of these envs that come before the first slow one; that one alone if it is the first."""
        if self._slow:
            for position, local in enumerate(some):
                if local in self._slow:
                    return some[: position or 1]
        return some

    def measured(self, last: int, seconds: float) -> None:
        """Record how long a portion took, of which this env was the last one."""
        if seconds > 2 * TOGETHER:
            self._slow.add(last)
        elif self._slow:
            self._slow.discard(last)


class SubsetRunner:
    """Steps or resets some envs of a shard, whose first slot is `first`, a portion at a time.

    `drop_resets` is called with the envs that a command resets: their async resets are overtaken.
    """

    def __init__(self, env_shard: Shard, first: int, batch: BatchColumns, drop_resets: Callable[[Slots], None]) -> None:
        self._env_shard = env_shard
        self._first = first
        self._actions = batch.actions
        self._given_actions = batch.actions.shard(first, len(env_shard.all))
        self._drop_resets = drop_resets
        self._portions = {_STEP_SOME: Portions(), _RESET: Portions()}

    def carry_out(self, kind: int, left: Slots, given: ResetArguments) -> tuple[int, Any]:
        """Step or reset the first of these slots; return how many, and what their rows have besides columns."""
        env_shard, some = self._env_shard, shifted(left, -self._first)
        part, batched = env_shard.part_of(some[0])
        if len(part) < len(env_shard.all):
            some = some[: next((k for k, local in enumerate(some) if local not in part), len(some))]
        if kind == _RESET:
            self._drop_resets(some)
        if batched:  # these go together
            body = env_shard.reset_some(some, given) if kind == _RESET else env_shard.step_some(some, None)
            return len(some), body
        portions = self._portions[kind]
        some = portions.before_slow(some)
        start = clock()
        if kind == _RESET:
            count, body = env_shard.reset_portion(some, given, start + TOGETHER)
        else:
            actions = self._actions_of(left[: len(some)])
            count, body = env_shard.step_portion(some, actions, start + TOGETHER)
        portions.measured(some[count - 1], clock() - start)
        return count, body

    def _actions_of(self, slots: Slots) -> Any:
        """Return these slots' actions as `step_envs` takes them."""
        if self._given_actions.view is not None:
            return self._given_actions.view
        rows = self._actions.rows_at(rows_of(slots), len(slots))
        return dict(zip(shifted(slots, -self._first), rows, strict=True))
