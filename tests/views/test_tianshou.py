"""The view for tianshou beside a loop over the same envs that does what tianshou's DummyVectorEnv documents."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import gymnasium
import numpy as np
import pytest
from conftest import Configuration
from gymnasium import spaces

from vecenvs import DummyVecEnv, EnvError, VecNormalize
from vecenvs.testing.compare import assert_same
from vecenvs.testing.envs import FailingEnv, SampledEnv, counting_fns
from vecenvs.views import as_tianshou

matrix = "contract"

OBSERVATIONS = {
    "box": spaces.Box(0, 255, (4, 4), np.uint8),
    "number": spaces.Discrete(5),
    "dict": spaces.Dict({"x": spaces.Box(-1.0, 1.0, (5,), np.float32), "y": spaces.MultiBinary(3)}),
}


class Stacked:
    """Single envs in a loop; their rows by `np.stack`, and infos with the env's index."""

    def __init__(self, env_fns: Sequence[Any]) -> None:
        self.envs = [make() for make in env_fns]

    def reset(self, ids: Sequence[int], **kwargs: Any) -> tuple[Any, Any]:
        obs, infos = zip(*[self.envs[i].reset(**kwargs) for i in ids], strict=True)
        return np.stack(obs), np.array(infos)

    def step(self, actions: Any, ids: Sequence[int]) -> tuple[Any, ...]:
        rows = [self.envs[i].step(action) for i, action in zip(ids, actions, strict=True)]
        for i, row in zip(ids, rows, strict=True):
            row[4]["env_id"] = i
        return tuple(np.stack(column) for column in zip(*rows, strict=True))

    def seed(self, seed: int) -> None:
        for i, env in enumerate(self.envs):
            env.reset(seed=seed + i)


def fns(space: spaces.Space[Any], n: int) -> list[Any]:
    return [functools.partial(SampledEnv, deepcopy(space), end=0.3) for _ in range(n)]


@pytest.mark.parametrize("space", OBSERVATIONS.values(), ids=list(OBSERVATIONS))
def test_rows_are_those_of_a_loop(configuration: Configuration, space: spaces.Space[Any]) -> None:
    rng = np.random.default_rng()
    n, seed = int(rng.integers(1, 6)), int(rng.integers(1000))
    theirs = Stacked(fns(space, n))
    ours = as_tianshou(configuration.make_vec(fns(space, n), autoreset="disabled"))
    assert (len(ours), ours.env_num, ours.is_async) == (n, n, False)
    assert ours.seed(seed) == [[seed + i] for i in range(n)]
    theirs.seed(seed)
    everyone = list(range(n))
    assert_same(ours.reset(), theirs.reset(everyone))
    for t in range(30):
        ids = rng.permutation(n)[: int(rng.integers(1, n + 1))].tolist() if t % 3 else everyone
        actions = np.array([ours.action_space[i].sample() for i in ids])
        got, wanted = ours.step(actions, None if ids == everyone else ids), theirs.step(actions, ids)
        assert_same(got, wanted)
        ended = [i for i, over in zip(ids, got[2] | got[3], strict=True) if over]
        if ended:
            given = {"seed": seed + t} if t % 2 else {}
            assert_same(ours.reset(np.array(ended), **given), theirs.reset(ended, **given))
    ours.close()
    assert ours.is_closed


def test_attributes_and_errors() -> None:
    view = as_tianshou(DummyVecEnv(counting_fns(3), autoreset="disabled"))
    assert all(isinstance(space, gymnasium.Space) for space in (*view.action_space, *view.observation_space))
    view.set_env_attr("mark", 7, [2, 0])
    assert view.get_env_attr("mark", 2) == [7]
    view.reset()
    with pytest.raises(ValueError, match="2 actions for 3 envs"):
        view.step([0, 0])
    view.close()
    for wrong, match in (({}, "autoreset='disabled'"), ({"autoreset": "next_step"}, "autoreset='disabled'")):
        with DummyVecEnv(counting_fns(1), **wrong) as vec, pytest.raises(ValueError, match=match):
            as_tianshou(vec)


def test_an_env_that_raises_says_how_to_go_on() -> None:
    with DummyVecEnv([lambda: FailingEnv()], autoreset="disabled") as vec:
        view = as_tianshou(vec)
        view.reset()
        for _ in range(2):
            with pytest.raises(EnvError) as caught:
                view.step([1])
        assert "reset([0]) it first" in str(caught.value)


def test_wrappers_change_its_rows() -> None:
    with VecNormalize(DummyVecEnv(counting_fns(2), autoreset="disabled")) as vec:
        view = as_tianshou(vec)
        view.reset()
        obs, rewards, *_ = view.step([0, 0])
        assert obs.dtype == np.float32
        assert (rewards.astype(np.float32) == vec.normalize_reward(vec.get_original_reward())).all()
