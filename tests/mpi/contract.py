"""The conformance suite on MpiVecEnv, run on rank 0: python -m vecenvs.mpi -n 3 -m pytest tests/mpi/contract.py."""

from __future__ import annotations

import os
from typing import Any

from envpool_rules import EnvPoolRules, EnvPoolWorkerRules
from mpi4py import MPI
from waiting_rules import AsCoroutines, InThreads, WaitingRules

from vecenvs.backends.mpi import MpiVecEnv
from vecenvs.cpus import usable_cores
from vecenvs.pool.hosts import Hosts
from vecenvs.testing.suite import (
    BatchedConformance,
    Conformance,
    DeathConformance,
    LifecycleConformance,
    ScheduleConformance,
    StartConformance,
    WorkerConformance,
    WorldConformance,
)

WORKERS = max(2, MPI.COMM_WORLD.Get_size() - 1)
TRANSPORT = os.environ.get("VECENVS_MPI_TRANSPORT", "auto")
WAY = "shared" if TRANSPORT == "auto" else TRANSPORT


def make(env_fns: Any, **common: Any) -> MpiVecEnv:
    """As many workers as ranks; each must be reached in the way that is under test."""
    vec = MpiVecEnv(env_fns, num_workers=Hosts(env_fns).default_workers(WORKERS), transport=TRANSPORT, **common)
    assert [*vec.stats()["transports"]] == [WAY]
    return vec


class TestWorlds(WorldConformance):
    """Trajectories of real envs, and rows of batched ones: for every number of ranks."""

    make_vec = staticmethod(make)
    test_rows_do_not_depend_on_the_split = BatchedConformance.test_rows_do_not_depend_on_the_split


class TestEnds(LifecycleConformance, StartConformance, DeathConformance, ScheduleConformance):
    """What MPI can make a difference to first: how workers begin and end."""

    make_vec = staticmethod(make)


class TestEnvPool(EnvPoolRules, EnvPoolWorkerRules):
    """EnvPools, whose ranks share this machine."""

    make_vec = staticmethod(make)

    def cores(self, num_workers: int) -> int:
        return max(1, usable_cores() // num_workers)


class MadeHere(Conformance):
    """Comes last: makes the VecEnv."""

    def make_vec(self, env_fns: Any, **common: Any) -> MpiVecEnv:
        return make(env_fns, **common)


class TestWaitingThreads(InThreads, WaitingRules, MadeHere):
    """Envs that wait, in threads."""


class TestWaitingCoroutines(AsCoroutines, WaitingRules, MadeHere):
    """Envs that wait, as coroutines."""


class TestContract(WorkerConformance):
    """Everything."""

    make_vec = staticmethod(make)
