"""VecMonitor: it records a VecEnv as Monitor records one env."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import sb3
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from vec_plays import MODES, VECTOR, env_fns, rows_by_recv, rows_by_step

from vecenvs import DummyVecEnv, SubprocVecEnv
from vecenvs.errors import EnvError
from vecenvs.testing.envs import CountingEnv, DyingEnv, FailingEnv, SampledEnv, counting_fns
from vecenvs.views import from_gymnasium
from vecenvs.wrappers import Monitor, VecMonitor, VecNormalize, load_results
from vecenvs.wrappers.base import VecEnvWrapper


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("play", [rows_by_step, rows_by_recv])
def test_episodes_as_monitor_has_them(play: Any, mode: str) -> None:
    fns = env_fns(VECTOR)
    with DummyVecEnv([lambda fn=fn: Monitor(fn()) for fn in fns], autoreset=mode) as vec:
        theirs = play(vec, 40)
    with VecMonitor(DummyVecEnv(fns, autoreset=mode)) as vec:
        ours = play(vec, 40)
    episodes = 0
    for rows, others in zip(ours, theirs, strict=True):
        for row, other in zip(rows, others, strict=False):
            assert ("episode" in row[4]) == ("episode" in other[4]) == row[2]
            if row[2]:
                assert row[4]["episode"]["l"] == other[4]["episode"]["l"]
                # Exact where the VecEnv still has the row's reward in float64: after a step whose env is not resetting.
                exact = play is rows_by_step and mode != "async"
                assert abs(row[4]["episode"]["r"] - other[4]["episode"]["r"]) <= (0 if exact else 1e-5)
                episodes += 1
    assert episodes > 10


def test_what_an_episode_has_counted_ends_with_it() -> None:
    """Also by a reset before its end, and by an exception: what follows counts from nothing, and others go on."""
    fns = [partial(CountingEnv, 0, 6), partial(FailingEnv, 1, at=3, length=6), partial(CountingEnv, 2, 6)]
    with VecMonitor(DummyVecEnv(fns)) as vec:
        vec.reset()
        for _ in range(2):
            vec.step([0] * 3)
        vec.reset([2])
        with pytest.raises(EnvError, match="env 1 raised"):
            vec.step([0] * 3)
        vec.reset([1])
        assert vec.episode_lengths.tolist() == [3, 0, 1]
        episodes: list[Any] = [[], [], []]
        rewards: list[Any] = [[], [], []]
        for _ in range(7):
            _, given, _, infos = vec.step([0] * 3)
            for slot, info in enumerate(infos):
                rewards[slot].append(float(given[slot]))
                episodes[slot] += [(info["episode"]["l"], info["episode"]["r"])] if "episode" in info else []
    assert [[length for length, _ in each] for each in episodes] == [[6], [6], [6]]
    assert episodes[1][0][1] == sum(rewards[1][:6])


def test_as_sb3() -> None:
    mine, theirs = VecMonitor(DummyVecEnv(env_fns(VECTOR))), sb3().VecMonitor(sb3().DummyVecEnv(env_fns(VECTOR)))
    mine.seed(5)
    theirs.seed(5)
    mine.reset()
    theirs.reset()
    for _ in range(40):
        _, _, dones, infos = mine.step(np.arange(3))
        _, _, _, their_infos = theirs.step(np.arange(3))
        for i in np.flatnonzero(dones):
            assert list(infos[i]["episode"]) == list(their_infos[i]["episode"])
            assert infos[i]["episode"]["l"] == their_infos[i]["episode"]["l"]
            assert infos[i]["episode"]["r"] == pytest.approx(their_infos[i]["episode"]["r"], abs=1e-5)
    assert mine.episode_count == theirs.episode_count
    mine.close()
    theirs.close()


def test_the_file(tmp_path: Path) -> None:
    for k in range(2):
        vec = VecMonitor(
            DummyVecEnv(counting_fns(2)), tmp_path / "run", info_keywords=("tag",), override_existing=k == 0
        )
        with vec:
            vec.reset()
            for t in range(10):
                vec.step([0, 0])
                if t == 6:
                    vec.reset([1])  # an episode cut short is not recorded
    found = load_results(tmp_path)
    assert found.columns["tag"].tolist() == [0, 1, 0] * 2
    assert found.r.tolist() == [15.0, 15.625, 15.0] * 2
    assert found.l.tolist() == [5] * 6
    assert (np.diff(found.t) >= 0).all()


def test_an_episode_that_a_worker_took_with_it_is_left_out(tmp_path: Path) -> None:
    fns = [partial(DyingEnv, 0, at=3, how="exit", lives_file=tmp_path / "lives", deaths=1)]
    with VecMonitor(SubprocVecEnv(fns, num_workers=1, on_failure="restart")) as vec:
        vec.reset()
        episodes = []
        for _ in range(12):
            _, _, _, infos = vec.step([0])
            episodes += [info["episode"] for info in infos if "episode" in info]
        assert [episode["l"] for episode in episodes] == [5]


class DoubledRewards(VecEnvWrapper):
    """A wrapper that changes rewards, but not `rewards64`."""

    def step_wait(self, timeout: float | None = None) -> Any:
        obs, rewards, dones, infos = self.venv.step_wait(timeout)
        return obs, rewards * 2, dones, infos


def test_rewards_as_a_wrapper_below_has_changed_them() -> None:
    with VecMonitor(DoubledRewards(DummyVecEnv(counting_fns(1, length=2)))) as vec:
        vec.reset()
        vec.step([0])
        assert vec.step([0])[3][0]["episode"]["r"] == 6.0


def test_over_gymnasiums_vector_envs() -> None:
    for mode in (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP):
        with VecMonitor(VecNormalize(from_gymnasium(SyncVectorEnv(counting_fns(2), autoreset_mode=mode)))) as vec:
            vec.reset()
            infos = [vec.step([0, 0])[3][0] for _ in range(5)]
            assert [info["episode"]["l"] for info in infos if "episode" in info] == [5]


@pytest.mark.parametrize("mode", ["same_step", "next_step"])
def test_an_early_reset_begins_anew(mode: str) -> None:
    """What had been summed up of the episode is not the next one's."""
    with VecMonitor(DummyVecEnv(counting_fns(2, length=3), autoreset=mode)) as vec:
        vec.reset()
        vec.step([0, 0])
        vec.step([0, 0])
        vec.reset([0])
        ended = [[info["episode"] for info in vec.step([0, 0])[3][:1] if "episode" in info] for _ in range(3)]
        assert [(episode["r"], episode["l"]) for step in ended for episode in step] == [(6.0, 3)]


def test_what_it_says_no_to() -> None:
    with DummyVecEnv([lambda: Monitor(SampledEnv(VECTOR))]) as vec, pytest.warns(UserWarning, match="Monitors already"):
        VecMonitor(vec)
    with DummyVecEnv(env_fns(VECTOR)) as vec:
        with pytest.raises(TypeError, match="info_keywords"):
            VecMonitor(vec, info_keywords="tag")
        with pytest.raises(ValueError, match="'r'"):
            VecMonitor(vec, info_keywords=("r",))
        monitored = VecMonitor(vec, info_keywords=("none",))
        with pytest.raises(KeyError, match="none"):
            rows_by_step(monitored, 50)
