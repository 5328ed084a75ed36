"""Observations and actions of every space that Gymnasium has, and of one that it has not."""

from __future__ import annotations

import functools

import pytest
from gymnasium import spaces

from vecenvs.testing.envs import SPACES, SampledEnv
from vecenvs.testing.lockstep import Lockstep
from vecenvs.testing.suite.base import Conformance, Make


class SpaceConformance(Conformance):
    """Rows of every kind of space, one after another."""

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
