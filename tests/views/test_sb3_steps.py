"""`as_sb3` step by step against Stable-Baselines3's own DummyVecEnv and SubprocVecEnv, over the same envs."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import pytest
from conftest import sb3
from gymnasium import spaces
from upstream_envs import Drawing, LooksForSeed, Louder, SeedOfItsOwn

from vecenvs.backends.dummy import DummyVecEnv
from vecenvs.errors import BackendUnavailable, ClosedError, EnvError
from vecenvs.make.make_vec_env import make_vec_env
from vecenvs.testing.compare import assert_same
from vecenvs.testing.envs import SPACES, CountingEnv, FailingEnv, RenderingEnv, SampledEnv, counting_fns
from vecenvs.views import as_sb3, from_gymnasium
from vecenvs.wrappers import VecMonitor

if TYPE_CHECKING:
    from stable_baselines3.common.vec_env import VecEnv as SB3VecEnv

    from vecenvs.views.sb3 import SB3View

matrix = "contract"

OBSERVATIONS = {
    **{name: SPACES[name] for name in ("scalar", "float64", "float16", "uint8", "int32", "bool", "discrete")},
    **{name: SPACES[name] for name in ("multidiscrete", "multibinary")},
    "dict": spaces.Dict({"x": spaces.Box(-1.0, 1.0, (2,), np.float32), "k": spaces.Discrete(4)}),
    "tuple": spaces.Tuple((spaces.Box(-1.0, 1.0, (2,), np.float32), spaces.MultiBinary(3))),
}
ACTIONS = {
    "discrete": spaces.Discrete(4),
    "multidiscrete": spaces.MultiDiscrete([3, 5]),
    "multibinary": spaces.MultiBinary(3),
    "box": spaces.Box(-1.0, 1.0, (2,), np.float32),
    "box of no axis": spaces.Box(-1.0, 1.0, (), np.float32),
}


def sampled_fns(observations: spaces.Space[Any], actions: spaces.Space[Any] | None = None, n: int = 3) -> list[Any]:
    return [functools.partial(SampledEnv, observations, actions) for _ in range(n)]


def without_ours(infos: Any) -> list[dict[str, Any]]:
    """Remove the one key that SB3's infos do not have."""
    return [{key: value for key, value in info.items() if key != "episode_start"} for info in infos]


def as_dict(obs: Any) -> Any:
    """Turn an OrderedDict from SB3's DummyVecEnv into a dict."""
    return dict(obs) if isinstance(obs, dict) else obs


def plain(infos: Any) -> list[dict[str, Any]]:
    """Return infos for comparison, with terminal observations as arrays."""
    return [{k: bool(v) if k == "TimeLimit.truncated" else v for k, v in info.items()} for info in without_ours(infos)]


def compare_runs(ours: SB3VecEnv, theirs: SB3VecEnv, steps: int = 40, seed: int = 5) -> int:
    """Reset and step both with the same actions; return the number of ended episodes."""
    assert ours.seed(seed) == theirs.seed(seed)
    assert_same(ours.reset(), as_dict(theirs.reset()), "first observations")
    assert_same(without_ours(ours.reset_infos), list(theirs.reset_infos), "reset infos")
    theirs.action_space.seed(seed)
    ended = 0
    for step in range(steps):
        actions = np.array([theirs.action_space.sample() for _ in range(theirs.num_envs)])
        obs, rewards, dones, infos = ours.step(actions)
        their_obs, their_rewards, their_dones, their_infos = theirs.step(actions)
        assert_same(obs, as_dict(their_obs), f"step {step}: obs")
        assert_same(rewards, np.asarray(their_rewards, np.float32), f"step {step}: rewards")
        assert_same(dones, np.asarray(their_dones, bool), f"step {step}: dones")
        assert_same(plain(infos), plain(their_infos), f"step {step}: infos")
        assert_same(without_ours(ours.reset_infos), list(theirs.reset_infos), f"step {step}: reset infos")
        ended += int(dones.sum())
    return ended


@pytest.fixture
def view_of(configuration: Any) -> Iterator[Any]:
    """Make views of VecEnvs on the backend under test; close them."""
    made: list[SB3View] = []

    def make(env_fns: Any, **common: Any) -> SB3View:
        made.append(as_sb3(configuration.make_vec(env_fns, **common)))
        return made[-1]

    yield make
    for view in made:
        view.close()


