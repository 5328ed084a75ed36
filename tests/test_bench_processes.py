"""The benchmark's fresh processes: the bare loops that are the limit, and the measurement of memory."""

from __future__ import annotations

import os
import signal
from typing import Any

import gymnasium as gym
import pytest

from vecenvs.bench import candidates, limit, workloads
from vecenvs.bench.child import Child
from vecenvs.bench.memory_use import weigh


class TestLimit:
    def test_adds_up_its_loops(self) -> None:
        with limit.BareLoops(workloads.workload("spin:0us,episode=10"), 2) as loops:
            reading = loops.run(0.02, 0.001)
            assert reading.steps > 0
            assert reading.rate > 0
            assert reading.steps / reading.rate >= 0.9 * 0.02, "the seconds asked for, not those of the warm-up"
            episodes = loops.episodes()
        assert episodes.steps == pytest.approx(10, rel=0.1)
        assert 0 < episodes.reset_share <= 1

    def test_envs_that_never_end_have_no_episodes(self) -> None:
        with limit.BareLoops(workloads.workload("spin:0us"), 1) as loops:
            loops.run(0.01, 0.01)
            assert loops.episodes() == limit.EpisodeStats(None, 0.0)

    def test_an_env_that_cannot_be_made_is_an_error_of_one_line(self) -> None:
        with pytest.raises(workloads.BadRequest, match="cannot make the env: TypeError.*no_such_option") as caught:
            limit.BareLoops(workloads.workload("CartPole-v1", {"no_such_option": 1}), 1)
        assert "\n" not in str(caught.value)

    def test_an_env_that_dies_is_an_error_with_its_exit_code(self) -> None:
        with limit.BareLoops(Dying(), 1) as loops, pytest.raises(workloads.BadRequest, match="exit code 7"):
            loops.run(0.01, 0.01)

    def test_resets_when_an_episode_ends_and_only_then(self) -> None:
        env = workloads.workload("spin:0us,episode=4")()
        loop = limit.BareLoop(env, [0])
        env.reset()
        loop.step(9)
        assert loop.episodes == 2


class Dying:
    """An env function whose env ends its process at the 20th step."""

    def __call__(self) -> gym.Env[Any, Any]:
        env = workloads.workload("spin:0us")()
        taken = iter(range(20))
        step = env.step
        env.step = lambda action: step(action) if next(taken, None) is not None else os._exit(7)  # type: ignore[method-assign]
        return env


class TestChild:
    def test_is_deaf_to_ctrl_c_and_leaves_when_the_pipe_closes(self) -> None:
        child = Child(_tell_sigint)
        assert child.receive() is True
        child.close()
        child.close()


def _tell_sigint(connection: Any) -> None:
    signal.raise_signal(signal.SIGINT)
    connection.send(True)
    connection.recv()


class TestWeigh:
    def test_counts_workers_and_what_they_have(self) -> None:
        make_vec = candidates.from_env_fn(workloads.workload("rows:64x64"))
        found = weigh(candidates.VecCandidate(candidates.parse("subproc:w=2,fork"), make_vec), 256)
        assert found is not None
        assert found.processes == 2
        assert found.parent > 256 * 64 * 64  # at least the rows that it has received
        assert 0 < found.workers < found.total

    def test_what_cannot_be_made_weighs_nothing(self) -> None:
        make_vec = candidates.from_env_fn(workloads.workload("spin:0us"))
        assert weigh(candidates.VecCandidate(candidates.parse("subproc:w=5"), make_vec), 4) is None
