"""Infos of numbers, which travel in columns: each value arrives with its bits and its type."""

from __future__ import annotations

import contextlib
import enum
import functools
import math
import os
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from vecenvs.batch.info_arrays import info_columns
from vecenvs.errors import EnvError
from vecenvs.testing.envs import CountingEnv
from vecenvs.testing.info_checks import assert_columns
from vecenvs.testing.suite.base import Conformance, Make

REPEATS = 3  # steps in which the infos have the same keys and types
TRUNCATED_KEY = "TimeLimit.truncated"


class Level(enum.IntEnum):
    """A number with a name."""

    LOW = 1


class Metres(float):
    """A number of a class of its own."""


def forms_of(tag: int, t: int) -> list[dict[Any, Any]]:
    """Return the infos that an env may give at its step t, in each of the forms."""
    return [
        {"x": t / 3, "n": t + tag, "fell": t % 2 == 0},
        {"x": t, "n": t / 3, "fell": np.bool_(t % 2 == 0)},
        {"n": t / 3, "x": t},
        {"x": math.nan, "y": -math.inf, "z": -0.0},
        {"d": np.float64(t / 3), "f": np.float32(t / 3), "e": np.float16(t / 3)},
        {"q": np.int64(-(2**63)), "Q": np.uint64(2**64 - 1), "b": np.int8(-t), "B": np.uint8(t)},
        {"n": 2 ** (61 + t % 4)},  # two of four do not fit 64 bits
        {"n": -(2 ** (61 + t % 4))},
        {} if tag == 1 else {"n": t},
        {},
        {"n": t} if tag == 1 else {"m": t},
        {"n": t if tag else t / 2},
        {"deep": {"x": t / 3}, "n": t},
        {"x": None if t % 2 else 1.5},
        {TRUNCATED_KEY: True, "it's {x}": t},
        {f"x{k}": k * t for k in range(65)},
        {1: t},
        {"x": np.longdouble(t) / 3, "y": complex(t, 1)},
        {"level": Level.LOW, "height": Metres(t)},
        {"x": t / 3, "n": t + tag, "fell": t % 2 == 0},
    ]


FORMS = range(len(forms_of(0, 1)))


class NumbersEnv(CountingEnv):
    """Return infos in one of `forms` for some steps, then in the next; raise at the step `fails`."""

    def __init__(self, tag: int, forms: Iterable[int], length: int = 1000, fails: int = 0) -> None:
        super().__init__(tag, length)
        self.forms = list(forms)
        self.fails = fails

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[Any, Any]]:
        obs, reward, terminated, truncated, _ = super().step(action)
        if self.t == self.fails:
            raise ZeroDivisionError
        return obs, reward, terminated, truncated, numbers(self.forms, self.tag, self.t)


class OneDictEnv(CountingEnv):
    """Return the same dict at each step, with new values."""

    def __init__(self, tag: int) -> None:
        super().__init__(tag, 1000)
        self.info: dict[str, Any] = {"x": 0.0}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        row = super().step(action)
        self.info["x"] = self.t / 3
        return *row[:4], self.info


class Homebound(str):
    """A text that can be unpickled in one process only."""

    def __reduce__(self) -> Any:
        return at_home, (os.getpid(), str(self))


def at_home(home: int, text: str) -> str:
    if os.getpid() != home:
        raise RuntimeError("a Homebound is not for travelling")
    return Homebound(text)


class TextEnv(NumbersEnv):
    """Return text observations; that of env 1 at step `home` cannot be unpickled."""

    def __init__(self, tag: int, home: int = 2) -> None:
        super().__init__(tag, [0])
        self.observation_space: Any = spaces.Text(20)
        self.home = home

    def _observe(self) -> Any:
        return Homebound("a") if (self.tag, self.episode, self.t) == (1, 1, self.home) else "a" * self.t


