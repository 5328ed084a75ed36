"""Infos of numbers on their way to the caller: what comes out is what went in, types and all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vecenvs.batch.infos import TRUNCATED_KEY, Announced, InfoPacker, InfoUnpacker

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
    """Return some steps of some envs whose infos have one form."""
    form = draw(st.dictionaries(st.text(min_size=1, max_size=8), st.sampled_from(list(VALUES)), min_size=1, max_size=5))
    info = st.tuples(*(VALUES[kind] for kind in form.values())).map(lambda values: dict(zip(form, values, strict=True)))
    count = draw(st.integers(1, 4))
    return draw(st.lists(st.lists(info, min_size=count, max_size=count), min_size=1, max_size=4))


@given(shards())
def test_values_and_types_survive(steps: list[list[dict[str, Any]]]) -> None:
    packer, unpacker = InfoPacker(len(steps[0])), InfoUnpacker()
    for number, infos in enumerate(steps):
        packed = packer.pack(infos)
        assert isinstance(packed, Announced if number == 0 else bytes)
        found = unpacker.unpack(packed)
        expected = [{**info, TRUNCATED_KEY: False} for info in infos]
        np.testing.assert_equal(found, expected)
        assert [list(map(type, info.values())) for info in found] == [list(map(type, i.values())) for i in expected]
        assert [list(info) for info in found] == [list(info) for info in expected]


def test_whether_a_row_is_truncated_is_for_its_flags_to_say() -> None:
    packer, unpacker = InfoPacker(1), InfoUnpacker()
    for _ in range(2):
        packed = packer.pack([{TRUNCATED_KEY: True, "it's {x}": 1.5}])
        assert packed is not None
        assert unpacker.unpack(packed) == [{TRUNCATED_KEY: False, "it's {x}": 1.5}]


def test_a_new_form_is_announced() -> None:
    packer, unpacker = InfoPacker(2), InfoUnpacker()
    first, second = [{"x": 1.0}, {"x": 2.0}], [{"x": 1, "y": True}, {"x": 2, "y": False}]
    for infos in (first, first, second, second, first):
        packed = packer.pack(infos)
        assert packed is not None
        assert [{**info, TRUNCATED_KEY: False} for info in infos] == unpacker.unpack(packed)


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
def test_what_has_no_form_of_numbers_is_left_to_pickle(infos: list[dict[Any, Any]]) -> None:
    packer = InfoPacker(2)
    assert packer.pack(infos) is None
    assert packer.pack([{"x": 1.0}, {"x": 1.0}]) is not None
    assert packer.pack(infos) is None


def test_forms_that_never_settle_are_given_up() -> None:
    packer = InfoPacker(1)
    packed = [packer.pack([{f"key{step}": 1.0}]) for step in range(100)]
    assert isinstance(packed[0], Announced)
    assert packed[-1] is None
