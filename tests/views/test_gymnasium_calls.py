"""call, get_attr, set_attr and render of the Gymnasium view."""

from __future__ import annotations

import functools
import gc
import weakref
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv
from gymnasium_parity import asynchronous, info_fns, ours, sync

from vecenvs import Batched, DummyVecEnv, EnvError, SubprocVecEnv
from vecenvs.testing.compare import assert_same
from vecenvs.testing.envs import RenderingEnv, counting_fns
from vecenvs.testing.envs.batches import ArrayBatch
from vecenvs.views import as_gymnasium, from_gymnasium

matrix = "contract"


def wrapped(tag: int) -> Any:
    return lambda: gym.wrappers.TimeLimit(info_fns()[tag](), 7)


WRAPPED = [wrapped(tag) for tag in range(3)]


def test_call_and_get_attr(configuration: Any) -> None:
    mine, theirs = ours(configuration, WRAPPED, "next_step"), sync(WRAPPED, "next_step")
    for env in (mine, theirs):
        env.reset(seed=3)
    for name in ("tag", "episode", "_max_episode_steps", "np_random_seed", "class_name"):
        assert_same(mine.get_attr(name), theirs.get_attr(name), name)
    assert_same(mine.call("scale", 3.0, offset=2.0), theirs.call("scale", 3.0, offset=2.0))
    assert mine.np_random_seed == theirs.np_random_seed == (3, 4, 5)
    for ours_one, theirs_one in zip(mine.np_random, theirs.np_random, strict=True):
        assert_same(ours_one.random(3), theirs_one.random(3))
    for env in (mine, theirs):
        with pytest.raises(AttributeError, match="missing"):
            env.get_attr("missing")
        assert env.get_attr("tag") == (0, 1, 2)  # a call that failed is over
    mine.close()
    theirs.close()


class Scaling(ArrayBatch):
    """A batched env with a method of its own."""

    def scale(self, by: float) -> None:
        self.speeds *= by


def test_names_of_batched_envs(configuration: Any) -> None:
    """A name is passed on to a batched env that has no single envs here on which to run a function."""
    view = as_gymnasium(configuration.make_vec([Batched(functools.partial(Scaling, counting_fns(3)), 3)] * 2))
    assert view.get_attr("speeds") == (0.0, 0.5, 1.0) * 2
    view.set_attr("speeds", [1.0, 2.0, 3.0] * 2)
    assert view.get_attr("speeds") == (1.0, 2.0, 3.0) * 2
    with pytest.raises(AttributeError, match="missing"):
        view.call("missing", 2)
    for arguments in ((), (2.0,)):
        with pytest.raises(EnvError, match="Scaling steps all its envs at once: there is no env 0 of which to call"):
            view.call("scale", *arguments)
    view.close()


def test_a_closed_one_holds_no_rows() -> None:
    """Also where a program keeps it."""
    view = as_gymnasium(DummyVecEnv(counting_fns(2)))
    view.reset()
    rows = weakref.ref(view._last)
    view.close()
    gc.collect()
    assert rows() is None
    with pytest.raises(gym.error.ClosedEnvironmentError):
        view.step(np.zeros(2, np.int64))


def test_the_envs_themselves() -> None:
    for vector_env in (as_gymnasium(DummyVecEnv(WRAPPED)), sync(WRAPPED, "next_step")):
        with from_gymnasium(vector_env) as vec:
            for envs in (vector_env.envs, vec.envs):
                assert [env.get_wrapper_attr("tag") for env in envs] == [0, 1, 2]
    with from_gymnasium(as_gymnasium(SubprocVecEnv(WRAPPED, 2))) as vec, pytest.raises(AttributeError, match="envs"):
        _ = vec.envs


@pytest.mark.parametrize("name", ["reset", "step", "close"])
def test_call_refuses_what_has_its_own_method(configuration: Any, name: str) -> None:
    env = ours(configuration, WRAPPED, "next_step")
    with pytest.raises(ValueError, match=f"use the method {name}"):
        env.call(name)
    assert env.get_attr("tag") == (0, 1, 2)
    env.close()


def test_set_attr(configuration: Any) -> None:
    mine, theirs = ours(configuration, WRAPPED, "next_step"), asynchronous(WRAPPED, "next_step")
    for env in (mine, theirs):
        env.reset()
        env.set_attr("tag", [10, 20, 30])
        env.set_attr("episode", (1, 2, 3))
        env.set_attr("new", "everywhere")
        env.set_attr("_max_episode_steps", 2)
        with pytest.raises(ValueError, match="2"):
            env.set_attr("tag", [1, 2])
    for name in ("tag", "episode", "new", "_max_episode_steps"):
        assert_same(mine.get_attr(name), theirs.get_attr(name), name)
    for _ in range(3):
        assert_same(mine.step(np.zeros(3, np.int64)), theirs.step(np.zeros(3, np.int64)))
    mine.close()
    theirs.close()


def test_a_new_attribute_goes_to_the_outermost_wrapper_as_in_gymnasium() -> None:
    with DummyVecEnv(WRAPPED, autoreset="next_step") as vec:
        as_gymnasium(vec).set_attr("new", 1)
        assert vec.call(lambda env: ("new" in vars(env), "new" in vars(env.unwrapped)), None) == [(True, False)] * 3


def test_render_of_batched_envs() -> None:
    fns = [lambda: RenderingEnv(1, "rgb_array"), lambda: RenderingEnv(2, "rgb_array")]
    theirs = SyncVectorEnv(fns)
    with from_gymnasium(SyncVectorEnv(fns)) as vec:
        mine = as_gymnasium(vec)
        mine.reset()
        theirs.reset()
        assert_same(mine.render(), theirs.render())
    theirs.close()


@pytest.mark.parametrize("render_mode", ["rgb_array", "human", None])
def test_render(configuration: Any, render_mode: str | None) -> None:
    fns = [lambda: RenderingEnv(1, render_mode), lambda: RenderingEnv(2, render_mode)]
    mine, theirs = ours(configuration, fns, "next_step"), sync(fns, "next_step")
    mine.reset()
    theirs.reset()
    assert mine.render_mode == render_mode
    assert_same(mine.render(), theirs.render())
    mine.close()
    theirs.close()