@pytest.mark.parametrize("space", OBSERVATIONS.values(), ids=OBSERVATIONS.keys())
def test_every_row_equals_that_of_sb3(view_of: Any, space: spaces.Space[Any]) -> None:
    theirs = sb3().DummyVecEnv(sampled_fns(space))
    assert compare_runs(view_of(sampled_fns(space)), theirs) > 5


@pytest.mark.parametrize("space", ACTIONS.values(), ids=ACTIONS.keys())
def test_actions_arrive_as_with_sb3(view_of: Any, space: spaces.Space[Any]) -> None:
    theirs = sb3().DummyVecEnv(sampled_fns(OBSERVATIONS["float64"], space))
    compare_runs(view_of(sampled_fns(OBSERVATIONS["float64"], space)), theirs, steps=20)


@pytest.mark.parametrize("name", ["nested", "text", "sequence"])
def test_spaces_that_sb3s_own_classes_refuse(view_of: Any, name: str) -> None:
    fns = sampled_fns(SPACES[name])
    view = view_of(fns)
    with DummyVecEnv(fns) as vec:
        view.seed(2)
        assert_same(view.reset(), vec.reset(seed=2))
        assert_same(view.step([0, 1, 2])[0], vec.step([0, 1, 2])[0])


def test_every_row_equals_that_of_sb3s_subprocesses(view_of: Any) -> None:
    fns = sampled_fns(OBSERVATIONS["dict"])
    theirs = sb3().SubprocVecEnv(fns, start_method="fork")
    try:
        assert compare_runs(view_of(fns), theirs) > 5
    finally:
        theirs.close()


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "Acrobot-v1"])
def test_gymnasiums_envs(view_of: Any, env_id: str) -> None:
    fns = [functools.partial(gymnasium.make, env_id, max_episode_steps=15) for _ in range(3)]
    theirs = sb3().DummyVecEnv(fns)
    assert compare_runs(view_of(fns), theirs, steps=50) >= 3
    theirs.close()


def test_multibinary_actions_may_be_whole_floats(view_of: Any) -> None:
    space = ACTIONS["multibinary"]
    first, second = (view_of(sampled_fns(OBSERVATIONS["uint8"], space)) for _ in range(2))
    for view in (first, second):
        view.seed(1)
        view.reset()
    actions = np.array([[1, 0, 1], [0, 0, 1], [1, 1, 1]], np.int8)
    assert_same(first.step(actions.astype(np.float32))[1], second.step(actions)[1])
    with pytest.raises(TypeError, match="float32"):
        first.step(actions + np.float32(0.5))


def test_seeds_and_options_are_for_the_next_reset_alone(view_of: Any) -> None:
    view, theirs = view_of(counting_fns(2, length=2)), sb3().DummyVecEnv(counting_fns(2, length=2))
    for env in (view, theirs):
        env.reset()
        env.seed(7)
        env.set_options([{"a": 1}, {}])
        for _ in range(2):  # an episode ends: the autoreset takes neither
            env.step(np.zeros(2, np.int64))
        env.reset()
        env.set_options({"b": 2})
        env.reset()
        env.reset()
    assert (
        view.get_attr("seeds") == theirs.get_attr("seeds") == [[None, None, 7, None, None], [None, None, 8, None, None]]
    )
    ours, upstream = view.get_attr("options"), theirs.get_attr("options")
    assert ours == upstream == [[None, None, {"a": 1}, {"b": 2}, None], [None, None, None, {"b": 2}, None]]


def test_seeds_and_options_outlast_a_reset_that_raises() -> None:
    """They are for the next one that does not, and not for those after it."""
    fns = [CountingEnv, functools.partial(FailingEnv, 1, "reset", at=1)]
    with DummyVecEnv(fns) as vec:
        view = as_sb3(vec)
        view.seed(7)
        view.set_options({"level": 3})
        with pytest.raises(EnvError, match="env 1 raised"):
            view.reset()
        for _ in range(2):
            view.reset()
        assert view.get_attr("seeds") == [[7, 7, None], [8, None]]
        assert view.get_attr("options") == [[{"level": 3}, {"level": 3}, None], [{"level": 3}, None]]


