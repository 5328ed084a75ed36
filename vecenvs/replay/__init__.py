"""Distributed replay: explorers step VecEnvs, one buffer holds what they find, a learner samples from it.

Ray places and watches the processes, cpprb stores and draws. Neither is imported before it is used. In one process,
without Ray, `ReplayBuffer` and `Explorer` do the same.
"""

from __future__ import annotations

from vecenvs.replay.buffer import ReplayBuffer
from vecenvs.replay.errors import ExplorerDied, ExplorerError, ExplorerMismatch, SampleTimeout, ServerDied, StoppedError
from vecenvs.replay.explorer import Explorer, Policy
from vecenvs.replay.limiter import RateLimiter
from vecenvs.replay.replay import Replay
from vecenvs.replay.schema import Schema
from vecenvs.replay.server import ReplayServer

__all__ = [
    "Explorer",
    "ExplorerDied",
    "ExplorerError",
    "ExplorerMismatch",
    "Policy",
    "RateLimiter",
    "Replay",
    "ReplayBuffer",
    "ReplayServer",
    "SampleTimeout",
    "Schema",
    "ServerDied",
    "StoppedError",
]
