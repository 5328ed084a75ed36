"""The shortest way to an env's step does what the env's step does, whatever is wrapped around it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import gymnasium
import pytest
from gymnasium.wrappers import OrderEnforcing, TimeLimit, TransformReward
from hypothesis import given
from hypothesis import strategies as st

from vecenvs.testing.envs import CountingEnv
from vecenvs.worker.direct import direct_step
from vecenvs.wrappers import Monitor

Env = gymnasium.Env[Any, Any]


class Plain(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Change nothing."""


class Doubled(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A step of its own."""

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, 2 * float(reward), terminated, truncated, {**info, "doubled": True}


class Limit(TimeLimit):
    """A TimeLimit that has no step of its own."""


class LongerLimit(TimeLimit):
    """A TimeLimit that has one."""

    def step(self, action: Any) -> Any:
        *row, info = super().step(action)
        return *row, {**info, "elapsed": self._elapsed_steps}


class Watched(CountingEnv):
    """Tell which code has called `step`, from the innermost on."""

    def step(self, action: Any) -> Any:
        *row, info = super().step(action)
        callers: list[Any] = []
        frame = inspect.currentframe()
        while frame is not None:
            callers.append(frame.f_code)
            frame = frame.f_back
        return *row, {**info, "callers": callers}


def looks(env: Env) -> dict[str, Any]:
    """Return the attributes of an env's wrappers."""
    found: dict[str, Any] = {}
    for depth in range(20):
        for name in ("_elapsed_steps", "has_reset", "episode_returns", "episode_lengths", "needs_reset", "total_steps"):
            if hasattr(env, name):
                found[f"{depth}.{name}"] = getattr(env, name)
        if not isinstance(env, gymnasium.Wrapper):
            break
        env = env.env
    return found


def without_time(row: Any) -> Any:
    """Return a row that can be compared."""
    obs, reward, terminated, truncated, info = row
    episode = {key: value for key, value in info.get("episode", {}).items() if key != "t"}
    return obs.tolist(), reward, terminated, truncated, {**info, "episode": episode}


LAYERS: dict[str, Callable[[Env], Env]] = {
    "limit 3": lambda env: TimeLimit(env, 3),
    "limit 7": lambda env: TimeLimit(env, 7),
    "subclass": lambda env: Limit(env, 4),
    "own step": lambda env: LongerLimit(env, 4),
    "order": OrderEnforcing,
    "plain": Plain,
    "doubled": Doubled,
    "scaled": lambda env: TransformReward(env, lambda reward: float(reward) / 2),
    "monitor": Monitor,
}


def stack(names: list[str], env: Env | None = None) -> Env:
    """Wrap a CountingEnv of five steps, from the inside outwards."""
    env = CountingEnv(tag=3) if env is None else env
    for name in names:
        env = LAYERS[name](env)
    return env


@given(st.lists(st.sampled_from(sorted(LAYERS)), max_size=6))
def test_as_the_envs_own(names: list[str]) -> None:
    mine, plain = stack(names), stack(names)
    for _ in range(3):
        for env in (mine, plain):
            env.reset()
        step = direct_step(mine)
        over = False
        while not over:
            row = without_time(plain.step(1))
            assert without_time(step(1)) == row
            assert looks(mine) == looks(plain)
            over = row[2] or row[3]


@pytest.mark.parametrize(
    ("names", "over"),
    [
        (["order", "limit 7"], [gymnasium.Wrapper, OrderEnforcing, TimeLimit]),
        (["order", "limit 7", "monitor"], [gymnasium.Wrapper, OrderEnforcing, TimeLimit, Monitor]),
        (["plain", "order"], [gymnasium.Wrapper, OrderEnforcing]),
    ],
)
def test_known_wrappers_are_not_called(names: list[str], over: list[type[Env]]) -> None:
    steps = {cls.step.__code__ for cls in over}
    env = stack(names, Watched())
    env.reset()
    assert steps <= {*env.step(1)[4]["callers"]}
    assert not steps & {*direct_step(env)(1)[4]["callers"]}


def test_what_is_not_known_is_called() -> None:
    """A bare env, another wrapper outside, an instance's own step, a class that somebody has changed."""
    bare = CountingEnv()
    assert direct_step(bare) == bare.step
    outside = stack(["order", "limit 7", "doubled"])
    assert direct_step(outside) == outside.step
    own = stack(["order", "limit 7"])
    own.step = list  # type: ignore[method-assign,assignment]
    assert direct_step(own) is list


def test_a_class_that_somebody_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    env = stack(["order", "limit 7"])
    env.reset()
    monkeypatch.setattr(TimeLimit, "step", Doubled.step)
    assert direct_step(env)(1)[4]["doubled"]


def test_a_limit_whose_attributes_have_other_names() -> None:
    env = stack(["limit 7"])
    env.reset()
    del env._max_episode_steps  # type: ignore[attr-defined]
    assert direct_step(env) == env.step


def test_an_env_that_was_never_reset() -> None:
    with pytest.raises(gymnasium.error.ResetNeeded):
        direct_step(stack(["order", "limit 7"]))(1)
    with pytest.raises(RuntimeError, match="reset it first"):
        direct_step(stack(["limit 7", "monitor"]))(1)


def test_an_env_that_changes_its_own_step() -> None:
    """Some are machines whose states are methods."""

    class Machine(CountingEnv):
        def step(self, action: Any) -> Any:
            self.step = self.second  # type: ignore[method-assign]
            return super().step(action)

        def second(self, action: Any) -> Any:
            *row, info = super().step(action)
            return *row, {**info, "second": True}

    for names in (["order"], ["plain", "order", "limit 7"], ["limit 7", "monitor"]):
        env = stack(names, Machine())
        env.reset()
        step = direct_step(env)
        assert ["second" in step(1)[4] for _ in range(3)] == [False, True, True], names
