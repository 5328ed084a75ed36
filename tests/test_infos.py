"""Columns of infos of numbers: what comes out is what went in, types and all. See also the conformance suite."""

from __future__ import annotations

import functools
import pickle
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

import vecenvs
from vecenvs.batch.batch_columns import INFO_NUMBERS, Allocator, BatchColumns
from vecenvs.batch.info_batches import InfoColumn, info_of, merge_disjoint
from vecenvs.batch.infos import RESET, STEP, TRUNCATED_KEY, InfoWriter
from vecenvs.batch.packed_infos import pack, unpack
from vecenvs.pool.info_columns import InfoColumns
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

    def __init__(self, count: int, names: tuple[str, ...] = ()) -> None:
        space = spaces.Discrete(2)
        self.batch = BatchColumns(space, space, count + 3, Allocator(), names)
        self.slots = range(3, count + 3)
        self.writer = InfoWriter(self.batch, slice(3, count + 3))
        self.reader = InfoColumns(names, self.batch, [range(3), self.slots])

    def pass_on(self, infos: list[dict[Any, Any]], which: int = STEP) -> list[dict[str, Any] | None]:
        """Return what the caller gets of each; None if it is not written to columns."""
        left = self.writer.write(which, slice(self.slots.start, self.slots.stop), infos)
        forms = self.writer.new_forms()
        if forms:
            self.reader.open(1, forms)
        found: list[Any] = (
            self.reader.infos(self.slots) if which == STEP else [*map(self.reader.reset_info, self.slots)]
        )
        for slot, info in left:
            assert info is infos[slot - 3] or info == infos[slot - 3]
            assert found[slot - 3] == ({TRUNCATED_KEY: False} if which == STEP else {})
            found[slot - 3] = None
        return found


@given(shards(), st.booleans())
def test_values_and_types_survive(steps: list[list[dict[str, Any]]], apart: bool) -> None:
    """Row by row, or `apart` where one of them has further keys."""
    ends = Ends(len(steps[0]))
    for infos in steps:
        if apart:
            infos[0] = {**infos[0], "one more": 1}
        found = ends.pass_on(infos)
        assert None not in found
        np.testing.assert_equal(found, complete(infos))
        assert [list(map(type, info.values())) for info in found if info] == [
            list(map(type, info.values())) for info in complete(infos)
        ]
        assert [list(info) for info in found if info] == [list(info) for info in complete(infos)]
        resets = ends.pass_on(infos, RESET)
        np.testing.assert_equal(resets, infos)
        np.testing.assert_equal(ends.pass_on(infos), complete(infos))  # those of resets have columns of their own


def test_whether_a_row_is_truncated_is_for_its_flags_to_say() -> None:
    ends, infos = Ends(1), [{TRUNCATED_KEY: True, "it's {x}": 1.5}]
    assert ends.pass_on(infos) == complete(infos)


@pytest.mark.parametrize(
    "infos",
    [
        [{"x": 1.0}, {"y": 1.0}],
        [{"x": 1.0}, {"x": 1}],
        [{"x": True}, {"x": 1}],
        [{"x": 1.0, "y": 1.0}, {"y": 1.0, "x": 1.0}],
        [{"x": 1.0}, {"x": 1.0, "y": 2.0}],
        [{"x": np.float32([1, 2])}, {"x": np.float32([[1], [2]])}],
        [{"x": np.int8([1, 2]), "y": 1}, {"x": np.complex64([1j]), "y": 1}],
        [{}, {"x": 1}],
        [dict.fromkeys(map(str, range(256)), 1.0)] * 2,
    ],
)
def test_rows_that_differ_have_columns_of_their_own(infos: list[dict[Any, Any]]) -> None:
    ends, alike = Ends(2), [{"x": 1.0}, {"x": 1.0}]
    for given_infos in (infos, infos[::-1], infos, alike, infos):
        if len(infos[0]) == 256 and given_infos is alike:
            continue
        found = ends.pass_on(given_infos)
        np.testing.assert_equal(found, complete(given_infos))
        for info, own in zip(found, given_infos, strict=True):
            assert info is not None
            assert [*info] == [*own, TRUNCATED_KEY]
            assert [*map(type, info.values())][:-1] == [*map(type, own.values())]
            assert [each.dtype for each in info.values() if isinstance(each, np.ndarray)] == [
                each.dtype for each in own.values() if isinstance(each, np.ndarray)
            ]


