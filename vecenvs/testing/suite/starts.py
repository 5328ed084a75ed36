"""Env functions and spaces that cannot travel between processes: the same error on every engine."""

from __future__ import annotations

import functools
import gc
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from vecenvs.batched import Batched
from vecenvs.errors import EnvError
from vecenvs.testing.envs import CountingEnv, ToyError, counting_fns
from vecenvs.testing.suite.base import Conformance, Make
from vecenvs.transport.pickling import PickledFns


class Unreadable:
    """An env function that can be pickled, but raises where it is unpickled."""

    def __call__(self) -> CountingEnv:
        return CountingEnv(1)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return refuse, ()


def refuse() -> Any:
    raise ToyError("not here")


class Held(spaces.Discrete):
    """A space that cannot be pickled."""

    def __init__(self) -> None:
        super().__init__(3)
        self.lock = threading.Lock()


class AtHome(spaces.Discrete):
    """A space that only the process that made it can unpickle."""

    def __init__(self, home: int | None = None) -> None:
        super().__init__(3)
        self.home = os.getpid() if home is None else home
        if self.home != os.getpid():
            raise ToyError("not at home")

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return AtHome, (self.home,)


def with_space(tag: int, make_space: Callable[[], spaces.Space[Any]]) -> gymnasium.Env[Any, Any]:
    env = CountingEnv(tag)
    env.action_space = make_space()
    return env


UNPICKLED: weakref.WeakSet[Data] = weakref.WeakSet()  # in this process


class Data:
    """Stands for data that all env functions share, and of which an env takes what it needs."""

    def __init__(self) -> None:
        self.numbers = np.arange(1000)

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        UNPICKLED.add(self)


def identities(env: Any) -> tuple[int, int, int]:
    """Return what envs of one process have in common: the process, their data, their class."""
    return os.getpid(), id(env.data), id(type(env))


def left_of_making(_: Any) -> int:
    """Return how much of what was needed to make this process's envs is still there."""
    return len(UNPICKLED) + sum(len(each._data) for each in gc.get_objects() if type(each) is PickledFns)  # noqa: SLF001


class StartConformance(Conformance):
    """EnvError for what does not travel, and never the death of a worker; all is well where nothing has to travel."""

    def test_a_function_that_cannot_be_unpickled(self, make: Make) -> None:
        fns: list[Any] = counting_fns(4)
        fns[1] = Unreadable()
        try:
            vec = make(fns)
        except EnvError as error:
            assert error.index == 1
            assert isinstance(error.__cause__, ToyError)
            assert "env 1 raised ToyError in its env function: not here" in str(error)
        else:
            assert vec.get_attr("tag") == [0, 1, 2, 3]

    def test_spaces_that_cannot_be_pickled(self, make: Make) -> None:
        with pytest.raises(EnvError, match="env 0 .*cannot pickle|env 0 has an action_space that cannot be pickled"):
            make([functools.partial(with_space, tag, Held) for tag in range(4)])

    def test_spaces_that_cannot_be_unpickled(self, make: Make) -> None:
        try:
            vec = make([functools.partial(with_space, tag, AtHome) for tag in range(4)])
        except EnvError as error:
            assert error.index == 0
            assert "cannot be unpickled in another process (ToyError: not at home)" in str(error)
        else:
            assert vec.reset().shape == (4, 3)

    @pytest.mark.parametrize("way", ["closure", "partial", "batched"])
    def test_what_env_functions_share(self, make: Make, way: str) -> None:
        """It is shared by the envs of a worker, too, classes of a script included; what made them is freed."""
        data = Data()

        class Local(CountingEnv):
            def __init__(self, data: Any, tag: int) -> None:
                super().__init__(tag)
                self.data = data.numbers

        fns: list[Any] = [functools.partial(Local, data, tag) for tag in range(4)]
        if way == "closure":
            fns = [lambda tag=tag: Local(data, tag) for tag in range(4)]
        if way == "batched":
            fns = [
                Batched(functools.partial(SyncVectorEnv, [fn], autoreset_mode=AutoresetMode.SAME_STEP), 1) for fn in fns
            ]
        vec = make(fns)
        assert vec.get_attr("tag") == [0, 1, 2, 3]
        found = vec.call(identities, None)
        assert len({*found}) == len({pid for pid, *_ in found}), found
        if way != "batched":  # a SyncVectorEnv keeps its functions
            assert vec.call(left_of_making, None) == [0] * 4
