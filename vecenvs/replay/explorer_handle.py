"""The caller's record of one explorer."""

from __future__ import annotations

from typing import Any

from vecenvs.backends.ray.actor import Home
from vecenvs.backends.ray.foreign_process import ForeignProcess
from vecenvs.backends.ray.placement import Placing, Request
from vecenvs.replay import link
from vecenvs.replay.explorer import blank_stats


class ExplorerHandle:
    """An explorer's actor, the unanswered call to it (`make` at first, then `report`), and its last stats."""

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

    def set_home(self, home: Home, node: str) -> None:
        """Store where the actor runs; watch its process if that is on this `node`."""
        self.home = home
        self.process = link.watch_process(home, node)
