"""The conformance suite over connections: a node's workers by a leader, and workers by themselves."""

from __future__ import annotations

from typing import Any

import pytest
from one_node import NodeVecEnv

from vecenvs.pool.hosts import Hosts
from vecenvs.testing.suite import (
    AutoresetConformance,
    EpisodeSeedConformance,
    InfoConformance,
    OrderConformance,
    OwnershipConformance,
    RowConformance,
    ScheduleConformance,
    SubsetConformance,
    WorkerConformance,
)


class OverConnections:
    """Two workers where there are as many envs."""

    leader = True

    def make_vec(self, env_fns: Any, **common: Any) -> NodeVecEnv:
        workers = common.pop("num_workers", Hosts(env_fns).default_workers(2))
        vec = NodeVecEnv(env_fns, workers, leader=self.leader, **common)
        assert all(each["gathered"] == (self.leader and workers > 1) for each in vec.stats()["workers"])
        return vec


class Rows(
    RowConformance,
    AutoresetConformance,
    InfoConformance,
    OrderConformance,
    OwnershipConformance,
    ScheduleConformance,
    SubsetConformance,
):
    """Rows, and when they come."""

    test_a_bare_loop_that_seeds_each_reset = EpisodeSeedConformance.test_a_bare_loop_that_seeds_each_reset


@pytest.mark.sparse
class TestNode(OverConnections, WorkerConformance):
    """Workers with a leader."""

    short = Rows


@pytest.mark.sparse
class TestConnections(OverConnections, WorkerConformance):
    """Workers without one."""

    leader = False
    short = Rows
