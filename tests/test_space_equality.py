"""Spaces that come from different processes: which ones are equal, and spaces of a script's own."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from vecenvs.batch.space_equality import same_space
from vecenvs.errors import SpaceMismatch


class Custom(spaces.Space[Any]):
    """A space whose only attribute is what it is given."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value

    def __repr__(self) -> str:  # for names of tests that are the same in every run
        return f"{type(self).__name__}({self.value!r})"


class Slotted(Custom):
    """One that keeps something where `vars` does not show it."""

    __slots__ = ("more",)

    def __init__(self, more: int) -> None:
        super().__init__(0)
        self.more = more


class Other(Custom):
    """The same, by another name."""


class Never(Custom):
    """What its class says is not to be doubted."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return False


class Opaque:
    """What is equal to itself alone."""


VALUES: list[Any] = [
    1,
    "a",
    None,
    [1, (2.0, "b")],
    {"a": 1, "b": np.arange(3)},
    np.arange(6.0).reshape(2, 3),
    np.array([np.nan, 1.0]),
    np.array(["x", None, 3], dtype=object),
    {1, 2},
    spaces.Discrete(3),
    spaces.Dict(a=Custom(2)),
    Custom(Custom(np.zeros(2))),
    len,
]


@pytest.mark.parametrize("value", VALUES, ids=str)
def test_equal_attributes(value: Any) -> None:
    one, other = Custom(value), copy.deepcopy(Custom(value))
    other.seed(1)
    assert one != other
    assert same_space(one, other)
    assert same_space(spaces.Tuple([one]), spaces.Tuple([other]))
    assert not same_space(one, Other(value))
    assert not any(same_space(one, Custom(changed)) for changed in VALUES if changed is not value)


def test_what_tells_spaces_apart() -> None:
    assert same_space(Slotted(1), Slotted(1))
    assert not same_space(Slotted(1), Slotted(2))
    assert not same_space(Custom(np.zeros(2)), Custom(np.zeros(2, np.float32)))
    assert not same_space(Custom({"a": 1, "b": 2}), Custom({"b": 2, "a": 1}))
    assert not same_space(Custom(Opaque()), Custom(Opaque()))
    assert not same_space(Custom(lambda: 1), Custom(lambda: 1))
    assert not same_space(Never(1), Never(1))
    assert not same_space(spaces.Dict(a=Never(1)), spaces.Dict(a=Never(1)))
    assert not same_space(spaces.Discrete(2), spaces.Discrete(3))
    loops = [Custom(None), Custom(None)]
    for loop in loops:
        loop.value = loop
    assert not same_space(*loops)


def test_a_mismatch_that_nobody_sees_names_eq() -> None:
    assert "__eq__" in str(SpaceMismatch(1, "observation_space", Custom(Opaque()), Custom(Opaque())))
    assert "__eq__" not in str(SpaceMismatch(1, "observation_space", spaces.Discrete(2), spaces.Discrete(3)))


SCRIPT = """
import sys
import gymnasium
from gymnasium import spaces
from vecenvs import SubprocVecEnv

class Bare(spaces.Space):
    def sample(self, mask=None, probability=None):
        return 0

class Equal(Bare):
    def __eq__(self, other):
        return isinstance(other, Equal)

class Env(gymnasium.Env):
    observation_space = spaces.Dict(a=Bare(), b=Equal())
    action_space = spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        return {"a": 0, "b": 1}, {}

if __name__ == "__main__":
    with SubprocVecEnv([Env] * 3, 3, start_method=sys.argv[1]) as vec:
        assert isinstance(vec.observation_space["b"], Equal)
        assert list(vec.reset()["b"]) == [1, 1, 1]
"""


@pytest.mark.sparse
@pytest.mark.parametrize("start_method", ["fork", "forkserver", "spawn"])
def test_spaces_of_a_script(start_method: str, tmp_path: Path) -> None:
    """Their classes are those of `__main__`, wherever the spaces were made."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, str(script), start_method]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("wrapped", [False, True])
def test_equal_bounds_are_not_compared_within_a_tolerance(monkeypatch: pytest.MonkeyPatch, wrapped: bool) -> None:
    """Which takes tens of seconds for observations of 200 MB."""
    box: spaces.Space[Any] = spaces.Box(np.zeros(5, np.float32), np.ones(5, np.float32))
    space = spaces.Dict(a=box) if wrapped else box
    other = copy.deepcopy(space)

    compared: list[object] = []
    monkeypatch.setattr(spaces.Box, "__eq__", lambda *boxes: compared.append(boxes) is None)
    assert same_space(space, other)
    assert not compared
