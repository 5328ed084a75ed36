"""Infos of numbers on their way to the caller: what comes out is what went in, types and all."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vecenvs import DummyVecEnv, SubprocVecEnv
from vecenvs.batch.infos import TRUNCATED_KEY, InfoPacker, unpack_infos
from vecenvs.testing.envs import CountingEnv

VALUES = {
    float: st.floats(),
    int: st.integers(-(2**63), 2**63 - 1),
    bool: st.booleans(),
    np.float64: st.floats().map(np.float64),
    np.float32: st.floats(width=32).map(np.float32),
    np.int64: st.integers(-(2**63), 2**63 - 1).map(np.int64),
    np.int32: st.integers(-(2**31), 2**31 - 1).map(np.int32),
    np.uint8: st.integers(0, 255).map(np.uint8),
    np.bool_: st.booleans().map(np.bool_),
}


@st.composite
def shards(draw: st.DrawFn) -> list[list[dict[str, Any]]]:
    """Make some steps of envs whose infos have the same keys and types."""
    form = draw(st.dictionaries(st.text(min_size=1, max_size=8), st.sampled_from(list(VALUES)), min_size=1, max_size=5))
    info = st.tuples(*(VALUES[kind] for kind in form.values())).map(lambda values: dict(zip(form, values, strict=True)))
    count = draw(st.integers(1, 4))
    return draw(st.lists(st.lists(info, min_size=count, max_size=count), min_size=1, max_size=4))


def complete(infos: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what the caller gets of these infos."""
    return [{**info, TRUNCATED_KEY: False} for info in infos]


class Varied(CountingEnv):
    """Its infos have the same keys and types for three steps, then others."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, _ = super().step(action)
        t = int(self.t)
        infos: list[dict[str, Any]] = [
            {"x": t / 2, "n": t, "fell": False},
            {"x": np.float64(t), "y": np.float32(t) / 3, "n": np.int64(t), "fell": np.bool_(True)},
            {"x": None, "n": t},
            {"n": 2**70, TRUNCATED_KEY: 3, "x": t},
            {TRUNCATED_KEY: False, "x": t},
            {} if self.tag else {"x": 1.0},
        ]
        return obs, reward, terminated, truncated, infos[t // 3 % len(infos)]


def test_infos_are_the_same_in_process_and_from_workers() -> None:
    """Values, types and the order of keys."""
    found = []
    for engine in (DummyVecEnv, functools.partial(SubprocVecEnv, num_workers=2)):
        with engine([functools.partial(Varied, tag, 25) for tag in range(3)]) as vec:
            vec.reset()
            steps = [vec.step([0] * 3)[3] for _ in range(22)]
        found.append([[(key, type(value), value) for key, value in info.items()] for infos in steps for info in infos])
    assert found[0] == found[1]


@settings(deadline=None)
@given(shards())
def test_values_and_types_survive(steps: list[list[dict[str, Any]]]) -> None:
    packer = InfoPacker()
    assert packer.pack(steps[0]) is None
    for infos in steps:
        packed = packer.pack(infos)
        assert packed is not None
        found = unpack_infos(memoryview(packed))
        np.testing.assert_equal(found, complete(infos))
        assert [list(map(type, info.values())) for info in found] == [
            list(map(type, info.values())) for info in complete(infos)
        ]
        assert [list(info) for info in found] == [list(info) for info in complete(infos)]


def test_whether_a_row_is_truncated_is_for_its_flags_to_say() -> None:
    packer, infos = InfoPacker(), [{TRUNCATED_KEY: True, "it's {x}": 1.5}]
    packer.pack(infos)
    packed = packer.pack(infos)
    assert packed is not None
    assert unpack_infos(packed) == complete(infos)


def test_new_keys_or_types_are_packed_when_they_come_again() -> None:
    packer = InfoPacker()
    first, second = [{"x": 1.0}, {"x": 2.0}], [{"x": 1, "y": True}, {"x": 2, "y": False}]
    for infos in (first, second, first):
        assert packer.pack(infos) is None
        for _ in range(2):
            packed = packer.pack(infos)
            assert packed is not None
            assert unpack_infos(packed) == complete(infos)


@pytest.mark.parametrize(
    "infos",
    [
        [{"x": 1.0}, {"y": 1.0}],
        [{"x": 1.0}, {"x": 1}],
        [{"x": 1.0, "y": 1.0}, {"y": 1.0, "x": 1.0}],
        [{"x": 1.0}, {"x": 1.0, "y": 2.0}],
        [{"x": "text"}, {"x": "text"}],
        [{"x": None}, {"x": None}],
        [{"x": np.zeros(3)}, {"x": np.zeros(3)}],
        [{"x": 2**63}, {"x": 1}],
        [{1: 1.0}, {1: 1.0}],
    ],
)
def test_infos_that_are_not_alike_or_hold_more_than_numbers_are_left_to_pickle(infos: list[dict[Any, Any]]) -> None:
    packer = InfoPacker()
    assert [packer.pack(infos) for _ in range(3)] == [None] * 3
    packer.pack([{"x": 1.0}, {"x": 1.0}])
    assert packer.pack([{"x": 1.0}, {"x": 1.0}]) is not None
    assert packer.pack(infos) is None
