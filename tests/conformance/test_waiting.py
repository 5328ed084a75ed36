"""The conformance suite over envs that wait: in threads, and as coroutines."""

from __future__ import annotations

import pytest
from conftest import Configuration

from vecenvs.testing.suite import (
    AftermathConformance,
    AgentsConformance,
    AutoresetConformance,
    DeathConformance,
    EpisodeSeedWorkerConformance,
    OrderConformance,
    RecoveryConformance,
    RestartConformance,
    RowConformance,
    RuleConformance,
    ScheduleConformance,
    SizeConformance,
    SizeWorkerConformance,
    TimeoutConformance,
    TrajectoryConformance,
)


class OnConfigurations:
    """Makes the VecEnv as the configuration says."""

    @pytest.fixture(autouse=True)
    def _configure(self, configuration: Configuration) -> None:
        self.make_vec = configuration.make_vec


class Waiting(
    OnConfigurations,
    TrajectoryConformance,
    RuleConformance,
    ScheduleConformance,
    SizeConformance,
    AgentsConformance,
):
    """What holds of every engine, for single envs that have arrays of their own."""

    test_envs_that_share_their_buffers = None
    test_batched_envs_and_wrong_arguments = None
    test_wrong_arguments = None
    test_batched_envs = None
    test_tasks_of_batched_envs = None
    test_tasks_and_wrong_arguments = None
    test_batched_envs_that_reset_themselves = None
    test_what_env_functions_share = None
    test_a_batched_env_ends_the_episodes_of_all_its_envs = None
    test_a_batched_env_has_none = None
    test_a_batched_env_that_raises_too_often = None
    test_a_batched_env_whose_reset_raises = None
    test_evaluate_of_batched_envs = None
    test_envs_are_told_of_their_worker = None  # in the caller's process only while they are made


class Rows(AutoresetConformance):
    """Rows, and when they come."""

    test_shapes_and_types_of_a_step = RowConformance.test_shapes_and_types_of_a_step
    test_schedules = ScheduleConformance.test_schedules


class TestThreads(Waiting):
    """Envs in threads."""

    matrix = "threads"
    short = Rows


class TestCoroutines(Waiting):
    """Envs of coroutines."""

    matrix = "asyncio"
    short = Rows
    # These envs do not await the gate that they wait for.
    test_async_rows_during_a_reset = None
    test_rows_that_repeat_are_the_callers_own = None
    # This one replaces a coroutine by a function.
    test_a_step_that_a_call_exchanges = None
    # Episodes of coroutines are not replayed; these envs' methods are attributes, which no state can have.
    test_a_call_in_an_episode_that_is_replayed = None
    test_an_episode_is_replayed = None
    test_another_vec_env_goes_on = None
    test_verify_changes_nothing = None
    test_verify_finds_what_a_state_lacks = None


class Workers(
    OnConfigurations,
    DeathConformance,
    AftermathConformance,
    RestartConformance,
    EpisodeSeedWorkerConformance,
    RecoveryConformance,
    TimeoutConformance,
    OrderConformance,
    SizeWorkerConformance,
):
    """What holds where envs live in other processes."""

    test_what_it_sent_before = None  # an env ends the process while others are at work
    test_close_does_not_wait_for_them = None  # an env sets handlers of signals, as threads cannot


@pytest.mark.long
class TestThreadsOfWorkers(Workers):
    """Envs in threads of workers."""

    # Here a time limit is each env's own: tests/test_waiting_envs.py
    test_step_timeout_of_the_constructor = None
    test_an_env_that_has_just_begun_is_not_late = None
    test_a_hung_env_beside_others_that_always_have_something = None
    # Here another env of the worker may have ended its reset, with its seed, before one of them ends the process.
    test_what_waits_for_a_reset_is_not_lost = None
    test_what_was_taken_back_does_not_return = None

    matrix = "threads of workers"


@pytest.mark.long
class TestCoroutinesOfWorkers(Workers):
    """Envs of coroutines in workers."""

    # These envs do not await the gate that they wait for.
    test_close_beside_an_async_reset = None
    test_beside_an_async_reset = None
    test_many_slow_envs_in_one_worker = None  # they keep the event loop from all of them, for longer than the limit

    matrix = "coroutines of workers"
