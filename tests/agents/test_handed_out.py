"""What was handed out belongs to the caller: no later call changes it."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from vecenvs import make_multi_agent
from vecenvs.testing.envs.teams import Teams, TeamsByTurns


def arrays_of(value: Any) -> list[np.ndarray[Any, Any]]:
    if isinstance(value, np.ndarray):
        return [value]
    if isinstance(value, dict):
        return [array for part in value.values() for array in arrays_of(part)]
    return []


@pytest.mark.parametrize("backend", ["dummy", "subproc"])
@pytest.mark.parametrize("make", [functools.partial(Teams, cats=3, dogs=0), TeamsByTurns])
def test_no_later_call_changes_it(make: Any, backend: str) -> None:
    rng = np.random.default_rng(0)
    with make_multi_agent([functools.partial(make, tag) for tag in range(4)], backend=backend, seed=0) as vec:
        flat, kept = vec.flat(), []

        def keep(*values: Any) -> None:
            masks = (vec.present, vec.acts, vec.started, vec.terminated, vec.truncated, vec.moved)
            found = [*values, *masks, vec.acting, vec.action_mask, flat.active, flat.terminated]
            kept.extend((array, array.copy()) for value in found for array in arrays_of(value))

        keep(vec.reset())
        for _ in range(30):
            if rng.random() < 0.5:
                keep(*vec.step(rng.integers(5, size=(4, 3)))[:3])
            else:
                some = rng.permutation(4)[: rng.integers(1, 5)]
                vec.send(rng.integers(5, size=(len(some), 3)), some)
                batch = vec.recv(indices=some)
                keep(batch.obs, batch.rewards, batch.dones, batch.action_mask, batch.present, batch.acting)
        for array, before in kept:
            np.testing.assert_array_equal(array, before)
