"""`as_pfrl` and `compat.pfrl.MultiprocessVectorEnv` against pfrl's contract, with plain envs beside them."""

from __future__ import annotations

import abc
import functools
import gc
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from vecenvs import Batched
from vecenvs.backends.dummy import DummyVecEnv
from vecenvs.compat.pfrl import MultiprocessVectorEnv
from vecenvs.errors import AlreadySteppingError, ClosedError, EnvError, StepTimeout
from vecenvs.testing.compare import assert_same
from vecenvs.testing.envs import NESTED, SPACES, CountingEnv, FailingEnv, GatedEnv, SampledEnv, counting_fns
from vecenvs.views.pfrl import MODES, PfrlView, as_pfrl
from vecenvs.wrappers.base import VecEnvWrapper

matrix = "contract"


def test_a_closed_one_holds_no_rows() -> None:
    """Also where a program keeps it."""
    view = as_pfrl(DummyVecEnv(counting_fns(1)))
    view.reset()
    while not view.step([0])[2][0]:
        pass
    rows = [weakref.ref(view.last_obs[0]), weakref.ref(view._first_obs[0])]
    view.close()
    gc.collect()
    assert all(row() is None for row in rows)
    assert view.last_obs == (None,)


def test_rows_that_change_are_refused() -> None:
    vec = DummyVecEnv(counting_fns(1), copy=False)
    with pytest.raises(ValueError, match="pfrl keeps the last step's observations: make the VecEnv with copy=True"):
        as_pfrl(vec)
    vec.close()