@pytest.mark.parametrize(
    "value",
    ["text", None, 2**63, -(2**63) - 1, np.longdouble(1), 1j, np.zeros(0), np.array(1.0), np.zeros(257),
     np.array(["a"]), np.zeros(2, np.complex128), {}],
    ids=str,
)  # fmt: skip
def test_other_values_are_left_to_pickle(value: Any) -> None:
    """Row by row: what others have in columns stays there. Integers of the same key go together."""
    ends = Ends(2)
    for infos in ([{"x": value}, {"x": 1}], [{"x": 1}, {"x": value}]):
        for _ in range(2):
            assert [info is None for info in ends.pass_on(infos)] == [
                info["x"] is value or type(value) is int for info in infos
            ]
            assert ends.pass_on([{"x": 1}, {"x": 2}]) == complete([{"x": 1}, {"x": 2}])


def test_keys_that_are_no_text_are_left_to_pickle() -> None:
    assert Ends(2).pass_on([{1: 1.0}, {"x": 1.0}]) == [None, {"x": 1.0, TRUNCATED_KEY: False}]


def test_room_and_numbers_of_forms_have_ends() -> None:
    """Infos that come when there is no room left are pickled; those before them keep their columns."""
    ends = Ends(1)
    for k in range(300):
        assert ends.pass_on([{"t": k, f"x{k}": 1.5}]) == (
            complete([{"t": k, f"x{k}": 1.5}]) if k < INFO_NUMBERS - 1 else [None]
        )
    assert ends.pass_on([{"t": 3, "x3": 2.5}]) == complete([{"t": 3, "x3": 2.5}])
    others = Ends(1)
    for number in range(300):
        keys = [name for bit, name in enumerate("abcdefghi") if number + 1 >> bit & 1]
        assert others.pass_on([dict.fromkeys(keys, 1)]) == (
            complete([dict.fromkeys(keys, 1)]) if number < 255 else [None]
        )


def test_rows_without_an_info_have_none() -> None:
    """Nor one of the step before."""
    ends = Ends(2)
    ends.pass_on([{"x": 1}, {"x": 2}])
    assert ends.writer.marked
    assert ends.pass_on([]) == [{TRUNCATED_KEY: False}] * 2
    assert not ends.writer.marked


def test_a_worker_in_the_place_of_another_goes_on_from_its_forms() -> None:
    ends = Ends(2)
    ends.pass_on([{"x": 1}, {"y": 1.5}])
    old = ends.reader.infos(ends.slots)
    ends.writer = InfoWriter(ends.batch, slice(3, 5))
    ends.writer.take_over(ends.reader.forms(1))
    assert ends.writer.new_forms() == ()
    assert ends.writer.write(STEP, [3], [{"z": True, "y": 2.5}]) == []
    ends.reader.open(1, ends.writer.new_forms())
    assert ends.reader.infos(ends.slots) == [{"z": True, "y": 2.5, TRUNCATED_KEY: False}, old[1]]


def test_forms_are_reported_until_they_have_arrived() -> None:
    ends = Ends(2)
    ends.pass_on([{"x": 1}, {"x": 2}])
    assert ends.writer.new_forms() == ()
    ends.writer.report_again()
    assert [form.keys for form in ends.writer.new_forms()] == [("x",)]


def test_attributes_become_pythons_own_numbers() -> None:
    """As arrays, lists or single values, with and without infos of the envs' own, which stay what they are."""
    ends = Ends(2, ("a", "b"))
    for infos in ([], [{"own": np.float64(1)}] * 2, [{"own": np.float64(1)}, {}]):
        for a in (np.array([1.5, 2.5]), [np.float64(1.5), np.float64(2.5)], [1.5, np.float64(2.5)]):
            left = ends.writer.write(STEP, slice(3, 5), infos, ("a", "b"), [a, [np.int64(1), 2]])
            assert not left
            ends.reader.open(1, ends.writer.new_forms() or ends.reader.forms(1))
            found = ends.reader.infos(ends.slots)
            assert [(info["a"], info["b"]) for info in found] == [(1.5, 1), (2.5, 2)]
            assert {(type(info["a"]), type(info["b"])) for info in found} == {(float, int)}
            assert {type(info["own"]) for info in found if "own" in info} <= {np.float64}


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


