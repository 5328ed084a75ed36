"""What a worker needs of its host: `EnvShard` has it of a list of single envs, `BatchedShard` of one batched env."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from vecenvs.batch.batch_columns import BatchColumns
from vecenvs.batch.infos import InfoWriter
from vecenvs.transport.protocol import LastStep, RemoteFailure, RowExtras, RowsBody, Slots
from vecenvs.transport.reset_arguments import ResetArguments
from vecenvs.worker.autoreset import RowFlags
from vecenvs.worker.env_errors import EnvErrors, Remake
from vecenvs.worker.env_shard import EnvShard
from vecenvs.worker.hosts.batched_host import BatchedHost
from vecenvs.worker.hosts.batched_shard import BatchedShard
from vecenvs.worker.rules import Rules


class Shard(Protocol):
    """The envs of one worker, counted from 0, and how their rows are written; see `EnvShard`."""

    all: range
    flags: RowFlags
    done: Sequence[Any]
    deferred: list[int | BaseException]
    info_writer: InfoWriter

    @property
    def read_actions(self) -> Callable[[], Sequence[Any]]:
        """What returns the actions for `try_step`."""

    # All envs

    def try_step(self, number: int, actions: Sequence[Any]) -> bool:
        """Step all envs for command `number`. Return True if that is all, else `finish_step` has to follow."""

    def was_tried(self, number: int) -> bool:
        """Tell whether `try_step` was called for this command."""

    def finish_step(self) -> Any:
        """Return what there is besides the columns of the last `try_step`."""

    # Some of them

    def step_some(self, some: Slots) -> tuple[int, Any]:
        """Step the first of these envs; return how many, and what their rows have besides columns."""

    def reset_some(self, some: Slots, given: ResetArguments) -> tuple[int, Any]:
        """Reset the first of these envs; return how many, and what their rows have besides columns."""

    def try_reset(self, local: int) -> Callable[[], RowsBody | None]:
        """Reset one env in async mode; return what writes its first row."""

    def fail(self, shard: Sequence[int], why: RemoteFailure) -> list[RowExtras]:
        """Fail these envs for a reason from outside; return the extras that say so."""

    # Their next episodes

    def hold(self, local: int, name: str, value: Any) -> None:
        """Keep the "seed" or the "options" of the env's next reset; None takes back what was kept."""

    def resume(self, lost: dict[int, tuple[LastStep, Any]]) -> None:
        """Take over slots whose episodes ended with another worker."""

    def renew(self, local: int, *, begun: bool = False) -> None:
        """Take note that a function was called on the env; with `begun`, one that counts as a reset."""

    # The envs themselves

    def targets(self, some: Sequence[int]) -> Sequence[tuple[Sequence[Any], int]]:
        """Return where these envs are once a function is run on them, or what stands for them then."""

    def state_of(self, local: int, verify: bool) -> Any:
        """Return the state of an env; StateError if there is none."""

    def note_call(self, local: int, function: Any, args: tuple[Any, ...] = (), *, succeeded: bool = True) -> None:
        """Take note that a function was called on the env."""

    def close_spares(self, grace: float) -> None:
        """Close the spares that are not `owned`."""

    def owned(self) -> dict[int, Any]:
        """Return what has to be closed, by the env that it belongs to."""

    def show_envs(self) -> list[Any]:
        """Return the list of the envs itself."""


def make_shard(
    envs: list[Any],
    first: int,
    batch: BatchColumns,
    rules: Rules,
    *,
    remote: bool,
    errors: EnvErrors | None = None,
    remake: Remake | None = None,
) -> Shard:
    """Return the shard of slots first, first + 1, ...: of single envs, or of one BatchedHost alone."""
    if isinstance(envs[0], BatchedHost):
        return BatchedShard(envs[0], first, batch, rules, remote=remote, errors=errors)
    return EnvShard(envs, first, batch, rules, remote=remote, errors=errors, remake=remake)
