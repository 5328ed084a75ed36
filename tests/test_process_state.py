"""`check_shares_process` finds envs that need a process each, and these work with one."""

from __future__ import annotations

import functools
import os
import random
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest

from vecenvs import SubprocVecEnv
from vecenvs.errors import EnvError
from vecenvs.testing.envs import CountingEnv, ToyError
from vecenvs.testing.process_state import check_shares_process


class MovingEnv(CountingEnv):
    """An env that changes the current directory: when it is made, or by a reset."""

    def __init__(self, where: str, *, at: str) -> None:
        super().__init__()
        self.where, self.at = where, at
        self._move("making")

    def reset(self, **given: Any) -> Any:
        self._move("reset")
        return super().reset(**given)

    def directory(self) -> str:
        return os.getcwd()

    def _move(self, doing: str) -> None:
        if doing == self.at:
            os.chdir(self.where)


class DrawingEnv(CountingEnv):
    """An env whose rewards are drawn from a global generator, which it seeds in `reset`."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self.module.seed(seed)
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(action)
        return (obs, self.module.random(), *rest)


class SharingEnv(CountingEnv):
    """An env with a clock that all of its class share."""

    clock: ClassVar[list[int]] = [0]

    def reset(self, **given: Any) -> Any:
        self.clock[0] = 0
        return super().reset(**given)

    def step(self, action: Any) -> Any:
        self.clock[0] += 1
        obs, _, *rest = super().step(action)
        return (obs, float(self.clock[0]), *rest)


class SingleEnv(CountingEnv):
    """An env of a simulator that exists once per process."""

    here: ClassVar[list[Any]] = []

    def __init__(self) -> None:
        super().__init__()
        if self.here:
            raise ToyError("there is one already")
        self.here.append(self)

    def close(self) -> None:
        self.here.clear()


class LuckyEnv(CountingEnv):
    """An env whose rows nothing can tell in advance."""

    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(action)
        return (obs, float(np.random.default_rng().random()), *rest)


@pytest.mark.parametrize(
    ("fn", "told"),
    [
        (functools.partial(MovingEnv, "/", at="making"), "making it changes the current directory"),
        (functools.partial(MovingEnv, "/", at="reset"), "its reset changes the current directory"),
        (functools.partial(DrawingEnv, random), "global generator of `random`.*rows change when another"),
        (functools.partial(DrawingEnv, np.random), "NumPy's global generator.*rows change when another"),
        (SharingEnv, "^its rows change when another one is in the process"),
        (SingleEnv, "^a second one in the same process raises ToyError: there is one already"),
    ],
)
def test_what_it_finds(fn, told):
    home, state = os.getcwd(), random.getstate()
    with pytest.raises(AssertionError, match=f"{told}.*num_workers=num_envs"):
        check_shares_process(fn, steps=20)
    assert (os.getcwd(), random.getstate()) == (home, state)


@pytest.mark.parametrize("fn", [CountingEnv, functools.partial(gymnasium.make, "CartPole-v1"), LuckyEnv])
def test_others_pass(fn):
    check_shares_process(fn, steps=20)


def test_an_env_that_raises_alone():
    def make():
        raise ToyError("no simulator")

    with pytest.raises(EnvError, match="ToyError.*no simulator"):
        check_shares_process(make)


def test_a_process_each_cures_them(tmp_path):
    home = os.getcwd()
    folders = [tmp_path / str(i) for i in range(3)]
    for folder in folders:
        folder.mkdir()
    with SubprocVecEnv([functools.partial(MovingEnv, str(f), at="reset") for f in folders], num_workers=3) as vec:
        vec.reset()
        vec.step([0] * 3)
        assert vec.env_method("directory") == [str(f.resolve()) for f in folders]
        assert os.getcwd() == home
    with SubprocVecEnv([SingleEnv, SharingEnv, functools.partial(DrawingEnv, random)], num_workers=3) as vec:
        vec.reset(seed=3)
        rewards = [vec.step([0] * 3)[1] for _ in range(4)]
        alone = random.Random(3 + 2)
        assert [row[1] for row in rewards] == [1, 2, 3, 4]
        assert [row[2] for row in rewards] == [np.float32(alone.random()) for _ in range(4)]
