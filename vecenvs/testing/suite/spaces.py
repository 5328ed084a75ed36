"""Observations and actions of every space of Gymnasium, and of a custom one."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from gymnasium import spaces

from vecenvs.errors import EnvError
from vecenvs.testing.envs import SPACES, CountingEnv, SampledEnv
from vecenvs.testing.lockstep import Lockstep
from vecenvs.testing.suite.base import Conformance, Make


class EmptyEnv(CountingEnv):
    """A CountingEnv without observations or without actions. It raises at step 3."""

    def __init__(self, which: str) -> None:
        super().__init__()
        self.which = which
        empty: Any = spaces.Dict({})
        if which == "action":
            self.action_space = empty
        else:
            self.observation_space = empty

    def _observe(self) -> Any:
        return super()._observe() if self.which == "action" else {}

    def step(self, action: Any) -> Any:
        if self.t == 2:
            raise RuntimeError("at step 3")
        return super().step(0)


class SpaceConformance(Conformance):
    """Rows of every kind of space."""

    @pytest.mark.parametrize("name", SPACES)
    def test_observations_of_any_space(self, make: Make, name: str) -> None:
        both = Lockstep(make, [functools.partial(SampledEnv, SPACES[name])] * 3)
        both.reset(seed=5)
        both.run(25)

    @pytest.mark.parametrize("name", SPACES)
    def test_actions_of_any_space(self, make: Make, name: str) -> None:
        small = spaces.Discrete(2)
        both = Lockstep(make, [functools.partial(SampledEnv, small, SPACES[name])] * 3)
        both.reset(seed=5)
        both.run(8)

    @pytest.mark.parametrize("which", ["observation", "action"])
    def test_spaces_with_nothing_in_them(self, make: Make, which: str) -> None:
        vec = make([functools.partial(EmptyEnv, which) for _ in range(2)])
        actions: Any = {} if which == "action" else [0] * 2
        assert which == "action" or vec.reset() == {}
        vec.reset()
        vec.step(actions)
        assert vec.step(actions)[1].tolist() == [2.0, 2.0]
        with pytest.raises(EnvError, match="at step 3"):
            vec.step(actions)
