"""The exceptions themselves."""

from __future__ import annotations

import pickle

import pytest

from vecenvs.errors import (
    ClosedError,
    EnvError,
    NotSteppingError,
    ResetNeededError,
    SpaceMismatch,
    StepTimeout,
    VecEnvError,
    WorkerDied,
)


@pytest.mark.parametrize(
    "error",
    [
        EnvError(3, "env 3 raised", "Traceback ..."),
        WorkerDied(1, [4, 5], -9, " on rank 2", "replaced"),
        StepTimeout([0, 1], 2.5),
        ClosedError("step"),
        SpaceMismatch(2, "observation_space", "this", "that"),
        NotSteppingError("recv while nothing is pending"),
        ResetNeededError("env 1 failed before", "reset([1]) it first"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_survive_pickling(error: VecEnvError) -> None:
    found = pickle.loads(pickle.dumps(error))
    assert type(found) is type(error)
    assert str(found) == str(error)
    assert found.args == error.args
    assert found.__dict__.keys() == error.__dict__.keys()
    if isinstance(error, EnvError):
        assert found.errors == (found,)
    else:
        assert found.__dict__ == error.__dict__


def test_several_failed_envs_survive_together() -> None:
    first, second = EnvError(0, "env 0 raised"), EnvError(4, "env 4 raised")
    first.errors = (first, second)
    found = pickle.loads(pickle.dumps(first))
    assert [error.index for error in found.errors] == [0, 4]
    assert "so did env 4" in str(found)


def test_a_reset_is_told_in_the_words_of_an_interface() -> None:
    errors = EnvError(0, "env 0 raised", "Traceback ..."), EnvError(4, "env 4 failed before: reset([4])", "Traceback")
    errors[1].__cause__ = ResetNeededError("env 4 failed before", "reset([4])")
    errors[0].errors = errors
    errors[0].tell_reset(lambda i: f"begin({i})")
    assert "Traceback ..." in str(errors[0]), "one that no reset mends stays as it is"
    for told in (errors[1], pickle.loads(pickle.dumps(errors[1]))):
        assert str(told) == "env 4 failed before: begin(4)"
    assert str(errors[1].__cause__) == "env 4 failed before: begin(4)"
