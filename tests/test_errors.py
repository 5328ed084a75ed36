"""The exceptions themselves."""

from __future__ import annotations

import ast
import pickle
from pathlib import Path

import pytest

import vecenvs
from vecenvs.backends.ray.placement import NoPlace
from vecenvs.compat.pfrl import VectorEnvClosedError
from vecenvs.errors import (
    AlreadySteppingError,
    BackendUnavailable,
    ClosedError,
    EnvError,
    NotSteppingError,
    RepeatedEnvError,
    ResetNeededError,
    SpaceMismatch,
    StartTimeout,
    StateError,
    StepTimeout,
    VecEnvError,
    WorkerDied,
)
from vecenvs.replay.errors import (
    ExplorerDied,
    ExplorerError,
    SampleTimeout,
    ServerDied,
)
from vecenvs.transport.shared import MemoryUnreachable
from vecenvs.views.gymnasium.errors import CallTimeout

ERRORS = [
    VecEnvError("something else"),
    EnvError(3, "env 3 raised", "Traceback ..."),
    RepeatedEnvError(1, "env 1 is env 0"),
    StateError(1, "env 1 has not been reset"),
    WorkerDied(1, [4, 5], -9, " on rank 2", "replaced"),
    StepTimeout([0, 1], 2.5),
    StartTimeout(1, [2], 60.0, " on node7"),
    CallTimeout([0], 1.0, "reset"),
    ClosedError("step"),
    VectorEnvClosedError("step", forked=True),
    ClosedError("sample", of="Replay"),
    SpaceMismatch(2, "observation_space", "this", "that"),
    AlreadySteppingError("env 1 has a step"),
    NotSteppingError("recv while nothing is pending"),
    ResetNeededError("env 1 failed before", "reset([1]) it first"),
    BackendUnavailable("pip install it"),
    NoPlace("Ray has none"),
    MemoryUnreachable("no such file"),
    ExplorerError(1, "explorer 1 raised", "Traceback ..."),
    ExplorerDied(1, "killed", 3),
    ServerDied("killed"),
    SampleTimeout(32, 0.5),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_errors_survive_pickling(error: VecEnvError) -> None:
    found = pickle.loads(pickle.dumps(error))
    assert type(found) is type(error)
    assert str(found) == str(error)
    assert repr(found) == repr(error)
    assert found.args == error.args
    assert found.__dict__.keys() == error.__dict__.keys()
    if isinstance(error, EnvError):
        assert found.errors == (found,)
    else:
        assert found.__dict__ == error.__dict__


def test_every_error_is_among_them() -> None:
    bases = {
        node.name: {ast.unparse(base) for base in node.bases}
        for path in Path(vecenvs.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    }
    known = {VecEnvError.__name__}
    while more := {name for name in bases if bases[name] & known} - known:
        known |= more
    assert known == {type(error).__name__ for error in ERRORS}


def test_several_failed_envs_survive_together() -> None:
    first, second = EnvError(0, "env 0 raised"), EnvError(4, "env 4 raised")
    first.errors = (first, second)
    found = pickle.loads(pickle.dumps(first))
    assert [error.index for error in found.errors] == [0, 4]
    assert "so did env 4:" in str(found)


def test_many_failed_envs_are_told_in_few_words() -> None:
    error = EnvError(0, "the batched env of envs 0-4095 raised")
    error.errors = (error, *(EnvError(index, "") for index in range(1, 4096)))
    assert str(error) == "the batched env of envs 0-4095 raised (so did envs 1-4095: see .errors)"


def test_a_reset_is_told_in_the_words_of_an_interface() -> None:
    errors = EnvError(0, "env 0 raised", "Traceback ..."), EnvError(4, "env 4 failed before: reset([4])", "Traceback")
    errors[1].__cause__ = ResetNeededError("env 4 failed before", "reset([4])")
    errors[0].errors = errors
    errors[0].tell_reset(lambda i: f"begin({i})")
    assert "Traceback ..." in str(errors[0]), "one that no reset mends stays as it is"
    for told in (errors[1], pickle.loads(pickle.dumps(errors[1]))):
        assert str(told) == "env 4 failed before: begin(4)"
    assert str(errors[1].__cause__) == "env 4 failed before: begin(4)"
