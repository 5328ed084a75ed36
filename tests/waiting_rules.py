"""The conformance suite of envs that wait, on any engine, without what does not hold of threads or of coroutines."""

from __future__ import annotations

from typing import Any

from vecenvs.testing.envs.awaiting import awaiting
from vecenvs.testing.suite import (
    AgentsConformance,
    AutoresetConformance,
    Conformance,
    RowConformance,
    RuleConformance,
    ScheduleConformance,
    SizeConformance,
    TrajectoryConformance,
)


class WaitingRules(
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
    test_batched_envs_go_on = None
    test_a_batched_env_without_the_pair = None
    test_counts_of_batched_envs = None
    test_tasks_of_batched_envs = None
    test_tasks_and_wrong_arguments = None
    test_batched_envs_that_reset_themselves = None
    test_what_env_functions_share = None
    test_a_batched_env_ends_the_episodes_of_all_its_envs = None
    test_a_batched_env_has_none = None
    test_a_batched_env_that_raises_too_often = None
    test_a_batched_env_whose_reset_raises = None
    test_evaluate_of_batched_envs = None


class WaitingRows(AutoresetConformance):
    """Rows, and when they come."""

    test_shapes_and_types_of_a_step = RowConformance.test_shapes_and_types_of_a_step
    test_schedules = ScheduleConformance.test_schedules


class Coroutines(Conformance):
    """Comes before the suite: what does not hold of coroutines as `awaiting` makes them."""

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
    # Spares have threads.
    test_rows_with_spares = None
    test_what_belongs_to_a_slot = None
    test_resets_are_those_of_spares = None
    test_spares_of_envs_that_raise = None
    test_spares_are_closed = None
    test_wrong_spares = None
    test_envs_that_have_no_spares = None


class InThreads(Conformance):
    """Has the engine of the next class run envs in threads."""

    def make_vec(self, env_fns: Any, **common: Any) -> Any:
        return super().make_vec(env_fns, **{"concurrency": "threads", **common})


class AsCoroutines(Coroutines):
    """Has the engine of the next class run envs as coroutines."""

    def make_vec(self, env_fns: Any, **common: Any) -> Any:
        return super().make_vec(awaiting(env_fns), concurrency="asyncio", **common)
