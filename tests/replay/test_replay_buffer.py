"""The buffer in one process: layout, draws, priorities, wrong input."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from hypothesis import given, settings
from hypothesis import strategies as st
from numbered import ACTION, HIGH, OBS, numbers, transitions

from vecenvs.batch.layout import SpaceLayout
from vecenvs.errors import BackendUnavailable
from vecenvs.replay import ReplayBuffer, Schema
from vecenvs.testing.envs import NESTED, SPACES

FIXED = [name for name, space in SPACES.items() if not SpaceLayout(space).has_objects]
SCALARS = {"reward": np.float32, "terminated": bool, "truncated": bool, "explorer": np.int32, "episode": np.int64}


def buffer_of(capacity: int = 10, **kwargs: Any) -> ReplayBuffer:
    return ReplayBuffer(OBS, ACTION, capacity, **kwargs)


def full(**kwargs: Any) -> ReplayBuffer:
    """Return a buffer with capacity for ten rows, which holds 13, ..., 22."""
    buffer = buffer_of(10, **kwargs)
    for begin, end in ((0, 9), (9, 17), (17, 23)):
        buffer.add(transitions(begin, end))
    return buffer


@pytest.mark.parametrize("which", ["observation", "action"])
@pytest.mark.parametrize("name", FIXED)
def test_any_space_comes_back(name: str, which: str) -> None:
    """Check values, dtypes and nesting; all arrays belong to the caller."""
    n, space = 5, SPACES[name]
    pair = (space, ACTION) if which == "observation" else (OBS, space)
    batched = [batch_space(part, n) for part in pair]
    for seed, part in enumerate(batched):
        part.seed(seed)
    given = transitions(0, n)
    given |= {"obs": batched[0].sample(), "action": batched[1].sample(), "next_obs": batched[0].sample()}
    schema = Schema(*pair)
    assert schema.row_bytes % 8 == 0
    buffer = ReplayBuffer(*pair, n, seed=0)
    buffer.add(given)
    for found, order in ((schema.unpack(schema.pack(given)), np.arange(n)), (buffer.sample(n), None)):
        order = found["reward"].astype(int) if order is None else order
        for key, part in zip(("obs", "action", "next_obs"), (*pair, pair[0]), strict=True):
            layout = SpaceLayout(part)
            for got, put, leaf in zip(
                layout.flatten(found[key]), layout.flatten(given[key]), layout.leaves, strict=True
            ):
                assert got.dtype == leaf.dtype
                assert got.flags.writeable
                assert got.flags.c_contiguous
                np.testing.assert_array_equal(got, np.asarray(put)[order])


def test_dtypes_of_the_rest() -> None:
    batch = full(prioritized=True).sample(4)
    expected = {**SCALARS, "weights": np.float32, "indexes": np.int64}
    assert {name: batch[name].dtype for name in expected} == {k: np.dtype(v) for k, v in expected.items()}
    assert all(batch[name].shape == (4,) for name in expected)
    assert list(batch) == ["obs", "action", "next_obs", *expected]


@settings(max_examples=40)
@given(st.integers(1, 12), st.lists(st.integers(0, 30), min_size=1, max_size=6), st.booleans())
def test_samples_are_of_everything_stored_and_of_nothing_else(
    capacity: int, sizes: list[int], prioritized: bool
) -> None:
    """This holds after the ring has wrapped, and for fragments of any size, also larger than the buffer."""
    buffer = buffer_of(capacity, prioritized=prioritized)
    total = 0
    for size in sizes:
        assert buffer.add(transitions(total, total + size)) == size
        total += size
        stored = range(max(total - capacity, 0), total)
        assert len(buffer) == len(stored)
        assert buffer.inserted == total
        seen: set[int] = set()
        for _ in range(400):
            if seen == set(stored):
                break
            batch = buffer.sample(len(stored))
            found = numbers(batch)
            assert set(found) <= set(stored)
            if prioritized:
                assert batch["indexes"].tolist() == found, "indexes are insertion numbers"
            seen.update(found)
        assert seen == set(stored)


@pytest.mark.parametrize("prioritized", [False, True])
def test_clear(prioritized: bool) -> None:
    """Only new transitions are drawn, and indexes continue, also after the ring has wrapped again."""
    buffer = buffer_of(10, prioritized=prioritized)
    buffer.add(transitions(0, 13))
    buffer.clear()
    assert len(buffer) == 0
    for begin, end in ((13, 16), (16, 21), (21, 30)):
        buffer.add(transitions(begin, end))
        batches = [buffer.sample(len(buffer)) for _ in range(60)]
        found = [k for batch in batches for k in numbers(batch)]
        assert set(found) == set(range(max(13, end - 10), end))
        if prioritized:
            assert [k for batch in batches for k in batch["indexes"].tolist()] == found


def test_uniform_draws_are_even() -> None:
    """All fields of a row are drawn together, which `numbers` checks."""
    buffer = full(seed=3)
    counts = np.bincount([k for _ in range(200) for k in numbers(buffer.sample(10))], minlength=23)
    assert counts[:13].sum() == 0
    assert counts[13:].min() > 120  # 200 expected each; less than 120 has a chance below 1e-8


def test_seeds() -> None:
    draws = [[numbers(buffer.sample(8)) for _ in range(3)] for buffer in (full(seed=1), full(seed=1), full(seed=2))]
    assert draws[0] == draws[1] != draws[2]


def test_the_global_random_state_is_left_alone() -> None:
    buffer = full(seed=1)
    before = np.random.get_state()[1].tolist()  # noqa: NPY002
    buffer.sample(8)
    assert np.random.get_state()[1].tolist() == before  # noqa: NPY002


class TestPriorities:
    """Indexes identify transitions, although cpprb's own are positions."""

    def test_high_ones_are_drawn_most_and_weigh_least(self) -> None:
        buffer = full(prioritized=True, alpha=1.0)
        assert buffer.update_priorities(range(13, 23), [1.0] * 9 + [9.0]) == 10
        batch = buffer.sample(10, beta=1.0)
        counts = np.bincount([k for _ in range(200) for k in numbers(buffer.sample(10))], minlength=23)
        assert counts[22] > 4 * counts[13:22].max()
        weights = dict(zip(numbers(batch), batch["weights"].tolist(), strict=True))
        assert weights[22] == pytest.approx(1 / 9, rel=0.01)
        assert set(np.round([w for k, w in weights.items() if k != 22], 3)) <= {1.0}

    def test_what_is_overwritten_is_left_alone(self) -> None:
        buffer = full(prioritized=True, alpha=1.0)
        assert buffer.update_priorities([12, 13, 3], [1e6] * 3) == 1, "12 and 3 are gone; 23 has the slot of 13 next"
        buffer.add(transitions(23, 24))
        assert buffer.update_priorities([13], [1e6]) == 0

    def test_those_of_what_is_gone_shift_no_others(self) -> None:
        """Overwritten transitions lose their priority, in one large insertion and later."""
        buffer = buffer_of(2, prioritized=True, alpha=1.0)
        buffer.add(transitions(0, 4), priorities=[HIGH, HIGH, HIGH, 0.0])
        assert {k for _ in range(20) for k in numbers(buffer.sample(2))} == {2}
        assert buffer.update_priorities([0, 2, 3], [HIGH, 0.0, HIGH]) == 2
        assert {k for _ in range(20) for k in numbers(buffer.sample(2))} == {3}

    def test_given_on_insertion(self) -> None:
        buffer = buffer_of(10, prioritized=True, alpha=1.0)
        buffer.add(transitions(0, 10), priorities=[0.0] * 9 + [100.0])
        counts = np.bincount([k for _ in range(20) for k in numbers(buffer.sample(10))], minlength=10)
        assert counts[9] > 190

    def test_wrong_ones(self) -> None:
        buffer = full(prioritized=True)
        with pytest.raises(ValueError, match=r"priorities have shape \(2,\), but 1 transitions"):
            buffer.update_priorities([14], [1.0, 2.0])
        with pytest.raises(ValueError, match="finite numbers from 0 on"):
            buffer.update_priorities([14], [float("nan")])
        with pytest.raises(ValueError, match="indexes from 23 to 23, but 0 to 22"):
            buffer.update_priorities([23], [1.0])
        with pytest.raises(ValueError, match="indexes must be those of a batch"):
            buffer.update_priorities([0.5], [1.0])
        with pytest.raises(ValueError, match="prioritized=True"):
            full().update_priorities([14], [1.0])
        with pytest.raises(ValueError, match="prioritized=True"):
            full().add(transitions(0, 1), priorities=[1.0])

    def test_no_seed(self) -> None:
        """A seed would have no effect, because cpprb has none for prioritised draws."""
        with pytest.raises(ValueError, match="seed has no effect with prioritized=True"):
            buffer_of(prioritized=True, seed=0)


