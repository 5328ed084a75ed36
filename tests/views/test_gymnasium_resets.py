"""Seeds, options and reset masks of the Gymnasium view."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from gymnasium.wrappers import TransformObservation
from gymnasium.wrappers.vector import VectorizeTransformObservation
from gymnasium_parity import MODES, assert_parity, info_fns, ours, sampled_fns, sync

from vecenvs import DummyVecEnv
from vecenvs.testing.compare import assert_same
from vecenvs.testing.envs import NESTED, SPACES, counting_fns
from vecenvs.views import as_gymnasium

matrix = "contract"
ZEROS = np.zeros(4, np.int64)


@pytest.mark.parametrize("mode", list(MODES))
@pytest.mark.parametrize("seed", [7, [3, 1, 4, 1], [None, 5, None, 2]], ids=str)
def test_seeds(configuration: Any, mode: str, seed: Any) -> None:
    fns = sampled_fns(SPACES["float64"], n=4) if None not in np.atleast_1d(seed) else info_fns()
    assert_parity(ours(configuration, fns, mode), sync(fns, mode), seed=seed)


def test_seeds_reach_their_envs(configuration: Any) -> None:
    env = ours(configuration, counting_fns(3), "next_step")
    env.reset(seed=np.int64(5))
    env.reset(seed=[9, None, 2], options={"a": 1})
    env.reset(seed=[1, 2, 3], options={"reset_mask": np.array([False, False, True]), "b": 2})
    env.reset(seed=100, options={"reset_mask": np.array([False, True, True])})
    env.reset()
    assert env.get_attr("seeds") == ([5, 9, None], [6, None, 101, None], [7, 2, 3, 102, None])
    some = {"a": 1}
    assert env.get_attr("options") == ([None, some, None], [None, some, {}, None], [None, some, {"b": 2}, {}, None])
    env.close()


@pytest.mark.parametrize("mode", list(MODES))
@pytest.mark.parametrize("space", [SPACES["uint8"], NESTED, SPACES["objects_inside"], SPACES["text"]], ids=str)
def test_masked_resets_at_any_time(mode: str, space: Any) -> None:
    """A mask may name envs in mid-episode, and envs that the next step would reset."""
    fns = sampled_fns(space)
    mine, theirs = as_gymnasium(DummyVecEnv(fns, autoreset=mode)), sync(fns, mode)
    assert assert_parity(mine, theirs, masks=True) > 3
    mine, theirs = as_gymnasium(DummyVecEnv(fns, autoreset=mode)), sync(fns, mode)
    assert_same(mine.reset(seed=1), theirs.reset(seed=1))
    rng = np.random.default_rng(0)
    over = np.zeros(3, dtype=bool)
    for t in range(20):
        mask = rng.random(3) < 0.4
        if mode == "disabled":
            mask |= over
        if mask.any():
            pair = [env.reset(seed=[t, t, t], options={"reset_mask": mask.copy()}) for env in (mine, theirs)]
            assert_same(*pair, f"reset {t}")
        actions = theirs.action_space.sample()
        got, wanted = mine.step(actions), theirs.step(actions)
        assert_same(got[:4], wanted[:4], f"step {t}")
        over = wanted[2] | wanted[3]
    mine.close()
    theirs.close()


def test_options_of_the_caller_stay_as_they_are(configuration: Any) -> None:
    env = ours(configuration, info_fns(), "next_step")
    env.reset()
    mask = np.array([True, False, True, False])
    options = {"reset_mask": mask, "level": 3}
    for _ in range(2):
        _, infos = env.reset(options=options)
        assert infos["_episode"].tolist() == [True, False, True, False]
        assert infos["options"]["level"].tolist() == [3, 0, 3, 0]
        assert list(options) == ["reset_mask", "level"]
    assert mask.tolist() == [True, False, True, False]
    env.close()


def test_rows_given_before_a_masked_reset_are_not_written_into() -> None:
    env = as_gymnasium(DummyVecEnv(info_fns(), autoreset="next_step"))
    env.reset()
    before = env.step(ZEROS)[0]
    kept = before.copy()
    after, _ = env.reset(options={"reset_mask": np.array([True, False, False, False])})
    assert_same(before, kept)
    assert after[:, 1].tolist() == [0, 1, 1, 1]
    env.close()


@pytest.mark.parametrize("mode", list(MODES))
@pytest.mark.parametrize("space", [SPACES["uint8"], NESTED], ids=str)
def test_rows_that_a_caller_has_changed_do_not_come_back(mode: str, space: Any) -> None:
    """By a masked reset, also one by `reset_async`, and after rows that a reset gave."""
    mine, theirs = as_gymnasium(DummyVecEnv(sampled_fns(space), autoreset=mode)), sync(sampled_fns(space), mode)
    theirs.action_space.seed(3)
    for t in range(8):
        if t % 4 == 0:
            given = [env.reset(seed=t)[0] for env in (mine, theirs)]
        else:
            actions = theirs.action_space.sample()
            given = [env.step(actions)[0] for env in (mine, theirs)]
        for turn in range(2):
            for obs in given:
                spoil(obs)
            options = {"reset_mask": np.array([turn == 0, False, turn == 1])}
            mine.reset_async(seed=t, options=options)
            given = [mine.reset_wait()[0], theirs.reset(seed=t, options=dict(options))[0]]
            assert_same(*given, f"step {t}")
        if mode == "disabled":
            given = [env.reset(seed=t)[0] for env in (mine, theirs)]
    mine.close()
    theirs.close()


def spoil(obs: Any) -> None:
    for part in obs.values() if isinstance(obs, dict) else obs if isinstance(obs, tuple) else [obs]:
        if isinstance(part, np.ndarray):
            part[...] = 1
        else:
            spoil(part)


def test_masked_resets_below_a_wrapper_that_writes_into_rows() -> None:
    """Gymnasium's VectorizeTransformObservation does."""
    found = []
    for env in (as_gymnasium(DummyVecEnv(counting_fns(2), autoreset="next_step")), sync(counting_fns(2), "next_step")):
        space = env.single_observation_space
        moved = VectorizeTransformObservation(
            env, TransformObservation, func=lambda obs: obs + 1, observation_space=space
        )
        moved.reset()
        masks = (np.array([True, False]), np.array([False, True]))
        found.append([moved.reset(options={"reset_mask": mask})[0].tolist() for mask in masks])
        env.close()
    assert found[0] == found[1]


