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
    RecoveryConformance,
    RestartConformance,
    RuleConformance,
    ScheduleConformance,
    SeedingConformance,
    SpaceConformance,
    StartConformance,
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


class Starts(LifecycleConformance, StartConformance):
    """What a start method can make a difference to: how envs begin and end, and what travels to their workers."""

    test_an_env_that_cannot_be_made = ErrorConformance.test_an_env_that_cannot_be_made
    test_env_functions_that_are_none = ErrorConformance.test_env_functions_that_are_none
    test_env_functions_that_do_not_pickle = ErrorConformance.test_env_functions_that_do_not_pickle
    test_closures_and_lambdas_travel = ErrorConformance.test_closures_and_lambdas_travel
    test_spaces_that_differ = ErrorConformance.test_spaces_that_differ
    test_spaces_of_a_class_without_eq = ErrorConformance.test_spaces_of_a_class_without_eq
    test_exceptions_that_do_not_travel = ErrorConformance.test_exceptions_that_do_not_travel
    test_infos_that_do_not_pickle = ErrorConformance.test_infos_that_do_not_pickle
    test_values_that_do_not_pickle = AttributeConformance.test_values_that_do_not_pickle
    test_wrappers_keep_their_state = AttributeConformance.test_wrappers_keep_their_state
    test_what_its_own_process_alone_can_unpickle = ValueConformance.test_what_its_own_process_alone_can_unpickle
    test_same_seeds_same_trajectories = SeedingConformance.test_same_seeds_same_trajectories


class TestStarts(
    OnConfigurations,
    AttributeConformance,
    ErrorConformance,
    LifecycleConformance,
    SeedingConformance,
    StartConformance,
    ValueConformance,
):
    """Of the rules those that a start method might break; each start takes a second."""

    matrix = "started"
    short = Starts


class TestSchedules(OnConfigurations, ScheduleConformance):
    """Random schedules of send, recv and reset_async against a model."""

    matrix = "fast"


class TestWorkers(OnConfigurations, DeathConformance, AftermathConformance, RecoveryConformance, TimeoutConformance):
    """What holds where envs live in other processes."""

    matrix = "running"


class TestRestarts(OnConfigurations, RestartConformance):
    """Workers that take the places of others."""

    matrix = "workers"