def test_without_a_seed_each_env_gets_one_of_its_own(view_of: Any) -> None:
    view = view_of(counting_fns(3))
    first = view.seed()
    assert len({*first}) == 3
    assert view.seed() != first


def test_what_is_returned_is_the_callers(view_of: Any) -> None:
    view = view_of(counting_fns(2))
    first = view.reset()
    obs, rewards, dones, infos = view.step(np.zeros(2, np.int64))
    kept = [value.copy() for value in (first, obs, rewards, dones)]
    rewards += 1.0
    dones |= True
    view.step(np.zeros(2, np.int64))
    for value, before in zip((first, obs, rewards - 1.0), kept, strict=False):
        assert_same(value, before)
    assert infos[0] is not infos[1]


INDICES = [None, 1, -1, np.int64(2), [0, 2], (2, 0), range(1, 3), {1}, [0, 0], [-1, 2]]


@pytest.mark.parametrize("indices", INDICES, ids=repr)
def test_ways_to_name_envs(view_of: Any, indices: Any) -> None:
    view = view_of(counting_fns(3))
    chosen = np.arange(3)[[*indices] if isinstance(indices, (range, set, tuple)) else indices].ravel().tolist()
    chosen = [0, 1, 2] if indices is None else chosen
    assert view.get_attr("tag", indices) == chosen
    assert view.env_method("add", 10, indices=indices, times=2) == [tag + 20 for tag in chosen]
    assert view.env_is_wrapped(gymnasium.Wrapper, indices) == [False] * len(chosen)
    view.set_attr("tag", 50, indices)
    assert view.get_attr("tag") == [50 if tag in chosen else tag for tag in range(3)]


def test_the_envs_themselves() -> None:
    view = as_sb3(DummyVecEnv(counting_fns(2)))
    assert [env.tag for env in sb3().VecCheckNan(view).envs] == [0, 1]
    view.close()


def test_a_method_is_called_once_for_each_time_an_env_is_named(view_of: Any) -> None:
    view = view_of(counting_fns(2))
    view.env_method("reset", indices=[1, 1, 0])
    assert view.get_attr("episode", np.array([1, 0])) == [2, 1]


def test_unknown_envs_and_attributes(view_of: Any) -> None:
    view = view_of(counting_fns(2))
    for index in (2, -3):
        with pytest.raises(IndexError, match="no env"):
            view.get_attr("tag", index)
    with pytest.raises(AttributeError, match="no_such"):
        view.get_attr("no_such")
    with pytest.raises(AttributeError, match="no_such"):
        view.env_method("no_such")
    assert view.has_attr("tag")
    assert not view.has_attr("no_such")
    view.set_attr("no_such", 3, indices=0)
    assert view.get_attr("no_such", 0) == [3]


def test_a_new_attribute_goes_to_the_outermost_wrapper(view_of: Any) -> None:
    """As with Stable-Baselines3; one that a layer has goes to that layer."""
    fns = [functools.partial(gymnasium.Wrapper, CountingEnv(tag)) for tag in range(2)]
    view, theirs = view_of(fns), sb3().DummyVecEnv(fns)
    for env in (view, theirs):
        env.set_attr("new", 3, indices=1)
        assert env.get_attr("new", 1) == [3]
        assert not env.has_attr("new")
        with pytest.raises(AttributeError):
            env.get_attr("unwrapped.new" if env is view else "__dict__['new']", 1)
    view.set_attr("tag", 9)
    assert view.get_attr("unwrapped.tag") == [9, 9]


def test_rendering_is_as_with_sb3(view_of: Any) -> None:
    fns = [functools.partial(RenderingEnv, tag) for tag in range(3)]
    view, theirs = view_of(fns), sb3().DummyVecEnv(fns)
    for env in (view, theirs):
        env.reset()
        env.step(np.zeros(3, np.int64))
    assert view.render_mode == theirs.render_mode == "rgb_array"
    assert view.metadata == theirs.metadata
    assert_same(view.get_images(), theirs.get_images())
    assert_same(view.render(), theirs.render())
    assert_same(view.render("rgb_array"), theirs.render("rgb_array"))


