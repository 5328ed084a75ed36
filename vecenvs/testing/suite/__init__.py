"""The contract of VecEnv as tests, which run unchanged on every backend.

`VecEnvConformance` is for any VecEnv; `WorkerConformance` adds what holds where envs live in other processes: they may
die, hang or be told to stop. A backend's own test file is a few lines:

    class TestMine(WorkerConformance):
        @staticmethod
        def make_vec(env_fns, **common):
            return MyVecEnv(env_fns, num_workers=Hosts(env_fns).default_workers(2), **common)

Make it with two workers or more where there are as many envs, and a worker for each batched env (see `pool.hosts`), so
that of four envs the first and the third belong to different ones, and neither to the calling process.
"""

from __future__ import annotations

import pkgutil

import pytest

# pytest explains the asserts of test files only, unless told before their import.
pytest.register_assert_rewrite(*(module.name for module in pkgutil.iter_modules(__path__, f"{__name__}.")))

from vecenvs.testing.suite.actions import ActionConformance
from vecenvs.testing.suite.aftermath import AftermathConformance
from vecenvs.testing.suite.agents import AgentsConformance
from vecenvs.testing.suite.arguments import ArgumentConformance
from vecenvs.testing.suite.attributes import AttributeConformance
from vecenvs.testing.suite.autoreset import AutoresetConformance
from vecenvs.testing.suite.base import Conformance, Make
from vecenvs.testing.suite.batched import BatchedConformance
from vecenvs.testing.suite.batched_workers import BatchedWorkerConformance
from vecenvs.testing.suite.deaths import DeathConformance
from vecenvs.testing.suite.episode_seeds import EpisodeSeedConformance, EpisodeSeedWorkerConformance
from vecenvs.testing.suite.errors import ErrorConformance
from vecenvs.testing.suite.evaluating import EvaluateConformance, EvaluateWorkerConformance
from vecenvs.testing.suite.identity import IdentityConformance, IdentityWorkerConformance
from vecenvs.testing.suite.indices import IndexConformance
from vecenvs.testing.suite.infos import InfoConformance
from vecenvs.testing.suite.interfaces import InterfaceConformance
from vecenvs.testing.suite.interrupts import InterruptConformance
from vecenvs.testing.suite.lifecycle import LifecycleConformance
from vecenvs.testing.suite.loads import LoadConformance, LoadWorkerConformance
from vecenvs.testing.suite.long_errors import LongErrorConformance
from vecenvs.testing.suite.messages import MessageConformance, OrderConformance
from vecenvs.testing.suite.misfits import MisfitConformance
from vecenvs.testing.suite.on_episode import OnEpisodeConformance
from vecenvs.testing.suite.on_error import OnErrorConformance
from vecenvs.testing.suite.ownership import OwnershipConformance
from vecenvs.testing.suite.records import RecordConformance, RecordWorkerConformance
from vecenvs.testing.suite.recovery import RecoveryConformance
from vecenvs.testing.suite.recycling import RecyclingConformance
from vecenvs.testing.suite.rendering import RenderingConformance
from vecenvs.testing.suite.restarts import RestartConformance
from vecenvs.testing.suite.schedules import ScheduleConformance
from vecenvs.testing.suite.seeding import SeedingConformance
from vecenvs.testing.suite.sizes import SizeConformance, SizeWorkerConformance
from vecenvs.testing.suite.spaces import SpaceConformance
from vecenvs.testing.suite.spares import SparesConformance
from vecenvs.testing.suite.start_limits import StartLimitConformance, StartLimitWorkerConformance
from vecenvs.testing.suite.starts import StartConformance
from vecenvs.testing.suite.states import StateConformance
from vecenvs.testing.suite.subsets import SubsetConformance
from vecenvs.testing.suite.tasks import TaskConformance, TaskWorkerConformance
from vecenvs.testing.suite.timeouts import PatienceConformance, TimeoutConformance
from vecenvs.testing.suite.trajectories import RowConformance, WorldConformance
from vecenvs.testing.suite.values import ValueConformance

__all__ = ["Conformance", "Make", "RuleConformance", "TrajectoryConformance", "VecEnvConformance", "WorkerConformance"]


class RuleConformance(
    RowConformance,
    AutoresetConformance,
    OwnershipConformance,
    ActionConformance,
    SeedingConformance,
    EpisodeSeedConformance,
    OnErrorConformance,
    OnEpisodeConformance,
    LoadConformance,
    EvaluateConformance,
    TaskConformance,
    StateConformance,
    RecordConformance,
    IdentityConformance,
    IndexConformance,
    SubsetConformance,
    ArgumentConformance,
    AttributeConformance,
    InfoConformance,
    RenderingConformance,
    ErrorConformance,
    LongErrorConformance,
    MisfitConformance,
    InterfaceConformance,
    InterruptConformance,
    LifecycleConformance,
    StartConformance,
    StartLimitConformance,
    SparesConformance,
    ValueConformance,
    MessageConformance,
    PatienceConformance,
):
    """The promises of every VecEnv, apart from most of its trajectories."""


class TrajectoryConformance(WorldConformance, SpaceConformance, RowConformance):
    """Rows equal those of a plain loop, for every env and space."""


class VecEnvConformance(
    TrajectoryConformance, RuleConformance, ScheduleConformance, BatchedConformance, SizeConformance, AgentsConformance
):
    """The promises of every VecEnv."""


class WorkerConformance(
    VecEnvConformance,
    DeathConformance,
    AftermathConformance,
    RestartConformance,
    EpisodeSeedWorkerConformance,
    EvaluateWorkerConformance,
    TaskWorkerConformance,
    LoadWorkerConformance,
    StartLimitWorkerConformance,
    RecordWorkerConformance,
    IdentityWorkerConformance,
    RecoveryConformance,
    RecyclingConformance,
    TimeoutConformance,
    OrderConformance,
    BatchedWorkerConformance,
    SizeWorkerConformance,
):
    """The promises of a VecEnv with envs in other processes."""
