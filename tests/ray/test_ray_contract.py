"""The conformance suite on Ray, by each way to a worker.

Every test starts actors, which takes a while: the short tier has the parts in which the transport can make a
difference.
"""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from envpool_rules import EnvPoolRules, EnvPoolWorkerRules
from ray_session import EXEMPT, OPTIONS, ray_session  # noqa: F401
from waiting_rules import AsCoroutines, InThreads, WaitingRows, WaitingRules

from vecenvs.backends.ray import RayVecEnv
from vecenvs.pool.hosts import Hosts
from vecenvs.testing.suite import (
    Conformance,
    DeathConformance,
    RowConformance,
    ScheduleConformance,
    WorkerConformance,
)
from vecenvs.transport import leaders

pytestmark = pytest.mark.usefixtures("ray_session")


class OnRay(Conformance):
    """As many workers as fit, two at most. Every VecEnv made must have gone the way that is under test."""

    exempt = EXEMPT
    transport = "auto"
    way = "shared"
    options: ClassVar[dict[str, Any]] = OPTIONS
    gathers = False  # whether two workers have a leader

    def make_vec(self, env_fns: Any, **common: Any) -> RayVecEnv:
        workers = common.pop("num_workers", Hosts(env_fns).default_workers(2))
        vec = RayVecEnv(env_fns, workers, actor_options=self.options, transport=self.transport, **common)
        assert vec.stats()["transports"] == {self.way: workers}
        assert all(worker["gathered"] == (self.gathers and workers > 1) for worker in vec.stats()["workers"])
        return vec


class WhereRayMatters:
    """How actors begin and end; what shared columns and rings do, other engines' tests have."""

    test_in_a_step = DeathConformance.test_in_a_step
    test_two_workers_at_once = DeathConformance.test_two_workers_at_once


class WhereMessagesMatter:
    """When answers come."""

    test_schedules = ScheduleConformance.test_schedules


@pytest.mark.sparse
class TestShared(OnRay, WorkerConformance):
    """Same node: rows in shared memory."""

    short = WhereRayMatters


@pytest.mark.sparse
class TestMessages(OnRay, WorkerConformance):
    """As between nodes: one message for both workers, by the leader of their node."""

    short = WhereMessagesMatter
    transport = way = "messages"
    gathers = True


class TestConnections(OnRay, WorkerConformance):
    """As between nodes with a worker each: messages over a connection of each worker."""

    short = Conformance  # which has no tests
    transport = way = "messages"

    @pytest.fixture(autouse=True)
    def no_leader(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(leaders, "LEAST", 1000)  # workers of a node


@pytest.mark.long
class TestWaitingThreads(InThreads, WaitingRules, OnRay):
    """Envs that wait, in threads of actors on this node."""

    short = WaitingRows


@pytest.mark.long
class TestWaitingCoroutines(AsCoroutines, WaitingRules, OnRay):
    """Envs that wait, as coroutines of actors, as between nodes."""

    short = WaitingRows
    transport = way = "messages"
    gathers = True


@pytest.mark.long
class TestSharing(OnRay, RowConformance, ScheduleConformance):
    """With room for one worker of two: the other one shares its CPUs."""

    options: ClassVar[dict[str, Any]] = {"num_cpus": 2}

    @pytest.fixture(autouse=True)
    def at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("vecenvs.backends.ray.transport.PLACE_TIMEOUT", 0.5)

    def make_vec(self, env_fns: Any, **common: Any) -> RayVecEnv:
        workers = Hosts(env_fns).default_workers(2)
        vec = super().make_vec(env_fns, num_workers=workers, min_workers=1, **common)
        assert sum(worker["shares"] for worker in vec.stats()["workers"]) == workers - 1
        return vec


class EnvPoolOnRay(OnRay, EnvPoolRules, EnvPoolWorkerRules):
    """EnvPools in actors, which have as many threads as their actor has CPUs."""

    def cores(self, num_workers: int) -> int:
        return 1  # of the part of a CPU that OPTIONS ask for


@pytest.mark.long
class TestEnvPoolShared(EnvPoolOnRay):
    """Same node."""


@pytest.mark.long
class TestEnvPoolMessages(EnvPoolOnRay):
    """As between nodes."""

    transport = way = "messages"
    gathers = True
