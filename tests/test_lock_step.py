"""Steps of all envs: what workers say of theirs, in whatever order they answer."""

from __future__ import annotations

import functools
import threading
from pathlib import Path
from typing import Any

from vecenvs import SubprocVecEnv
from vecenvs.pool.workers import LIVENESS
from vecenvs.testing.envs import GatedEnv


class Silent(GatedEnv):
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