def test_rows_of_other_shapes_and_their_order() -> None:
    one, other = (InfoColumn(np.array([row]), np.full((1, size), row)) for row, size in ((1, 3), (0, 5)))
    both = merge_disjoint({"route": one}, {"route": other})["route"]
    assert [both.value(row).tolist() for row in (0, 1)] == [[0] * 5, [1] * 3]
    values: dict[str, Any] = {"name": ["a", "b"], "x": np.arange(2), "y": [[], 0]}
    columns = {key: InfoColumn(None, each) for key, each in values.items()}
    assert list(unpack(pack(columns))) == ["name", "x", "y"]
    assert unpack(pack(columns))["name"].values == ["a", "b"]


class OwnLast(CountingEnv):
    """An env whose own infos have the key of last observations."""

    def step(self, action: Any) -> Any:
        *row, _ = super().step(action)
        return *row, {"terminal_observation": self.t}


@pytest.mark.parametrize("engine", [vecenvs.DummyVecEnv, vecenvs.SubprocVecEnv])
def test_an_info_with_a_key_of_the_vec_env(engine: Any) -> None:
    with engine([functools.partial(OwnLast, tag, 3) for tag in range(2)], info_attrs=("t",)) as vec:
        vec.reset()
        for t in range(1, 8):
            _, _, dones, infos = vec.step([0, 0])
            assert dones.all() == (t % 3 == 0)
            last = infos[0]["terminal_observation"]
            assert (last.tolist() == [0, (t + 2) // 3, 3]) if dones[0] else (last == t % 3)


class Swapped(CountingEnv):
    def __init__(self, tag: int) -> None:
        super().__init__(tag, 3)
        self.observation_space: Any = spaces.Box(-9, 9, (3,), np.dtype(">f4"))
        self.action_space: Any = spaces.Box(-9, 9, (2,), np.dtype(">f4"))

    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(0)
        return obs, float(action[1]), *rest


@pytest.mark.parametrize("engine", [vecenvs.DummyVecEnv, vecenvs.SubprocVecEnv])
def test_spaces_of_another_byte_order(engine: Any) -> None:
    with engine([functools.partial(Swapped, tag) for tag in range(3)]) as vec:
        assert vec.reset().tolist() == [[tag, 1, 0] for tag in range(3)]
        actions = np.arange(6).reshape(3, 2).astype(">f4")
        for given in (actions, actions.astype(np.float32)):
            assert vec.step(given)[1].tolist() == [1, 3, 5]
        vec.send(actions[:2], [0, 2])
        batch = vec.recv(indices=[2, 0])
        assert batch.rewards.tolist() == [3, 1]
        assert batch.obs.dtype == np.dtype(">f4")
        assert batch.obs.tolist() == [[2, 2, 0], [0, 2, 0]]


def test_returned_graphs_are_the_callers() -> None:
    """What it writes into them is in no later row: here that of an exception, which repeats the last one."""

    class Graphs(gymnasium.Env[Any, Any]):
        observation_space, action_space = spaces.Graph(spaces.Box(0, 9, (1,)), None), spaces.Discrete(2)

        def _graph(self) -> Any:
            return spaces.GraphInstance(np.ones((2, 1), np.float32), None, None)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return self._graph(), {}

        def step(self, action: Any) -> Any:
            if action:
                raise RuntimeError
            return self._graph(), 0.0, False, False, {}

    with vecenvs.DummyVecEnv([Graphs] * 2, on_error="reset") as vec:
        vec.reset()
        vec.send([0, 0])
        for obs in (vec.recv(2).obs, vec.step([0, 0])[0]):
            obs[0].nodes[:] = 7
        infos = vec.step([1, 0])[3]
        assert infos[0]["terminal_observation"].nodes.tolist() == [[1], [1]]
