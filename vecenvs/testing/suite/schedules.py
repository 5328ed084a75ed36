"""Random schedules of send, recv, reset_async, step, timeouts, attributes and failures, against a plain model."""

from __future__ import annotations

import functools
import os

import pytest

from vecenvs.testing.envs.scheduled import ScheduledEnv
from vecenvs.testing.model import Player
from vecenvs.testing.suite.base import Conformance, Make
from vecenvs.worker.autoreset import AUTORESET_MODES

ENVS = 5
KINDS = [
    "send", "send", "send", "recv", "recv", "recv_group", "recv_timeout", "reset_async", "step", "get_attr", "set_attr",
]  # fmt: skip
EXAMPLES = int(os.environ.get("VECENVS_SCHEDULES", "25"))  # per mode and configuration; each of up to 50 operations


class ScheduleConformance(Conformance):
    """Each command is answered exactly once, in any schedule."""

    @pytest.mark.timeout(300)
    @pytest.mark.parametrize("mode", AUTORESET_MODES)
    def test_schedules(self, make: Make, mode: str) -> None:
        # Not at the top of this file: workers import it with the suite, whose env functions they unpickle.
        from hypothesis import HealthCheck, given, settings
        from hypothesis import strategies as st

        operations = st.lists(
            st.tuples(st.sampled_from(KINDS), st.integers(0, 2**ENVS - 1), st.integers(0, 9)), max_size=50
        )
        env_fns = [functools.partial(ScheduledEnv, tag) for tag in range(ENVS)]
        vec = make(env_fns, autoreset=mode)
        player = Player(vec)

        @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        @given(operations)
        def play(schedule: list[tuple[str, int, int]]) -> None:
            nonlocal vec, player
            try:
                for kind, mask, number in schedule:
                    player.play(kind, mask, number)
                player.drain()
            except BaseException:  # the next example, perhaps a smaller one, needs a sound VecEnv
                vec.close()
                vec = make(env_fns, autoreset=mode)
                player = Player(vec)
                raise

        play()
        assert player.answers > 0
