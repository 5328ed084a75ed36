"""Views pass on the VecEnv's observations without a copy, for every kind of space."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from vecenvs import DummyVecEnv
from vecenvs.batch.layout import SpaceLayout
from vecenvs.testing.envs import SampledEnv
from vecenvs.views import as_gymnasium, as_pfrl, as_sb3
from vecenvs.wrappers.base import VecEnvWrapper

VIEWS = {
    "gymnasium, next_step": (as_gymnasium, "next_step"),
    "gymnasium, same_step": (as_gymnasium, "same_step"),
    "gymnasium, disabled": (as_gymnasium, "disabled"),
    "sb3": (as_sb3, "same_step"),
    "pfrl, same_step": (as_pfrl, "same_step"),
    "pfrl, disabled": (as_pfrl, "disabled"),
}
OBSERVATIONS = {
    "box": spaces.Box(0, 255, (8, 8, 3), np.uint8),
    "dict": spaces.Dict({"x": spaces.Box(-1.0, 1.0, (5,), np.float32), "y": spaces.Box(-1.0, 1.0, (2, 2), np.float64)}),
    "tuple": spaces.Tuple((spaces.Box(-1.0, 1.0, (5,), np.float32), spaces.MultiBinary(3))),
}


class Noting(VecEnvWrapper):
    """A wrapper that stores the observations it has returned last."""

    given: Any

    def reset(self, *args: Any, **kwargs: Any) -> Any:
        self.given = self.venv.reset(*args, **kwargs)
        return self.given

    def step_wait(self, timeout: float | None = None) -> Any:
        result = self.venv.step_wait(timeout)
        self.given = result[0]
        return result


@pytest.mark.parametrize("space", OBSERVATIONS.values(), ids=list(OBSERVATIONS))
@pytest.mark.parametrize(("view_of", "autoreset"), VIEWS.values(), ids=list(VIEWS))
def test_observations_are_passed_on(view_of: Any, autoreset: str, space: spaces.Space[Any]) -> None:
    layout = SpaceLayout(space)
    vec = Noting(DummyVecEnv([functools.partial(SampledEnv, space, end=0.0)] * 3, autoreset=autoreset))
    view = view_of(vec)

    def check(seen: Any) -> None:
        batches = layout.flatten(vec.given)
        if view_of is as_pfrl:  # one observation per env: its rows
            assert len(seen) == 3
            rows = [layout.flatten(row) for row in seen]
        else:
            rows = [layout.flatten(seen)]
        for parts in rows:
            for part, batch in zip(parts, batches, strict=True):
                assert np.shares_memory(part, batch)

    reset = view.reset()
    check(reset[0] if view_of is as_gymnasium else reset)
    for _ in range(2):
        check(view.step(np.zeros(3, np.int64))[0])
    view.close()
