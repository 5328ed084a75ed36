"""What wrappers hand out belongs to the caller: see `check_handed_out`. Statistics go on counting elsewhere."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from vecenvs import DummyVecEnv, VecEnv
from vecenvs.testing.handed_out import ATTRIBUTES, MutableEnv, check_handed_out
from vecenvs.wrappers import (
    VecCheckNan,
    VecExtractDictObs,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecTransposeImage,
    vec_monitor,
)
from vecenvs.wrappers.vec_torch import VecTensors

SPACE = spaces.Dict(image=spaces.Box(0, 255, (4, 5, 3), np.uint8), vector=spaces.Box(-1.0, 1.0, (3,), np.float64))


def originals(vec: Any) -> dict[str, Any]:
    return {"obs": vec.get_original_obs(), "rewards": vec.get_original_reward()}


class Copied(VecTensors):
    """Stands in for tensors, which share the memory of the arrays."""

    def _converted(self, arrays: list[Any]) -> list[Any]:
        return [array[...] for array in arrays]


WRAPPERS: dict[str, tuple[Callable[[VecEnv], VecEnv], Callable[[Any], dict[str, Any]] | None]] = {
    "normalize": (VecNormalize, originals),
    "fixed": (functools.partial(VecNormalize, training=False, norm_obs=False), originals),
    "stack": (functools.partial(VecFrameStack, n_stack=3), None),
    "key": (functools.partial(VecExtractDictObs, key="vector"), None),
    "transpose": (VecTransposeImage, None),
    "monitor": (VecMonitor, None),
    "nan": (VecCheckNan, None),
    "tensors": (Copied, None),
    "several": (lambda vec: VecMonitor(VecNormalize(VecFrameStack(VecExtractDictObs(vec, "vector"), 2))), None),
}


@pytest.mark.sparse("name")
@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
@pytest.mark.parametrize("name", WRAPPERS)
def test_nothing_that_was_handed_out_is_shared(name: str, autoreset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vec_monitor, "time", SimpleNamespace(time=lambda: 1.0))
    wrap, extras = WRAPPERS[name]

    def make() -> VecEnv:
        fns = [functools.partial(MutableEnv, SPACE)] * 3
        return wrap(DummyVecEnv(fns, autoreset=autoreset, info_attrs=ATTRIBUTES))

    check_handed_out(make, [[0, 2], [1]], extras)
