"""The conformance suite on every backend."""

from __future__ import annotations

import pytest
from conftest import Configuration

from vecenvs.testing.suite import (
    AftermathConformance,
    AttributeConformance,
    DeathConformance,
    ErrorConformance,
    LifecycleConformance,
    RestartConformance,
    RuleConformance,
    ScheduleConformance,
    SeedingConformance,
    SpaceConformance,
    TimeoutConformance,
    ValueConformance,
    WorldConformance,
)


class OnConfigurations:
    """Makes the VecEnv as the configuration says."""

    @pytest.fixture(autouse=True)
    def _configure(self, configuration: Configuration) -> None:
        self.make_vec = configuration.make_vec


class TestWorlds(OnConfigurations, WorldConformance):
    """Bit-equal trajectories, by every start method and number of workers."""

    matrix = "wide"


class TestSpaces(OnConfigurations, SpaceConformance):
    """Every kind of space."""

    matrix = "fast"


class TestRules(OnConfigurations, RuleConformance):
    """All else in the contract."""

    matrix = "fast"


class TestRulesOfSpawned(
    OnConfigurations,
    AttributeConformance,
    ErrorConformance,
    LifecycleConformance,
    SeedingConformance,
    ValueConformance,
):
    """Of these rules those that spawn might break; each of its starts takes a second."""

    matrix = "spawned"


class TestSchedules(OnConfigurations, ScheduleConformance):
    """Random schedules of send, recv and reset_async against a model."""

    matrix = "fast"


class TestWorkers(OnConfigurations, DeathConformance, AftermathConformance, RestartConformance, TimeoutConformance):
    """What holds where envs live in other processes."""

    matrix = "workers"