class TestWrongInput:
    """The error names the field, and nothing is stored."""

    def test_a_batch_larger_than_what_is_stored(self) -> None:
        buffer = buffer_of()
        with pytest.raises(ValueError, match="a batch of 1 from 0 stored"):
            buffer.sample(1)
        buffer.add(transitions(0, 4))
        with pytest.raises(ValueError, match="a batch of 5 from 4 stored"):
            buffer.sample(5)
        with pytest.raises(ValueError, match="batch_size must be at least 1, not 0"):
            buffer.sample(0)

    @pytest.mark.parametrize(
        ("change", "error", "words"),
        [
            ({"obs": np.zeros((4, 3), np.float32)}, ValueError, r"obs has shape \(4, 3\), but 4 .* take \(4, 2\)"),
            ({"next_obs": np.zeros((3, 2), np.float32)}, ValueError, r"next_obs has shape \(3, 2\)"),
            ({"action": np.full(4, 0.5)}, TypeError, "action have dtype float64, but int64 is needed"),
            ({"explorer": np.array([0, 1, 2, 2**40])}, TypeError, "explorer have dtype int64, but int32 is needed"),
            ({"terminated": np.zeros((4, 1), bool)}, ValueError, r"terminated has shape \(4, 1\)"),
            ({"reward": 1.0}, ValueError, "reward has no rows"),
            ({"done": np.zeros(4)}, ValueError, r"unknown fields \['done'\]"),
        ],
    )  # fmt: skip
    def test_fields(self, change: dict[str, Any], error: type[Exception], words: str) -> None:
        buffer = buffer_of()
        with pytest.raises(error, match=words):
            buffer.add({**transitions(0, 4), **change})
        assert len(buffer) == 0

    @pytest.mark.parametrize("dtype", [np.uint16, np.int64])
    def test_integers_must_fit(self, dtype: Any) -> None:
        """A number that the space's dtype does not hold is refused, whatever its own dtype."""
        schema = Schema(spaces.Box(0, 255, (2,), np.uint8), ACTION)
        given = {**transitions(0, 1), "next_obs": np.array([[1, 255]], dtype), "obs": np.array([[255, 0]], dtype)}
        found = schema.unpack(schema.pack(given))
        assert found["obs"].dtype == np.uint8
        assert (found["obs"].tolist(), found["next_obs"].tolist()) == ([[255, 0]], [[1, 255]])
        with pytest.raises(TypeError, match=f"obs have dtype {dtype.__name__}, but uint8 is needed"):
            schema.pack({**given, "obs": np.array([[300, 0]], dtype)})

    def test_a_missing_field(self) -> None:
        given = transitions(0, 4)
        del given["next_obs"]
        with pytest.raises(ValueError, match=r"fields \['next_obs'\] are missing"):
            buffer_of().add(given)
        with pytest.raises(ValueError, match=r"fields \['discount'\] are missing.*an Explorer makes them"):
            buffer_of(n_step=3).add(transitions(0, 4))

    def test_inside_a_nested_space(self) -> None:
        batched = batch_space(NESTED, 4)
        obs = batched.sample()
        given = {**transitions(0, 4), "obs": obs, "next_obs": batched.sample()}
        buffer = ReplayBuffer(NESTED, ACTION, 10)
        obs["inner"]["speed"] = np.zeros((4, 3))
        with pytest.raises(ValueError, match=r"obs\['inner'\]\['speed'\] has shape \(4, 3\)"):
            buffer.add(given)
        del obs["inner"]["speed"]
        with pytest.raises(ValueError, match="obs does not fit its space"):
            buffer.add(given)

    @pytest.mark.parametrize("name", sorted(set(SPACES) - set(FIXED)))
    def test_spaces_of_no_fixed_shape(self, name: str) -> None:
        with pytest.raises(ValueError, match="observation_space has no fixed shape"):
            ReplayBuffer(SPACES[name], ACTION, 10)

    def test_one_part_of_no_fixed_shape(self) -> None:
        space = spaces.Dict(a=spaces.Discrete(3), b=spaces.Text(9))
        with pytest.raises(ValueError, match="observation_space has no fixed shape.*'b'"):
            ReplayBuffer(space, ACTION, 10)

    def test_packed_rows_of_another_layout(self) -> None:
        rows = Schema(spaces.Box(0, 1, (9,), np.float32), ACTION).empty(3)
        with pytest.raises(ValueError, match="packed rows are uint64"):
            buffer_of().add_rows(rows)

    def test_capacity_and_numbers(self) -> None:
        with pytest.raises(ValueError, match="capacity must be at least 1, not 0"):
            buffer_of(0)
        with pytest.raises(ValueError, match="n_step must be"):
            buffer_of(n_step=0)
        with pytest.raises(TypeError, match="n_step must be an int, not '3'"):
            buffer_of(n_step="3")
        with pytest.raises(ValueError, match="gamma must be from 0 to 1"):
            buffer_of(gamma=1.5)


def test_cpprb_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cpprb", None)
    with pytest.raises(BackendUnavailable, match=r"pip install cpprb"):
        buffer_of()
