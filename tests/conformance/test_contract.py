"""The conformance suite on every backend."""

from __future__ import annotations

import pytest
from batched_attributes import BatchedAttributeConformance
from batched_resets import BatchedResetConformance
from batched_rules import BatchedRuleConformance
from conftest import Configuration

from vecenvs.testing.envs.sized import FORMS, LARGE, NEAR, SIZES, Rows
from vecenvs.testing.suite import (
    AftermathConformance,
    AgentsConformance,
    AttributeConformance,
    AutoresetConformance,
    BatchedConformance,
    BatchedWorkerConformance,
    DeathConformance,
    EpisodeSeedConformance,
    EpisodeSeedWorkerConformance,
    ErrorConformance,
    EvaluateConformance,
    EvaluateWorkerConformance,
    IdentityWorkerConformance,
    IndexConformance,
    InfoConformance,
    InterruptConformance,
    LifecycleConformance,
    LoadWorkerConformance,
    MessageConformance,
    MisfitConformance,
    OnErrorConformance,
    OrderConformance,
    RecordWorkerConformance,
    RecoveryConformance,
    RecyclingConformance,
    RestartConformance,
    RowConformance,
    RuleConformance,
    ScheduleConformance,
    SeedingConformance,
    SizeConformance,
    SizeWorkerConformance,
    SpaceConformance,
    StartConformance,
    StartLimitWorkerConformance,
    StateConformance,
    TaskWorkerConformance,
    TimeoutConformance,
    ValueConformance,
    WorldConformance,
)
from vecenvs.testing.suite.base import Make
from vecenvs.testing.suite.recycling import ShortRecyclingConformance
from vecenvs.testing.suite.sizes import Sized, begin, play
from vecenvs.worker.autoreset import AUTORESET_MODES


class OnConfigurations:
    """Makes the VecEnv as the configuration says."""

    @pytest.fixture(autouse=True)
    def _configure(self, configuration: Configuration) -> None:
        self.make_vec = configuration.make_vec


class TestWorlds(OnConfigurations, WorldConformance):
    """Bit-equal trajectories, by every start method and number of workers."""

    matrix = "wide"


class TestAgents(OnConfigurations, AgentsConformance):
    """Envs of several agents."""

    matrix = "contract"


class TestSpaces(OnConfigurations, SpaceConformance):
    """Every kind of space."""

    matrix = "spaces"


class TestRules(OnConfigurations, RuleConformance):
    """All else in the contract."""

    matrix = "plain"


class Mixed(RowConformance, AutoresetConformance, InfoConformance, InterruptConformance):
    """Rules for several envs, of which some may live in the caller's process and some in others.

    The other rules are for a single value: checks of arguments and actions, and what one env may return.
    """

    test_a_bare_loop_that_seeds_each_reset = EpisodeSeedConformance.test_a_bare_loop_that_seeds_each_reset
    test_any_subset_in_any_order = EpisodeSeedConformance.test_any_subset_in_any_order
    test_a_list_gives_one_each = SeedingConformance.test_a_list_gives_one_each
    test_long_messages_both_ways_at_once = MessageConformance.test_long_messages_both_ways_at_once
    test_evaluate_equals_a_bare_loop = EvaluateConformance.test_evaluate_equals_a_bare_loop
    test_evaluate_and_ctrl_c = EvaluateConformance.test_evaluate_and_ctrl_c
    test_masks_and_arrays = IndexConformance.test_masks_and_arrays
    test_reset_of_some_slots = IndexConformance.test_reset_of_some_slots
    test_seed_sequence_gives_independent_streams = SeedingConformance.test_seed_sequence_gives_independent_streams
    test_seed_waits_for_the_next_reset = SeedingConformance.test_seed_waits_for_the_next_reset
    test_all_engines_go_on_alike = OnErrorConformance.test_all_engines_go_on_alike
    test_a_reset_that_raises_is_tried_with_a_new_env = (
        OnErrorConformance.test_a_reset_that_raises_is_tried_with_a_new_env
    )
    test_an_odd_reward_at_an_end = MisfitConformance.test_an_odd_reward_at_an_end
    test_observations_of_the_wrong_shape = MisfitConformance.test_observations_of_the_wrong_shape
    test_rewards_that_are_no_numbers = MisfitConformance.test_rewards_that_are_no_numbers
    test_two_things_wrong_with_one_row = MisfitConformance.test_two_things_wrong_with_one_row
    test_what_its_own_process_alone_can_unpickle = ValueConformance.test_what_its_own_process_alone_can_unpickle


