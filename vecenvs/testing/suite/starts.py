"""Env functions and spaces that cannot travel between processes: the same error on every engine."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import Any

import gymnasium
import pytest
from gymnasium import spaces

from vecenvs.errors import EnvError
from vecenvs.testing.envs import CountingEnv, ToyError, counting_fns
from vecenvs.testing.suite.base import Conformance, Make


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