def numbers(forms: list[int], tag: int, t: int) -> dict[Any, Any]:
    return forms_of(tag, t)[forms[(t - 1) // REPEATS % len(forms)]]


def exactly(info: dict[Any, Any]) -> list[str]:
    """Return the keys, types and values in their order, as text: NaN equals NaN, and 1 is not 1.0."""
    return [f"{key!r}: {type(value)} {value!r}" for key, value in info.items()]


def expected(forms: list[int], tag: int, t: int) -> list[str]:
    """Return what a row's info is, exactly, if no episode begins or ends with it."""
    return exactly({**numbers(forms, tag, t), TRUNCATED_KEY: False})


def numbers_fns(forms: Iterable[int], num_envs: int = 4, **kwargs: Any) -> list[Any]:
    return [functools.partial(NumbersEnv, tag, list(forms), **kwargs) for tag in range(num_envs)]


class InfoConformance(Conformance):
    """Infos of numbers."""

    def test_every_form_after_every_other(self, make: Make) -> None:
        forms = list(FORMS)
        vec = make(numbers_fns(forms))
        vec.reset()
        for t in range(1, REPEATS * (len(forms) + 1)):
            infos = vec.step([0] * 4)[3]
            assert [exactly(info) for info in infos] == [expected(forms, tag, t) for tag in range(4)]

    @pytest.mark.parametrize("shifts", [[0, 0, 4, 2], [0, 0, 3, 3]])
    def test_envs_of_different_forms(self, make: Make, shifts: list[int]) -> None:
        """Some in the same worker, some not; or those of each worker alike."""
        forms = [[shift, shift + 1] for shift in shifts]
        vec = make([functools.partial(NumbersEnv, tag, forms[tag]) for tag in range(4)])
        vec.reset()
        for t in range(1, 4 * REPEATS):
            infos = vec.step([0] * 4)[3]
            assert [exactly(info) for info in infos] == [expected(forms[tag], tag, t) for tag in range(4)]

    @pytest.mark.parametrize("autoreset", ["same_step", "next_step", "async"])
    def test_ends_of_episodes(self, make: Make, autoreset: str) -> None:
        vec = make([functools.partial(NumbersEnv, tag, [0, 1], 5 + tag) for tag in range(4)], autoreset=autoreset)
        obs, seen = vec.reset(), 0
        while seen < 60:  # in async mode rows are left out while an env is being reset
            before = obs
            obs, _, dones, infos = vec.step([0] * 4)
            active = vec.active
            for tag, info in enumerate(infos):
                if active[tag] and not (dones[tag] and autoreset == "async"):
                    t = int(before[tag][2]) + 1
                    wanted = numbers([0, 1], tag, t)
                    assert exactly({key: info[key] for key in wanted}) == exactly(wanted)
                    assert ("terminal_observation" in info) == dones[tag]
                    seen += 1

    def test_beside_attributes(self, make: Make) -> None:
        forms = [0, 1, 3, 0]
        vec = make(numbers_fns(forms), info_attrs=["steps"])
        vec.reset()
        for t in range(1, REPEATS * 5):
            for tag, info in enumerate(vec.step([0] * 4)[3]):
                assert sorted(exactly(info)) == sorted([*expected(forms, tag, t), f"'steps': {int} {t}"])
            assert vec.info_array("steps").tolist() == [t] * 4

    def test_between_single_rows(self, make: Make) -> None:
        """Rows of `send`, which bring their infos one by one, change nothing."""
        vec, forms = make(numbers_fns([0])), [0]
        vec.reset()
        for _ in range(3):
            vec.step([0] * 4)
        for t in range(4, 8):
            vec.send([0] * 4)
            batch = vec.recv(4)
            for tag, info in zip(batch.indices.tolist(), batch.infos, strict=True):
                assert exactly({**info, TRUNCATED_KEY: info.pop(TRUNCATED_KEY)}) == expected(forms, tag, t)
        for t in range(8, 11):
            assert [exactly(info) for info in vec.step([0] * 4)[3]] == [expected(forms, tag, t) for tag in range(4)]

    def test_beside_an_env_that_fails(self, make: Make) -> None:
        vec = make([*numbers_fns([0], 3), functools.partial(NumbersEnv, 3, [0], fails=4)])
        vec.reset()
        for _ in range(3):
            vec.step([0] * 4)
        with pytest.raises(EnvError) as caught:
            vec.step([0] * 4)
        assert caught.value.batch is not None
        assert [exactly(info) for info in caught.value.batch.infos] == [expected([0], tag, 4) for tag in range(3)]
        vec.reset([3])
        for t in (1, 2, 3):
            infos = vec.step([0] * 4)[3]
            assert [exactly(info) for info in infos] == [
                expected([0], tag, t if tag == 3 else t + 4) for tag in range(4)
            ]

    def test_beside_rows_that_cannot_be_unpickled(self, make: Make) -> None:
        """Also if the keys and types come with these rows for the first time."""
        vec = make([functools.partial(TextEnv, tag) for tag in range(4)])
        vec.reset()
        with contextlib.suppress(EnvError):
            vec.step([0] * 4)
            vec.step([0] * 4)
        vec.reset()
        for t in range(1, 4):
            infos = vec.step([0] * 4)[3]
            assert [exactly(info) for info in infos] == [expected([0], tag, t) for tag in range(4)]

    def test_after_a_row_that_cannot_be_unpickled(self, make: Make) -> None:
        """The keys and types that come with it for the first time are those of rows that are sent before it is read."""
        vec = make([functools.partial(TextEnv, tag, 1) for tag in range(4)])
        vec.reset()
        vec.send([0], [1])
        vec.send([0], [0])
        infos = vec.recv(indices=[0]).infos
        assert exactly(infos[0]) == expected([0], 0, 1)
        with contextlib.suppress(EnvError):
            vec.recv(indices=[1])

    def test_infos_as_columns(self, make: Make) -> None:
        """One array for each key, whatever the infos have, of a step and of rows that are received."""
        vec = make(numbers_fns(FORMS, length=7))
        vec.reset()
        for _ in range(REPEATS * len(FORMS)):
            infos = vec.step([0] * 4)[3]
            assert_columns(infos)
        assert info_columns(infos)["TimeLimit.truncated"].mask.all()
        vec.send([0, 0], [1, 3])
        assert_columns(vec.recv(2).infos)
        assert info_columns([{"a": 1.5, "b": {"c": 2}}, {"a": 2.5}, {"a": 3.5, "b": {}}])["a"].values.dtype == float
        assert info_columns([{"a": 2**54 + 1}, {"a": 2**63}])["a"].values.tolist() == [2**54 + 1, 2**63]

    def test_each_info_is_a_dict_of_its_own(self, make: Make) -> None:
        """Also where the env returns one dict again and again, and where the caller changes what it gets."""
        vec = make([functools.partial(OneDictEnv, tag) for tag in range(4)])
        vec.reset()
        kept = []
        for t in range(1, 7):
            infos = vec.step([0] * 4)[3]
            assert [info["x"] for info in infos] == [t / 3] * 4
            kept.append(infos[2])
            infos[0].clear()
            infos[1]["x"] = infos[1]["more"] = None
        assert [info["x"] for info in kept] == [t / 3 for t in range(1, 7)]
