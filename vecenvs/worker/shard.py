"""What a worker needs of its shard, whichever kind of envs that has: see `EnvShard` for the meaning of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from vecenvs.batch.batch_columns import Specs
from vecenvs.transport.protocol import RemoteFailure, RowExtras, RowsBody, Slots
from vecenvs.transport.reset_arguments import ResetArguments


class Flags(Protocol):
    """Tells whether some row of the shard has flags."""

    @property
    def some(self) -> bool: ...


class Episodes(Protocol):
    """What commands say about the next episodes."""

    def hold(self, local: int, name: str, value: Any) -> None:
        """Keep the "seed" or the "options" of the env's next reset; None takes back what was kept."""

    def resume(self, lost: dict[int, tuple[Any, int | None]]) -> None:
        """Take over slots whose episodes ended with another worker."""

    def renew(self, local: int, *, begun: bool = False) -> None:
        """Take note that a function was called on the env; with `begun`, one that counts as a reset."""


class Shard(Protocol):
    """The envs of one worker, and how their rows are written: `EnvShard`, `BatchedShard` or `MixedShard`.

    A subset is carried out part by part. `part_of` returns the part of an env, and whether that is one batched env:
    `step_some` and `reset_some` are for these, `step_portion`, `reset_portion`, `try_reset` and `first_row` for all
    others.
    """

    all: range

    @property
    def unsettled(self) -> list[int | BaseException]: ...

    @property
    def flags(self) -> Flags: ...

    @property
    def autoreset(self) -> Episodes: ...

    done: Sequence[Any]

    @property
    def read_actions(self) -> Callable[[], Sequence[Any]]: ...

    def part_of(self, local: int) -> tuple[range, bool]: ...

    def targets(self, some: Sequence[int]) -> Sequence[Any]: ...

    def owned(self) -> dict[int, Any]: ...

    def step_all(self, number: int, actions: Sequence[Any]) -> bool: ...

    def has_begun(self, number: int) -> bool: ...

    def end_step(self) -> Any: ...

    def step_some(self, some: Slots, actions: Any) -> Any: ...

    def step_portion(self, some: Slots, actions: Any, until: float) -> tuple[int, Any]: ...

    def reset_some(self, some: Slots, given: ResetArguments) -> RowsBody | None: ...

    def reset_portion(self, some: Slots, given: ResetArguments, until: float) -> tuple[int, Any]: ...

    def try_reset(self, local: int) -> Any: ...

    def first_row(self, local: int, outcome: Any) -> RowsBody | None: ...

    def fail(self, shard: Sequence[int], why: RemoteFailure) -> list[RowExtras]: ...

    def show_envs(self) -> list[Any]: ...

    def open_info(self, specs: Specs) -> None: ...
