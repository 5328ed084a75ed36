"""The conformance suite on every backend."""

from __future__ import annotations

import pytest
from conftest import Configuration

from vecenvs.testing.suite import (
    AftermathConformance,
    DeathConformance,
    RestartConformance,
    RuleConformance,
    ScheduleConformance,
    SpaceConformance,
    TimeoutConformance,
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
    """All else in the contract, on one configuration of each kind."""

    matrix = "each"


class TestSchedules(OnConfigurations, ScheduleConformance):
    """Random schedules of send, recv and reset_async against a model."""

    matrix = "fast"


class TestWorkers(OnConfigurations, DeathConformance, AftermathConformance, RestartConformance, TimeoutConformance):
    """What holds where envs live in other processes."""

    matrix = "workers"