WRONG_MASKS: dict[str, tuple[Any, type[Exception]]] = {
    "must be a numpy array, not list": ([True, False, False, False], TypeError),
    "has shape (3,)": (np.ones(3, bool), ValueError),
    "has shape (4, 1)": (np.ones((4, 1), bool), ValueError),
    "has dtype int64": (np.ones(4, np.int64), TypeError),
    "names no env": (np.zeros(4, bool), ValueError),
}


@pytest.mark.parametrize("says", list(WRONG_MASKS))
def test_wrong_masks(says: str) -> None:
    mask, error = WRONG_MASKS[says]
    mine, theirs = as_gymnasium(DummyVecEnv(info_fns(), autoreset="next_step")), sync(info_fns(), "next_step")
    mine.reset()
    theirs.reset()
    with pytest.raises(error):
        theirs.reset(options={"reset_mask": mask})
    for reset in (mine.reset, mine.reset_async):
        with pytest.raises(error, match=re.escape(says)):
            reset(options={"reset_mask": mask})
    mine.step(ZEROS)
    mine.close()
    theirs.close()


@pytest.mark.parametrize("seed", [[1, 2, 3], [1, 2, 3, 4, 5], []], ids=str)
def test_wrong_number_of_seeds(seed: list[int]) -> None:
    env = as_gymnasium(DummyVecEnv(info_fns(), autoreset="next_step"))
    for options in (None, {"reset_mask": np.array([True, True, True, False])}):
        with pytest.raises(ValueError, match=f"{len(seed)} seeds for 4 envs"):
            env.reset(seed=seed, options=options)
    env.close()
