"""The parameters of a round, the outcome of a call, and violations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from chaos.hosts import Host


class Violation(Exception):
    """A broken rule of the contract. `kind` is its class; the round goes on after a `soft` one."""

    def __init__(self, kind: str, text: str, *, soft: bool = False) -> None:
        super().__init__(text)
        self.kind, self.soft = kind, soft


@dataclass
class Plan:
    """The parameters of a round."""

    mode: str
    hosts: list[Host]
    form: str
    pad: int
    restart: bool
    max_restarts: int
    step_timeout: float | None
    steps: int
    interrupts: str  # "", "timer", "bytecode"
    interrupt_rate: float
    kill_rate: float
    stop_rate: float
    deadly: bool
    faults: bool
    patience: float
    info_attrs: tuple[str, ...] = ()
    moves: bool = False  # whether workers may move: see `RayVecEnv`'s min_workers
    teams: bool = False  # whether the envs have several agents: see `TeamEnv`
    option: str = ""  # see `options`
    spares: int = 0
    start_limit: tuple[int | None, float | None] | None = None
    late: str = ""  # see `State`
    awaits: bool = False  # whether the envs are coroutines which await what hangs: see `AwaitingEnv`
    newest: bool = False  # whether workers are children of this process, to be found without their pids

    @property
    def num_envs(self) -> int:
        return self.hosts[-1].slots.stop


@dataclass
class Outcome:
    """The result of a call, or its exception."""

    result: Any = None
    error: BaseException | None = None
