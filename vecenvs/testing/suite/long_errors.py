"""Exceptions whose text has no end, or whose own code raises: the error has a limited text and names its env."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from vecenvs.errors import EnvError
from vecenvs.testing.envs import CountingEnv
from vecenvs.testing.suite.base import Conformance, Make

TEXT = 100_000  # characters are enough for any error


class Locked(Exception):
    """An exception each of whose attributes raises."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(f"there is no {name} here")

    def __setattr__(self, name: str, value: Any) -> None:
        raise RuntimeError(f"no {name} here")

    def __str__(self) -> str:
        raise RuntimeError("nothing to say")


class LoudEnv(CountingEnv):
    """An env whose second step raises an exception of a `kind`: "long", "chained" or "locked"."""

    def __init__(self, tag: int, kind: str) -> None:
        super().__init__(tag, 99)
        self.kind = kind

    def step(self, action: Any) -> Any:
        row = super().step(action)
        if self.steps == 2:
            self._fail()
        return row

    def _fail(self) -> None:
        if self.kind == "long":
            raise ValueError("begun " + "x" * 3_000_000 + " ended")
        if self.kind == "locked":
            raise Locked
        error = ValueError("the first")
        for number in range(3000):
            cause, error = error, ValueError(f"number {number}")
            error.__cause__ = cause
        raise error


class LongErrorConformance(Conformance):
    """Whatever an env raises, its error is short, and nothing else is lost."""

    @pytest.mark.parametrize("kind", ["long", "chained", "locked"])
    def test_errors_without_end(self, make: Make, kind: str) -> None:
        vec = make([functools.partial(CountingEnv, 0, 99), functools.partial(LoudEnv, 1, kind)])
        vec.reset()
        vec.step([0, 0])
        with pytest.raises(EnvError) as caught:
            vec.step([0, 0])
        error = caught.value
        name = {"locked": "Locked"}.get(kind, "ValueError")
        assert str(error).startswith(f"env 1 raised {name} in step: ")
        assert len(str(error)) < TEXT
        assert len(error.remote_traceback) < TEXT
        assert [each.index for each in error.errors] == [1]
        assert error.batch is not None
        assert error.batch.obs.tolist() == [[0, 1, 2]]
        if kind == "long":
            assert "begun xxx" in str(error)
            assert "xxx ended" in str(error)
            assert "are left out here" in str(error)
        if kind == "chained":
            assert "the first" in error.remote_traceback
            assert "number 2999" in error.remote_traceback
        vec.reset([1])
        assert vec.step([0, 0])[0].tolist() == [[0, 1, 3], [1, 2, 1]]
