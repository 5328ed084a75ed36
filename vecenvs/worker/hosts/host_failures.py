"""What the answers for the envs of a batched env say when it has raised, or has refused a command."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vecenvs.errors import RepeatedEnvError, ResetNeededError, SpaceMismatch, VecEnvError, describe_indices
from vecenvs.transport.protocol import RemoteFailure, RowExtras, safe_text
from vecenvs.worker.env_errors import EnvErrors

# Of ours, and what another env of the same function would raise again.
_AT_ONCE = (VecEnvError, ResetNeededError, SpaceMismatch, RepeatedEnvError)


class HostFailures:
    """Tells the failures of one host, that of these `slots`. Envs count from its first one."""

    def __init__(self, slots: range, errors: EnvErrors | None, *, remote: bool) -> None:
        self._slots = slots
        self._errors = errors
        self._remote = remote
        self._who = f"the batched env of envs {describe_indices(slots)}"
        if errors is not None:
            errors.who = self._who

    def counted(self, doing: str, exc: BaseException) -> str:
        """Count an exception of the host; return it as text. Raise it if it does not end episodes, by `on_error`."""
        if self._errors is None or type(exc) in _AT_ONCE:
            raise exc
        return self._errors.happened(0, doing, exc)

    def raised(self, doing: str, exc: BaseException, some: Sequence[int]) -> list[RowExtras]:
        """Tell `some` envs that the host, or the library about it, has raised."""
        why = RemoteFailure.capture(self._slots[0], doing, exc, portable=self._remote)
        if type(exc) not in (VecEnvError, ResetNeededError):  # those are not of a VecEnv in there
            spent = self._errors.spent(0) if self._errors is not None else ""
            told = f"{self._who} raised {type(exc).__name__} in {doing}: {safe_text(exc)}{spent and '. '}{spent}"
            why = why._replace(summary=told)
        return self.told(some, why)

    def told(self, some: Sequence[int], why: RemoteFailure) -> list[RowExtras]:
        """Tell `some` envs of a failure."""
        return [RowExtras(self._slots[env], {}, None, why._replace(slot=self._slots[env])) for env in some]

    def reset_needed(self, env: int, why: str, *, apart: bool) -> list[RowExtras]:
        """Refuse a step of all envs since `env` needs a reset; `apart` says whether that can be of this env alone."""
        index = self._slots[env]
        whole = f"reset(range({self._slots.start}, {self._slots.stop})) all envs of its batch first"
        problem = ResetNeededError(f"env {index} {why}", f"reset([{index}]) it first" if apart else whole)
        return self.raised("step", problem, range(len(self._slots)))

    def reset_together(self, some: Sequence[int], env: Any) -> list[RowExtras]:
        """Refuse a reset of `some` of the envs of `env`, which cannot reset these alone."""
        problem = VecEnvError(f"{type(env).__name__} resets all its envs at once: call reset() without indices")
        return self.told(some, RemoteFailure.capture(self._slots[0], "reset", problem, portable=self._remote))