@pytest.fixture(params=MODES)
def view_of(configuration: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    """Make views of VecEnvs on the backend under test; close them."""
    made: list[PfrlView] = []

    def make(env_fns: Any, **kwargs: Any) -> PfrlView:
        made.append(as_pfrl(configuration.make_vec(env_fns, autoreset=request.param), **kwargs))
        return made[-1]

    yield make
    for view in made:
        view.close()


def compare_run(view: PfrlView, env_fns: list[Callable[[], Any]], steps: int) -> int:
    """Drive the view as pfrl's training loop does, and plain envs; return the number of ended episodes."""
    envs = [fn() for fn in env_fns]
    view.seed([5 + i for i in range(len(envs))])
    expected = tuple(env.reset(seed=5 + i)[0] for i, env in enumerate(envs))
    assert_same(plain(view.reset()), plain(expected), "first observations")
    ended = 0
    for step in range(steps):
        actions = [env.action_space.sample() for env in envs]
        obs, rewards, dones, infos = view.step(actions)
        rows = [env.step(action) for env, action in zip(envs, actions, strict=True)]
        assert_same(plain(obs), plain(tuple(row[0] for row in rows)), f"step {step}: obs")
        assert_same(rewards, tuple(float(row[1]) for row in rows), f"step {step}: rewards")
        assert_same(dones, tuple(bool(row[2] or row[3]) for row in rows), f"step {step}: dones")
        truncated = [{"TimeLimit.truncated": True} if row[3] and not row[2] else {} for row in rows]
        assert_same(infos, tuple({**row[4], **t} for row, t in zip(rows, truncated, strict=True)), f"step {step}")
        skip = np.logical_not(dones)
        expected = tuple(env.reset()[0] if dones[i] else rows[i][0] for i, env in enumerate(envs))
        assert_same(plain(view.reset(skip)), plain(expected), f"step {step}: after the reset")
        assert view.last_obs is not None
        ended += sum(dones)
    return ended


def plain(value: Any) -> Any:
    """Take numpy's scalars for arrays: a sample may be one, a row may be the other."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(plain(item) for item in value)
    return np.asarray(value) if isinstance(value, np.generic) else value


@pytest.mark.parametrize("space", ["float64", "discrete", "multibinary", "nested", "tuple", "text", "objects_inside"])
def test_rows_of_any_space(view_of: Any, space: str) -> None:
    fns = [functools.partial(SampledEnv, SPACES[space]) for _ in range(3)]
    assert compare_run(view_of(fns), fns, 25) > 3


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_gymnasiums_envs(view_of: Any, env_id: str) -> None:
    fns = [functools.partial(gymnasium.make, env_id, max_episode_steps=12) for _ in range(3)]
    assert compare_run(view_of(fns), fns, 30) >= 3


def test_types_are_python_s(view_of: Any) -> None:
    view = view_of([functools.partial(gymnasium.make, "Pendulum-v1") for _ in range(2)])
    obs = view.reset()
    assert type(obs) is tuple
    rows = view.step(np.zeros((2, 1), np.float32))
    assert [type(row) for row in rows] == [tuple] * 4
    assert [type(row[0]) for row in rows[1:]] == [float, bool, dict]
    assert view.num_envs == 2
    assert view.observation_space.shape == (3,)
    assert view.unwrapped is view
    assert view.spec.id == "Pendulum-v1"


def test_masked_envs_are_left_alone(view_of: Any) -> None:
    view = view_of(counting_fns(3))
    assert view.reset([True, True, True]) == (None, None, None)
    first = view.reset()
    obs, _, _, _ = view.step([0, 1, 2])
    for full in (np.ones(3), [1, 1, 1], [True] * 3):
        assert view.reset(full) == obs
    again = view.reset([False, True, 0])
    assert again[1] is obs[1]
    assert_same(again, (first[0] + [0, 1, 0], obs[1], first[2] + [0, 1, 0]))
    assert view.vec.get_attr("episode") == [2, 1, 2]
    for mask in ([True], [False] * 4):
        with pytest.raises(ValueError, match="mask of length"):
            view.reset(mask)


def test_an_ended_env_needs_a_reset(view_of: Any) -> None:
    view = view_of([functools.partial(CountingEnv, 0, 2), functools.partial(CountingEnv, 1, 9)])
    view.reset()
    view.step([0, 0])
    assert view.step([0, 0])[2] == (True, False)
    with pytest.raises(EnvError, match=r"env 0 has ended its episode: call reset\(mask\) first, with mask\[0\] False"):
        view.step([0, 0])
    view.reset([False, True])
    assert view.step([0, 0])[2] == (False, False)


def test_nothing_is_stepped_while_an_env_needs_a_reset(view_of: Any) -> None:
    view = view_of([functools.partial(CountingEnv, i, 1 if i else 9) for i in range(3)])
    first = view.reset()
    obs, _, dones, _ = view.step([0, 0, 0])
    assert dones == (False, True, True)
    with pytest.raises(EnvError, match=r"env 1 has ended .* mask\[1\] False") as caught:
        view.step([0, 0, 0])
    assert [error.index for error in caught.value.errors] == [1, 2]
    again = view.reset([True, False, True])
    assert_same(again, (obs[0], first[1] + [0, 1, 0], obs[2]))
    with pytest.raises(EnvError, match="env 2"):
        view.step([0, 0, 0])
    view.reset([True, True, False])
    assert view.step([0, 0, 0])[0][0][2] == 2  # its second step


def test_a_reset_of_some_before_their_end(view_of: Any) -> None:
    """Pfrl's loops limit the length of episodes themselves; an end and a reset that it asks for may come together."""
    view = view_of([functools.partial(CountingEnv, i, 3) for i in range(2)])
    view.reset()
    view.step([0, 0])
    view.reset([True, False])
    view.step([0, 0])
    obs, _, dones, _ = view.step([0, 0])
    assert dones == (True, False)
    assert_same(obs, (np.array([0, 1, 3]), np.array([1, 2, 2])))
    assert_same(view.reset([False, False]), (np.array([0, 2, 0]), np.array([1, 3, 0])))
    assert view.vec.get_attr("episode") == [2, 3]


def test_a_seed_for_an_env_that_has_ended(view_of: Any) -> None:
    """Its next episode begins with that seed."""
    fns = [functools.partial(gymnasium.make, "CartPole-v1", max_episode_steps=1) for _ in range(2)]
    view, env = view_of(fns), fns[0]()
    view.seed(1)
    view.reset()
    view.step([0, 0])
    view.seed([8, 9])
    obs = view.reset()
    assert_same(obs, tuple(env.reset(seed=seed)[0] for seed in (8, 9)))
    env.close()


def test_an_error_beside_an_end(view_of: Any) -> None:
    """The end of the other env's episode is in `error.batch`, and is not lost."""
    view = view_of([functools.partial(FailingEnv, 0), functools.partial(CountingEnv, 1, 1)])
    view.reset()
    with pytest.raises(EnvError, match="env 0 failed in step") as caught:
        view.step([0, 0])
    batch = caught.value.batch
    assert batch is not None
    assert (batch.indices.tolist(), batch.terminated.tolist()) == ([1], [True])
    with pytest.raises(EnvError, match="env 1 has ended its episode"):
        view.step([0, 0])
    obs = view.reset([False, False])
    assert_same(obs, (np.array([0, 2, 0]), np.array([1, 2, 0])))


def test_an_error_in_a_reset(view_of: Any) -> None:
    """The other envs have been reset, and need no second reset."""
    view = view_of([functools.partial(CountingEnv, 0), functools.partial(FailingEnv, 1, "reset", 2)])
    view.reset()
    view.step([0, 0])
    with pytest.raises(EnvError, match="env 1 failed in reset"):
        view.reset()
    assert_same(view.last_obs[0], np.array([0, 2, 0]))
    assert_same(view.reset([True, False]), (np.array([0, 2, 0]), np.array([1, 2, 0])))


@pytest.mark.parametrize("where", ["step", "reset"])
def test_rows_beside_an_env_that_raises_are_the_last_ones(view_of: Any, where: str) -> None:
    view = view_of([functools.partial(CountingEnv, 0), functools.partial(FailingEnv, 1, where, 2)])
    view.reset()
    view.step([0, 0])
    with pytest.raises(EnvError, match="env 1 raised ToyError"):
        view.step([0, 0]) if where == "step" else view.reset()
    assert view.reset([True, False])[0].tolist() == ([0, 1, 2] if where == "step" else [0, 2, 0])
    assert view.last_obs[1].tolist() == [1, 2, 0]


def test_arguments_it_does_not_have() -> None:
    for name in ("autoreset", "env", "speed"):
        with pytest.raises(TypeError, match=f"^MultiprocessVectorEnv has no argument '{name}'.*: it has time_limit, "):
            MultiprocessVectorEnv(counting_fns(1), **{name: 1})


def test_a_step_that_timed_out_is_finished_later(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    fns = [functools.partial(GatedEnv, i, gate, where, 2) for i, where in enumerate(("never", "step"))]
    env = MultiprocessVectorEnv(fns, num_workers=2, step_timeout=1.0)
    env.reset()
    env.step([0, 0])
    with pytest.raises(StepTimeout, match="Wait again"):
        env.step([0, 0])
    with pytest.raises(AlreadySteppingError, match="step_wait first"):
        env.step([0, 0])
    with pytest.raises(StepTimeout):
        env.step_wait(timeout=0.01)
    gate.touch()
    obs, rewards, dones, infos = env.step_wait()
    assert_same(obs, (np.array([0, 1, 2]), np.array([1, 1, 2])))
    assert env.last_obs is obs
    assert (rewards, dones) == ((2.0, 2.125), (False, False))
    assert all("TimeLimit.truncated" not in info for info in infos)
    env.step([0, 0])
    env.close()
    with pytest.raises(AssertionError, match="closed"):
        env.step_wait()


@pytest.mark.parametrize("ends", ["terminated", "truncated", "both"])
def test_time_limits(view_of: Any, ends: str) -> None:
    done = view_of(counting_fns(1, length=1, ends=ends))
    continuing = view_of(counting_fns(1, length=1, ends=ends), time_limit="needs_reset")
    limit = {"TimeLimit.truncated": True} if ends == "truncated" else {}
    for view, expected, extra in (
        (done, True, limit),
        (continuing, ends != "truncated", {**limit, "needs_reset": True} if limit else {}),
    ):
        view.reset()
        _, _, dones, infos = view.step([0])
        assert dones == (expected,)
        assert infos == ({"tag": 0, "t": 1, **extra},)


def test_seeds(view_of: Any) -> None:
    view = view_of(counting_fns(3))
    assert view.seed([4, 5, 6]) == [4, 5, 6]
    view.reset()
    view.seed(7)
    view.reset()
    view.reset([True, False, True])  # the seeds are used up
    assert view.vec.get_attr("seeds") == [[4, 7], [5, 7, None], [6, 7]]
    fresh = view.seed()
    assert len({*fresh}) == 3
    assert view.seed(None) != fresh
    with pytest.raises(ValueError, match="2 seeds for 3 envs"):
        view.seed([1, 2])
    for wrong in ((1, 2, 3), "abc", 1.0, True):
        with pytest.raises(TypeError, match="seeds must be"):
            view.seed(wrong)


def test_a_wrappers_rewards_count() -> None:
    class Doubled(VecEnvWrapper):
        def step_wait(self, timeout: float | None = None) -> Any:
            obs, rewards, dones, infos = self.venv.step_wait(timeout)
            return obs, rewards * 2, dones, infos

    view = as_pfrl(Doubled(DummyVecEnv(counting_fns(2), autoreset="disabled")))
    view.reset()
    assert view.step([0, 0])[1] == (2.0, 2.25)
    view.close()


@pytest.mark.parametrize("time_limit", ["done", "needs_reset"])
def test_a_wrapper_may_end_episodes_and_give_infos_of_its_own(time_limit: str) -> None:
    class Own(VecEnvWrapper):
        def step_wait(self, timeout: float | None = None) -> Any:
            obs, rewards, _, infos = self.venv.step_wait(timeout)
            return obs, rewards, np.array([True, False]), [infos[0], {"own": 1}]

    view = as_pfrl(Own(DummyVecEnv(counting_fns(2), autoreset="disabled")), time_limit=time_limit)
    view.reset()
    _, _, dones, infos = view.step([0, 0])
    assert (dones, infos) == ((True, False), ({"tag": 0, "t": 1}, {"own": 1}))
    assert view.reset([False, True])[0].tolist() == [0, 2, 0]
    view.close()


def test_nothing_works_after_close(view_of: Any) -> None:
    view = view_of(counting_fns(2))
    view.reset()
    view.close()
    view.close()
    assert view.closed
    for call in (lambda: view.step([0, 0]), lambda: view.reset([1, 1]), lambda: view.seed(1), view.reset):
        with pytest.raises(ClosedError):
            call()


def test_what_cannot_be_viewed() -> None:
    for mode in ("next_step", "async"):
        remedy = f"autoreset='{mode}': make it with .*'same_step' or 'disabled'"
        with DummyVecEnv(counting_fns(1), autoreset=mode) as vec, pytest.raises(ValueError, match=remedy):
            as_pfrl(vec)
    with pytest.raises(TypeError, match="CountingEnv"):
        as_pfrl(CountingEnv())  # type: ignore[arg-type]
    with DummyVecEnv(counting_fns(1), autoreset="disabled") as vec, pytest.raises(ValueError, match="time_limit"):
        as_pfrl(vec, time_limit="never")


def test_pfrl_takes_the_view_for_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    class VectorEnv(abc.ABC):  # noqa: B024  as pfrl's: its evaluation asks isinstance(env, pfrl.env.VectorEnv)
        """A stand-in for pfrl.env.VectorEnv."""

    module = types.ModuleType("pfrl.env")
    monkeypatch.setattr(module, "VectorEnv", VectorEnv, raising=False)
    monkeypatch.setitem(sys.modules, "pfrl", types.ModuleType("pfrl"))
    monkeypatch.setitem(sys.modules, "pfrl.env", module)
    view = as_pfrl(DummyVecEnv(counting_fns(1), autoreset="disabled"))
    env = MultiprocessVectorEnv(counting_fns(1))
    assert isinstance(view, VectorEnv)
    assert isinstance(env, VectorEnv)
    view.close()
    env.close()


class TestMultiprocessVectorEnv:
    """The class with pfrl's name makes its own VecEnv."""

    def test_it_steps_as_plain_envs_do(self) -> None:
        fns = [functools.partial(SampledEnv, NESTED) for _ in range(3)]
        env = MultiprocessVectorEnv(fns, num_workers=2)
        assert env.num_envs == 3
        assert compare_run(env, fns, 20) > 1
        env.close()

    def test_errors_after_close_are_also_pfrls(self) -> None:
        env = MultiprocessVectorEnv(counting_fns(2), start_method="fork")
        env.reset()
        env.close()
        for call in (lambda: env.step([0, 0]), env.reset, env.seed):
            with pytest.raises(AssertionError, match="closed"):
                call()
            with pytest.raises(ClosedError):
                call()

    def test_it_closes_when_it_is_collected(self) -> None:
        env = MultiprocessVectorEnv(counting_fns(2))
        vec = env.vec
        del env
        gc.collect()
        assert vec.closed


class KeepsNone:
    """A batched env of two, which resets itself every 3 steps of env 0 and keeps no last observations."""

    num_envs = 2
    single_observation_space = gymnasium.spaces.Box(0, 99, (1,), np.float32)
    single_action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.t = np.zeros(2)
        return np.zeros((2, 1), np.float32), {}

    def step(self, actions: Any) -> Any:
        self.t = self.t + 1
        over = np.array([self.t[0] == 3, False])
        self.t[over] = 0
        return self.t[:, None].astype(np.float32), np.ones(2), over, np.zeros(2, bool), {}


def test_envs_that_keep_no_last_observations() -> None:
    """The one before comes instead, and `reset` the first one of the next episode, without another reset."""
    view = as_pfrl(DummyVecEnv([Batched(KeepsNone, 2)]))
    view.reset()
    for _ in range(3):
        obs, _, dones, _ = view.step([0, 0])
    assert (np.stack(obs).tolist(), dones) == ([[2], [3]], (True, False))
    assert np.stack(view.reset([False, True])).tolist() == [[0], [3]]
    assert np.stack(view.step([0, 0])[0]).tolist() == [[1], [4]]
    view.close()
