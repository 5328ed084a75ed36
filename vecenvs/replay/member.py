"""What the caller knows of one explorer."""

from __future__ import annotations

from typing import Any

from vecenvs.backends.ray.actor import Home
from vecenvs.backends.ray.foreign_process import ForeignProcess
from vecenvs.backends.ray.placement import Placing, Request
from vecenvs.replay import link
from vecenvs.replay.explorer import blank_stats


class Member:
    """One explorer: its actor, and the call that is under way to it (`make` while it starts, `report` after that)."""

    def __init__(self, index: int, generation: int, actor: Any, request: Request) -> None:
        self.index = index
        self.generation = generation
        self.actor = actor
        self.home: Home | None = None
        self.process: ForeignProcess | None = None
        self.placing = Placing(request, actor, f"explorer {index}")
        self.call: Any = None
        self.started = False
        self.failed = False
        self.stats = blank_stats(index)

    def settle(self, home: Home, node: str) -> None:
        """Note where the actor runs; watch it if that is this `node`."""
        self.home = home
        self.process = link.watched(home, node)
