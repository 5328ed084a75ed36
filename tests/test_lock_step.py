"""Steps of all envs: what workers say of theirs, in whatever order they answer."""

from __future__ import annotations

import functools
import threading
from pathlib import Path
from typing import Any

import numpy as np

from vecenvs import DummyVecEnv, SubprocVecEnv
from vecenvs.pool.workers import LIVENESS
from vecenvs.testing.envs import CountingEnv, GatedEnv


class Silent(GatedEnv):
    """Has no infos."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return *super().step(action)[:4], {}


class SilentCounting(CountingEnv):
    """Has no infos."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return *super().step(action)[:4], {}


def test_an_end_in_a_worker_that_does_not_answer_last(tmp_path: Path) -> None:
    """One that ends no episode answers after it, and another one so late that the caller looks at all the others."""
    gate = tmp_path / "gate"
    fns = [
        functools.partial(Silent, 0, gate, "never", length=1),
        functools.partial(Silent, 1, gate, "never"),
        functools.partial(Silent, 2, gate),
    ]
    with SubprocVecEnv(fns, 3, "fork") as vec:
        vec.reset()
        timer = threading.Timer(2 * LIVENESS, gate.touch)
        timer.start()
        assert vec.step([0] * 3)[2].tolist() == [True, False, False]
        timer.join()


def test_a_subclass_with_halves_of_step_of_its_own() -> None:
    """Both are called at every step, the second one and those with actions in an array too."""
    called: list[str] = []

    class Begins(DummyVecEnv):
        def step_async(self, actions: Any) -> None:
            called.append("async")
            super().step_async(actions)

    class Ends(DummyVecEnv):
        def step_wait(self, timeout: float | None = None) -> Any:
            called.append("wait")
            return super().step_wait(timeout)

    for kind, expected in ((Begins, "async"), (Ends, "wait")):
        called.clear()
        with kind([functools.partial(SilentCounting, 0)] * 2) as vec:
            vec.reset()
            for count in range(1, 4):
                assert vec.step(np.zeros(2, np.int64))[0][:, 2].tolist() == [count] * 2
        assert called == [expected] * 3
