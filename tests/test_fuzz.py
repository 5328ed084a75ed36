"""A minute of the fuzzer, which `make fuzz` runs for as long as one likes."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fuzz.programs import draw, play, smaller
from fuzz.worlds import INFOS, World, draw_space
from gymnasium import spaces

from vecenvs.backends.dummy import DummyVecEnv
from vecenvs.testing.envs.sized import Place

HERE = Path(__file__).parent


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_minute() -> None:
    found = subprocess.run(
        [sys.executable, "-m", "fuzz", "--seconds", "60"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent)])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout


@pytest.mark.parametrize("first", [0, 100])
def test_a_few_programs(first: int) -> None:
    """In process, always the same ones."""
    played = [play(draw(seed, "dummy")) for seed in range(first, first + 10)]
    assert [text for _, text in played if text is not None] == []
    assert sum(rows for rows, _ in played) > 100


def test_values_are_of_their_spaces() -> None:
    rng = random.Random(0)
    for number in range(150):
        space = draw_space(rng)
        world = World(space, spaces.Discrete(2), INFOS[number % len(INFOS)], 3)
        found = world.observation(Place(1, 2, 3, number, 5))
        if not isinstance(space, spaces.Space) or not _strange(space):
            assert space.contains(found), f"{found!r} is not of {space}"
        world.info(Place(1, 2, 3, number, 5))


def _strange(space: spaces.Space[Any]) -> bool:
    """Tell whether Gymnasium's `contains` refuses values that VecEnvs take: NaN, infinities, arrays of integers."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        inner = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        return any(map(_strange, inner))
    if isinstance(space, (spaces.Sequence, spaces.Graph, spaces.OneOf)):
        return True
    return isinstance(space, spaces.Box) and space.dtype.kind == "f"


def test_a_difference_is_found_and_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a VecEnv that returns a wrong row now and then."""
    right = DummyVecEnv.step_wait

    def wrong(self: Any, timeout: Any = None) -> Any:
        obs, rewards, dones, infos = right(self, timeout)
        return obs, np.where(dones, rewards + 1, rewards).astype(np.float32), dones, infos

    monkeypatch.setattr(DummyVecEnv, "step_wait", wrong)
    failing = next(
        program
        for program in (draw(seed, "dummy") for seed in range(99))
        if not program.batched and play(program)[1] is not None
    )
    small = smaller(failing)
    text = play(small)[1]
    assert text is not None
    assert "reward at" in text
    assert len(small.calls) <= 4
    assert small.envs <= 2