class TestMixedRules(OnConfigurations, RuleConformance):
    """The same rules where the caller steps a shard itself."""

    matrix = "caller"
    short = Mixed


class Starts(LifecycleConformance, StartConformance):
    """What a start method can change: how envs begin and end, and what travels to their workers."""

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


class TestStarts(
    OnConfigurations,
    AttributeConformance,
    ErrorConformance,
    LifecycleConformance,
    SeedingConformance,
    StartConformance,
    TaskWorkerConformance,
    ValueConformance,
):
    """Rules that a start method might break: the fork server's workers get everything pickled."""

    matrix = "forkserver"
    short = Starts


class Spawns:
    """What spawn can change beyond that: each worker imports everything anew."""

    test_an_env_that_cannot_be_made = ErrorConformance.test_an_env_that_cannot_be_made
    test_closures_and_lambdas_travel = ErrorConformance.test_closures_and_lambdas_travel
    test_with_statement = LifecycleConformance.test_with_statement


class TestSpawns(TestStarts):
    """The same rules by spawn, which takes a second for each start."""

    matrix = "spawn"
    short = Spawns


class TestSchedules(OnConfigurations, ScheduleConformance):
    """Random schedules of send, recv and reset_async against a model."""

    matrix = "fast"


class Batches(BatchedConformance, BatchedRuleConformance, BatchedResetConformance, BatchedAttributeConformance):
    """Batched envs, beside single ones."""


class TestBatched(OnConfigurations, Batches):
    """The same, by two engines."""

    matrix = "batched"


class TestBatchedByCaller(OnConfigurations, Batches):
    """The same where the caller steps a shard itself."""

    matrix = "caller"
    short = BatchedConformance


class TestBatchedWorkers(OnConfigurations, BatchedWorkerConformance):
    """Batched envs whose workers die."""

    matrix = "by fork"


class TestWorkers(
    OnConfigurations,
    DeathConformance,
    AftermathConformance,
    RecoveryConformance,
    TimeoutConformance,
    OrderConformance,
    IdentityWorkerConformance,
):
    """What holds where envs live in other processes."""

    matrix = "by fork"


class TestStates(OnConfigurations, StateConformance):
    """States of envs."""

    matrix = "each"


class TestRestarts(
    OnConfigurations,
    RestartConformance,
    EpisodeSeedWorkerConformance,
    EvaluateWorkerConformance,
    LoadWorkerConformance,
    StartLimitWorkerConformance,
    RecordWorkerConformance,
    TaskWorkerConformance,
):
    """Workers that take the places of others."""

    matrix = "workers"


class TestRecycling(OnConfigurations, RecyclingConformance):
    """Workers that make way for others."""

    matrix = "by fork"
    short = ShortRecyclingConformance


@pytest.mark.sparse("form")
class TestSizes(OnConfigurations, SizeConformance):
    """Rows of 1 byte to 5 MiB."""

    matrix = "sizes"


@pytest.mark.sparse("form")
class TestSizesBesideDeaths(OnConfigurations, SizeWorkerConformance):
    """The same, beside workers that end."""

    matrix = "by fork"


@pytest.mark.long
class TestEverySize(OnConfigurations, Sized):
    """Each size by itself."""

    matrix = "sizes"

    @pytest.mark.timeout(300)
    @pytest.mark.parametrize("mode", AUTORESET_MODES)
    @pytest.mark.parametrize("size", SIZES[2:])
    @pytest.mark.parametrize("form", FORMS)
    def test_each_size(self, make: Make, form: str, size: int, mode: str) -> None:
        large = size in LARGE
        ledger = begin(make, Rows(form, (size, *((1,) if form == "box" else (size - 1,))), min(size, 99)), mode)
        self.lock_step(ledger, 3)
        self.portions(ledger, 1)
        play(ledger, 8 if large else 40, size)

    @pytest.mark.timeout(300)
    @pytest.mark.parametrize("mode", AUTORESET_MODES)
    def test_each_size_on_the_wire(self, make: Make, mode: str) -> None:
        """Sizes that pass a limit byte by byte, with whatever comes before the bytes in a message."""
        for limit in NEAR[1::3]:
            ledger = begin(make, Rows("object", tuple(range(limit - 400, limit + 1, 7))), mode)
            self.portions(ledger, 12)
            self.lock_step(ledger, 12)
            ledger.vec.close()