@pytest.mark.parametrize("mode", ["human", None])
def test_envs_that_give_no_images(view_of: Any, mode: str | None) -> None:
    fns = [functools.partial(RenderingEnv, tag, mode) for tag in range(2)]
    view, theirs = view_of(fns), sb3().DummyVecEnv(fns)
    for env in (view, theirs):
        assert env.render_mode == mode
        with pytest.warns(UserWarning, match="rgb_array"):
            assert env.get_images() == [None, None]
        if mode is None:
            with pytest.warns(UserWarning, match="render_mode"):
                assert env.render() is None
        else:
            assert env.render() is None


def test_an_envs_exception_names_the_env(view_of: Any) -> None:
    view = view_of([CountingEnv, FailingEnv])
    view.reset()
    with pytest.raises(EnvError, match="env 1 raised ToyError"):
        view.step(np.zeros(2, np.int64))
    with pytest.raises(EnvError, match=r"env 1 failed before: call reset\(\) first, which resets all envs$"):
        view.step(np.zeros(2, np.int64))
    view.reset()
    view.step(np.zeros(2, np.int64))


def test_close_is_repeatable_and_final(view_of: Any) -> None:
    view = view_of(counting_fns(2))
    view.close()
    view.close()
    with pytest.raises(ClosedError):
        view.reset()


def test_what_cannot_be_viewed() -> None:
    with DummyVecEnv(counting_fns(1), autoreset="next_step") as vec, pytest.raises(ValueError, match="same_step"):
        as_sb3(vec)
    with pytest.raises(TypeError, match="CountingEnv"):
        as_sb3(CountingEnv())  # type: ignore[arg-type]


def test_without_sb3_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "vecenvs.views.sb3", raising=False)
    monkeypatch.setitem(sys.modules, "stable_baselines3.common.monitor", None)
    with pytest.raises(BackendUnavailable, match="pip install stable-baselines3"):
        importlib.import_module("vecenvs.views.sb3")


def test_seeds_of_make_vec_env_hold_unless_sb3_gives_its_own() -> None:
    view = as_sb3(make_vec_env([CountingEnv, CountingEnv], seed=30))
    view.reset()
    view.seed(5)
    view.reset()
    assert view.get_attr("seeds") == [[30, 5], [31, 6]]
    view.close()


@pytest.mark.parametrize("env", [LooksForSeed, SeedOfItsOwn])
def test_envs_that_look_for_the_argument_seed(view_of: Any, env: Any) -> None:
    """An autoreset passes no seed, as in SB3: seeded runs repeat, but their episodes differ."""
    assert compare_runs(view_of([env] * 3), sb3().DummyVecEnv([env] * 3), steps=12) == 12


def rewards_of(env: Any, actions: Any) -> list[float]:
    found: list[float] = env.step(actions)[1].tolist()
    return found


def test_envs_exchanged_in_mid_episode() -> None:
    """Changes act at once: a replaced env, a replaced list, a patched step."""
    fns = [functools.partial(gymnasium.make, "CartPole-v1") for _ in range(3)]
    both = [as_sb3(DummyVecEnv(fns)), sb3().DummyVecEnv(fns)]
    told: list[Any] = [[], []]
    for venv, rewards in zip(both, told, strict=True):
        actions = np.zeros(3, np.int64)
        venv.seed(1)
        venv.reset()
        rewards.append(rewards_of(venv, actions))
        venv.envs[1] = Louder(venv.envs[1])
        rewards.append(rewards_of(venv, actions))
        patched = venv.envs[2]
        patched.step = Louder(gymnasium.make("CartPole-v1")).step
        patched.step.__self__.reset()
        rewards.append(rewards_of(venv, actions))
        del patched.step
        venv.envs = [Louder(env) for env in venv.envs]
        rewards.append(rewards_of(venv, actions))
        venv.close()
    assert told[0] == told[1] == [[1, 1, 1], [1, 101, 1], [1, 101, 101], [101, 201, 101]]


def test_only_envs_in_this_process_can_be_exchanged(view_of: Any) -> None:
    view = view_of(counting_fns(2))
    if isinstance(view.vec, DummyVecEnv):
        with pytest.raises(ValueError, match="1 envs in the place of 2"):
            view.envs = [CountingEnv()]
        return
    with pytest.raises(AttributeError, match="its envs are in other processes"):
        view.envs = []


