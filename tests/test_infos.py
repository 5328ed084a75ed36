"""Columns of infos of numbers: what comes out is what went in, types and all. See also the conformance suite."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from vecenvs.batch.batch_columns import Allocator, BatchColumns
from vecenvs.batch.info_batches import InfoColumn, info_of
from vecenvs.batch.infos import TRUNCATED_KEY, InfoForm, InfoTable, InfoWriter
from vecenvs.batch.packed_infos import pack, unpack

VALUES = {
    float: st.floats(),
    int: st.integers(-(2**63), 2**63 - 1),
    bool: st.booleans(),
    np.float64: st.floats().map(np.float64),
    np.float32: st.floats(width=32).map(np.float32),
    np.int64: st.integers(-(2**63), 2**63 - 1).map(np.int64),
    np.int32: st.integers(-(2**31), 2**31 - 1).map(np.int32),
    np.uint8: st.integers(0, 255).map(np.uint8),
    np.float16: st.floats(width=16).map(np.float16),
    np.uint64: st.integers(0, 2**64 - 1).map(np.uint64),
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


class Ends:
    """Both ends of the columns of infos: a worker whose slots are the last ones of a larger batch, and the caller."""

    def __init__(self, count: int) -> None:
        space = spaces.Discrete(2)
        self._batch = BatchColumns(space, space, count + 3, Allocator())
        self._shard = slice(3, count + 3)
        self._writer = InfoWriter(self._batch, self._shard)
        self._table: InfoTable | None = None
        self.opened = 0

    def pass_on(self, infos: list[dict[Any, Any]]) -> list[dict[str, Any]] | None:
        """Return what the caller gets; None if the infos are not written to columns."""
        written = self._writer.write(infos)
        if isinstance(written, InfoForm):
            self._table = InfoTable(self._batch, written, self._shard)
            self.opened += 1
        if not written:
            return None
        assert self._table is not None
        return self._table.infos()


@given(shards())
def test_values_and_types_survive(steps: list[list[dict[str, Any]]]) -> None:
    ends = Ends(len(steps[0]))
    assert ends.pass_on(steps[0]) is None
    for infos in steps:
        found = ends.pass_on(infos)
        assert found is not None
        np.testing.assert_equal(found, complete(infos))
        assert [list(map(type, info.values())) for info in found] == [
            list(map(type, info.values())) for info in complete(infos)
        ]
        assert [list(info) for info in found] == [list(info) for info in complete(infos)]
    assert ends.opened == 1


def test_whether_a_row_is_truncated_is_for_its_flags_to_say() -> None:
    ends, infos = Ends(1), [{TRUNCATED_KEY: True, "it's {x}": 1.5}]
    ends.pass_on(infos)
    assert ends.pass_on(infos) == complete(infos)


def test_new_keys_or_types_get_columns_when_they_come_again() -> None:
    ends = Ends(2)
    first, second = [{"x": 1.0}, {"x": 2.0}], [{"x": 1, "y": True}, {"x": 2, "y": False}]
    for infos in (first, second, first):
        assert ends.pass_on(infos) is None
        for _ in range(2):
            assert ends.pass_on(infos) == complete(infos)
    assert ends.opened == 3


@pytest.mark.parametrize("before", [False, True])
def test_an_integer_beyond_64_bits_does_not_close_the_columns(before: bool) -> None:
    """Also where it comes when the columns are to be opened."""
    ends = Ends(2)
    small, large = [{"x": 1}, {"x": 2}], [{"x": 1}, {"x": 2**63}]
    ends.pass_on(small)
    if before:
        assert ends.pass_on(small) == complete(small)
    for _ in range(2):
        assert ends.pass_on(large) is None
    assert ends.pass_on(small) == complete(small)
    assert ends.opened == 1


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
        [dict.fromkeys(map(str, range(65)), 1.0)] * 2,
    ],
)
def test_infos_that_are_not_alike_or_hold_more_than_numbers_are_left_to_pickle(infos: list[dict[Any, Any]]) -> None:
    ends = Ends(2)
    assert [ends.pass_on(infos) for _ in range(3)] == [None] * 3
    alike = [{"x": 1.0}, {"x": 1.0}]
    ends.pass_on(alike)
    assert ends.pass_on(alike) == complete(alike)
    assert ends.pass_on(infos) is None


def test_columns_of_infos_travel() -> None:
    """Numbers as bytes, which may be written to; what is of another kind as it is."""
    columns = {
        "numbers": InfoColumn(None, np.arange(5, dtype=np.int32)),
        1: InfoColumn(np.array([1, 3]), np.array([True, False])),
        "within": InfoColumn(np.array([2]), {"big": InfoColumn(np.array([2]), np.ones((1, 2, 3), ">f4"))}),
        "empty": InfoColumn(None, np.zeros((5, 0))),
        "turned": InfoColumn(None, np.asfortranarray(np.arange(10).reshape(5, 2))),
        "list": InfoColumn(None, [1, "b", None, [], {}]),
        "mixed": InfoColumn(np.array([0]), {"text": InfoColumn(np.array([0]), ["s"])}),
        "dates": InfoColumn(None, np.zeros(5, "M8[s]")),
    }
    packed = pickle.loads(pickle.dumps(pack(columns)))
    assert set(packed.others) == {"list", "mixed", "dates"}
    found = unpack(packed)
    np.testing.assert_equal([info_of(found, k) for k in range(5)], [info_of(columns, k) for k in range(5)])
    assert found["within"].values["big"].values.dtype == ">f4"
    assert found["numbers"].values.flags.aligned
    found["numbers"].values[0] = 7
    assert unpack(pack({"empty": columns["empty"]}))["empty"].values.shape == (5, 0)
    assert unpack(pack({"list": columns["list"]})) == {"list": columns["list"]}
