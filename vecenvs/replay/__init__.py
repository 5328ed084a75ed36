"""Distributed replay: explorers step VecEnvs, one buffer stores their transitions, and a learner samples from it.

Ray starts and supervises the processes, and cpprb stores the transitions; neither is imported before it is used. In one
process, without Ray, use `ReplayBuffer` and `Explorer`.
"""

from __future__ import annotations

from vecenvs.replay.buffer import ReplayBuffer
from vecenvs.replay.errors import ExplorerDied, ExplorerError, SampleTimeout, ServerDied
from vecenvs.replay.explorer import Explorer, Policy
from vecenvs.replay.limiter import RateLimiter
from vecenvs.replay.replay import Replay
from vecenvs.replay.schema import Schema
from vecenvs.replay.server import ReplayServer

__all__ = [
    "Explorer",
    "ExplorerDied",
    "ExplorerError",
    "Policy",
    "RateLimiter",
    "Replay",
    "ReplayBuffer",
    "ReplayServer",
    "SampleTimeout",
    "Schema",
    "ServerDied",
]
