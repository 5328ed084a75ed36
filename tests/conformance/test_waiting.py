"""The conformance suite over envs that wait: in threads, and as coroutines."""

from __future__ import annotations

import pytest
from conftest import Configuration
from waiting_rules import Coroutines, WaitingRows, WaitingRules

from vecenvs.testing.suite import (
    AftermathConformance,
    DeathConformance,
    EpisodeSeedWorkerConformance,
    OrderConformance,
    RecoveryConformance,
    RestartConformance,
    SizeWorkerConformance,
    TimeoutConformance,
)


class OnConfigurations:
    """Makes the VecEnv as the configuration says."""

    @pytest.fixture(autouse=True)
    def _configure(self, configuration: Configuration) -> None:
        self.make_vec = configuration.make_vec


class TestThreads(OnConfigurations, WaitingRules):
    """Envs in threads."""

    matrix = "threads"
    short = WaitingRows


class TestCoroutines(OnConfigurations, Coroutines, WaitingRules):
    """Envs of coroutines."""

    matrix = "asyncio"
    short = WaitingRows


@pytest.mark.long
class TestThreadsElsewhere(OnConfigurations, WaitingRows):
    """Envs in threads of workers that begin in other ways."""

    matrix = "threads elsewhere"


@pytest.mark.long
class TestCoroutinesElsewhere(OnConfigurations, Coroutines, WaitingRows):
    """Envs of coroutines in workers that begin in other ways."""

    matrix = "coroutines elsewhere"


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
    test_a_seed_that_a_row_has_used_which_is_not_taken_yet = None
    test_many_slow_envs_in_one_worker = None  # they keep the event loop from all of them, for longer than the limit

    matrix = "coroutines of workers"
