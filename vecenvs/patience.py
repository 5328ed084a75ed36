"""How long workers have been at what they are asked, and when that is too long."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from vecenvs.protocol import Command
from vecenvs.transport import Transport

NEVER = math.inf  # since when somebody is at it who has not begun: never late


class Pending(NamedTuple):
    """An unanswered command for one slot, kept so that it can be given to a replaced worker again."""

    since: float
    kind: Command
    body: Any


class Patience:
    """Watches `pending` (by slot) and `stepping` (by worker, since when), which are the ledger's, for `step_timeout`.

    A worker's time runs from its last answer, if that came after the command: what it spends on its other envs does
    not count. Workers that work only while they are waited for are never late.
    """

    def __init__(
        self, step_timeout: float | None, pending: dict[int, Pending], stepping: dict[int, float],
        owner: Sequence[int], transports: Sequence[Transport],
    ) -> None:  # fmt: skip
        self.step_timeout = step_timeout
        self._pending = pending
        self._stepping = stepping
        self._owner = owner
        self._transports = transports
        self._heard = [0.0] * len(transports)

    def hear(self, worker: int) -> None:
        """Note that an answer of this worker has been taken."""
        if self.step_timeout is not None:
            self._heard[worker] = time.monotonic()

    def limit(self, deadline: float | None, *, replacing: bool) -> float | None:
        """When to give up: at the caller's deadline; without one when somebody is over `step_timeout`.

        At whichever comes first, where those who are late are replaced.
        """
        if self.step_timeout is None or (deadline is not None and not replacing):
            return deadline
        oldest = min((self._since(worker, given) for worker, given in self._unanswered()), default=NEVER)
        if oldest == NEVER:
            return deadline
        own = oldest + self.step_timeout
        return own if deadline is None else min(own, deadline)

    def late(self) -> set[int]:
        """Give the workers that are over `step_timeout`."""
        if self.step_timeout is None:
            return set()
        late = time.monotonic() - self.step_timeout
        return {worker for worker, given in self._unanswered() if self._since(worker, given) <= late}

    def rearm(self) -> None:
        """Let time run anew for all that has begun: for who waits once more after a StepTimeout."""
        now = time.monotonic()
        self._stepping.update(dict.fromkeys([w for w, since in self._stepping.items() if since < now], now))
        self._pending.update({slot: p._replace(since=now) for slot, p in self._pending.items() if p.since < now})

    def begin(self, worker: int, shard: range) -> None:
        """Let time run, from now on, for what a worker that was NEVER late has been told to do."""
        now = time.monotonic()
        if worker in self._stepping:
            self._stepping[worker] = now
        for slot in shard:
            if slot in self._pending:
                self._pending[slot] = self._pending[slot]._replace(since=now)

    def _unanswered(self) -> list[tuple[int, float]]:
        """The worker of each unanswered command, and when it was given."""
        owner = self._owner
        return [*self._stepping.items(), *((owner[slot], pending.since) for slot, pending in self._pending.items())]

    def _since(self, worker: int, given: float) -> float:
        return NEVER if self._transports[worker].inline else max(given, self._heard[worker])
