"""The conformance suite on Ray, by each of the ways to an actor.

Every test starts actors, so that by default it is the parts in which Ray can make a difference;
VECENVS_TEST_RAY=all runs all of it every way (some minutes more).
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from ray_session import EXEMPT, OPTIONS, ray_session  # noqa: F401

from vecenvs.backends.ray import RayVecEnv
from vecenvs.testing.suite import (
    AftermathConformance,
    Conformance,
    DeathConformance,
    ErrorConformance,
    LifecycleConformance,
    RestartConformance,
    RowConformance,
    ScheduleConformance,
    TimeoutConformance,
    WorkerConformance,
    WorldConformance,
)

pytestmark = pytest.mark.usefixtures("ray_session")


class OnRay(Conformance):
    """As many workers as fit, two at most. Every VecEnv made must have gone the way that is under test."""

    exempt = EXEMPT
    transport = "auto"
    way = "shared"

    def make_vec(self, env_fns: Any, **common: Any) -> RayVecEnv:
        workers = min(2, len(env_fns)) or 2
        vec = RayVecEnv(env_fns, workers, actor_options=OPTIONS, transport=self.transport, **common)
        assert vec.stats()["transports"] == {self.way: workers}
        return vec


class WhereRayMatters(
    ErrorConformance,
    LifecycleConformance,
    DeathConformance,
    AftermathConformance,
    RestartConformance,
    ScheduleConformance,
    TimeoutConformance,
):
    """What actors do; without what shared columns and rings do alike for every engine, or the caller alone."""


class WhereMessagesMatter(
    WorldConformance,
    RowConformance,
    LifecycleConformance,
    DeathConformance,
    RestartConformance,
    ScheduleConformance,
    TimeoutConformance,
):
    """Rows, failures, and the end; the messages are MPI's, over which the whole contract runs, with every space."""


ALL = os.environ.get("VECENVS_TEST_RAY") == "all"


class TestShared(OnRay, WorkerConformance if ALL else WhereRayMatters):
    """Same node: rows in shared memory."""


class TestMessages(OnRay, WorkerConformance if ALL else WhereMessagesMatter):
    """As between nodes: rows in messages over a connection."""

    transport = way = "messages"


class WhereCallsMatter(WorldConformance, RowConformance, ScheduleConformance, DeathConformance, TimeoutConformance):
    """The messages are those of the connection: what is different is when answers come, and how an end shows."""


class TestCalls(OnRay, WorkerConformance if ALL else WhereCallsMatter):
    """Between nodes that let only Ray through: messages in actor calls."""

    transport = way = "calls"
    last_words = False  # what a call returns is sent by Ray, some time after