class Boxed(Drawing):
    """An env with a Box of integers as actions, which it adds up."""

    def __init__(self) -> None:
        super().__init__(actions=spaces.Box(0, 9, (2,), np.int64))


def test_floats_for_a_box_of_integers(view_of: Any) -> None:
    actions = np.array([[1.0, 2.0], [3.0, 4.0]])
    view, theirs = view_of([Boxed] * 2), sb3().DummyVecEnv([Boxed] * 2)
    for venv in (view, theirs):
        venv.reset()
        for dtype in (np.float64, np.float32, np.int64):
            assert rewards_of(venv, actions.astype(dtype)) == [3, 7]
    with pytest.raises(TypeError, match="float64, but int64 is needed"):
        view.step(actions + 0.5)
    with pytest.raises(TypeError, match="float64"):
        view.step(actions * np.nan)


class Talkative(Drawing):
    """An env whose observations have a key that its space lacks."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Dict({"x": spaces.Box(0.0, 1.0, (2,), np.float32)})

    def draw(self) -> Any:
        return {"more": "?", "x": super().draw()}


def test_keys_that_the_space_does_not_have(view_of: Any) -> None:
    view, theirs = view_of([Talkative] * 2), sb3().DummyVecEnv([Talkative] * 2)
    for venv in (view, theirs):
        venv.seed(3)
    assert_same(view.reset(), dict(theirs.reset()))
    for _ in range(4):
        assert_same(view.step([0, 0])[0], dict(theirs.step([0, 0])[0]))


def test_steps_before_the_first_reset(view_of: Any) -> None:
    """They are allowed if the env allows them."""
    view, theirs = view_of([Drawing] * 2), sb3().DummyVecEnv([Drawing] * 2)
    for _ in range(5):
        assert_same(view.step([1, 2])[:3], theirs.step([1, 2])[:3])
    strict = view_of([functools.partial(gymnasium.make, "CartPole-v1")])
    with pytest.raises(EnvError, match=r"Cannot call env.step\(\) before calling env.reset"):
        strict.step([0])


def test_a_step_before_the_reset_of_envs_out_of_reach() -> None:
    """It is refused like any other."""
    view = as_sb3(from_gymnasium(gymnasium.vector.SyncVectorEnv([Drawing] * 2, autoreset_mode="SameStep")))
    with pytest.raises(EnvError, match=r"call reset\(\) first"):
        view.step([0, 0])
    view.reset()
    view.step([0, 0])
    view.close()


def test_envs_exchanged_through_wrappers() -> None:
    with DummyVecEnv([Drawing] * 2) as vec:
        wrapped = VecMonitor(vec)
        wrapped.reset()
        wrapped.envs = [Louder(env) for env in wrapped.envs]
        assert wrapped.step([1, 2])[1].tolist() == [101, 102]
        assert vec.unwrapped.envs is wrapped.envs
    assert wrapped.envs == []


def test_a_step_before_the_reset_of_some(view_of: Any) -> None:
    """Envs that were reset before the view was made continue."""
    view = view_of(counting_fns(2))
    view.vec.reset([0])
    assert view.step([0, 0])[0][:, 1:].tolist() == [[1, 1], [0, 1]]


def test_a_reset_by_env_method(view_of: Any) -> None:
    view, theirs = view_of([Drawing] * 2), sb3().DummyVecEnv([Drawing] * 2)
    for venv in (view, theirs):
        venv.env_method("reset", seed=5)
    assert_same(view.step([1, 2])[:3], theirs.step([1, 2])[:3])


def test_envs_whose_bounds_differ(view_of: Any) -> None:
    """The view has the space of the first env, as in SB3."""
    fns = [functools.partial(Drawing, high=high) for high in (1.0, 2.0, 3.0)]
    view, theirs = view_of(fns, observation_mode="different"), sb3().DummyVecEnv(fns)
    assert view.observation_space == theirs.observation_space
    assert compare_runs(view, theirs, steps=6) == 6


def test_one_env_given_twice() -> None:
    env = Drawing()
    for make in (lambda fns: as_sb3(DummyVecEnv(fns)), sb3().DummyVecEnv):
        with pytest.raises(ValueError, match=r"(?i)instance|new gymnasium.Env each time"):
            make([lambda: gymnasium.Wrapper(env), lambda: env])
