"""The whole contract holds for wrappers that read all rows and change none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from vecenvs import DummyVecEnv, VecEnv
from vecenvs.testing.suite import RuleConformance, SpaceConformance
from vecenvs.wrappers import VecCheckNan, VecNormalize


class Wrapped:
    """Every path of rows, through two wrappers."""

    def make_vec(self, env_fns: list[Callable[[], Any]], **common: Any) -> VecEnv:
        vec = VecCheckNan(DummyVecEnv(env_fns, **common), raise_exception=True)
        return VecNormalize(vec, norm_obs=False, norm_reward=False)


@pytest.mark.sparse
class TestSpaces(Wrapped, SpaceConformance):
    """Every kind of space."""


@pytest.mark.sparse
class TestRules(Wrapped, RuleConformance):
    """The rest of the contract."""

    test_rewards_beyond_float32: Any = None  # infinite, which VecCheckNan is there to refuse
