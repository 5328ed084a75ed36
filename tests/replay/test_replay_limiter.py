"""The rate limiter: its bounds hold for any schedule, without deadlock."""

from __future__ import annotations

from typing import Any

import pytest
from gymnasium.spaces import Discrete
from hypothesis import given
from hypothesis import strategies as st

from vecenvs.replay import RateLimiter, ReplayBuffer
from vecenvs.replay.throttle import CALL, InsertThrottle


def test_without_a_ratio() -> None:
    limiter = RateLimiter(None, min_size=5)
    assert limiter.may_insert(limiter.inserts)
    assert limiter.may_sample(4) == 0
    assert limiter.may_sample(5) == float("inf")


@given(
    st.floats(0.1, 8.0),
    st.integers(1, 50),
    st.integers(4, 100),
    st.lists(st.tuples(st.booleans(), st.integers(1, 20)), max_size=60),
)
def test_the_ratio_is_kept(ratio: float, min_size: int, tolerance: int, schedule: list[tuple[bool, int]]) -> None:
    """For any order of calls, samples stay within `tolerance` of what is due, plus one fragment for inserts."""
    limiter = RateLimiter(ratio, min_size, tolerance)
    for insert, n in schedule:
        if insert and limiter.may_insert(limiter.inserts):
            limiter.inserted(n)
        elif not insert and limiter.may_sample(limiter.inserts) >= n:
            limiter.sampled(n)
        due = (limiter.inserts - min_size) * ratio
        assert limiter.samples == 0 or limiter.samples <= due + tolerance + 1e-6
        assert due - limiter.samples <= tolerance + 20 * ratio or limiter.inserts < min_size + 20
        assert limiter.may_insert(limiter.inserts) or limiter.may_sample(limiter.inserts) >= tolerance, (
            "both wait, for good"
        )


def test_before_min_size_inserts_are_free() -> None:
    limiter = RateLimiter(100.0, min_size=10, tolerance=1)
    for _ in range(10):
        assert limiter.may_insert(limiter.inserts)
        assert limiter.may_sample(limiter.inserts) == 0
        limiter.inserted(1)
    assert limiter.may_sample(limiter.inserts) == 1
    limiter.inserted(1)
    assert not limiter.may_insert(limiter.inserts)
    limiter.sampled(100)
    assert limiter.may_insert(limiter.inserts)
    limiter.sampled(-100)
    assert not limiter.may_insert(limiter.inserts)


def test_the_limits_themselves_are_allowed() -> None:
    """An insert while samples are exactly `tolerance` behind; samples up to exactly `tolerance` ahead."""
    limiter = RateLimiter(2.0, min_size=5, tolerance=6)
    limiter.inserted(8)  # 6 samples are due
    assert limiter.may_insert(limiter.inserts)
    assert limiter.may_sample(5) == 12
    assert limiter.may_sample(4) == 0
    limiter.inserted(1)
    assert not limiter.may_insert(limiter.inserts)
    limiter.sampled(2)
    assert limiter.may_insert(limiter.inserts)
    limiter.sampled(11)
    assert limiter.may_sample(9) == 1
    limiter.sampled(1)
    assert limiter.may_sample(9) == 0


def test_restored() -> None:
    """With a ratio a restored limiter owes no samples."""
    limiter = RateLimiter(2.0, min_size=5, tolerance=8)
    limiter.restore(20)
    assert (limiter.inserts, limiter.samples, limiter.may_sample(20), limiter.may_insert(limiter.inserts)) == (
        20,
        30,
        8,
        True,
    )
    limiter.restore(3)
    assert (limiter.samples, limiter.may_sample(3)) == (0, 0)
    unlimited = RateLimiter()
    unlimited.restore(20)
    assert (unlimited.inserts, unlimited.samples, unlimited.may_insert(20)) == (20, 0, True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"samples_per_insert": 0.0, "tolerance": 1}, "more than 0"),
        ({"samples_per_insert": 1.0}, "a tolerance of more than 0"),
        ({"min_size": 0}, "min_size must be at least 1"),
    ],
)
def test_wrong_numbers(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        RateLimiter(**arguments)


def test_a_busy_learner_goes_first() -> None:
    """Inserts get a twentieth of the time while sampling takes most of it, and are not delayed otherwise."""
    throttle = InsertThrottle()
    now = inserting = 0.0
    for _ in range(1000):  # a learner that waits for nothing but samples
        now += 0.002 + CALL
        throttle.add_sample(now, 0.002)
        if not throttle.delay(now):
            now += 0.0007 + CALL
            throttle.add_insert(now, 0.0007)
            inserting += 0.0007 + CALL
    assert 0.03 < inserting / now <= 0.055
    throttle.add_sample(now, 0.002)
    now += 0.3
    assert throttle.delay(now) == 0.0, "it has paused"
    for _ in range(100):  # one that learns for 10 ms between its requests
        now += 0.01
        throttle.add_sample(now, 0.002)
        throttle.add_insert(now, 0.0007)
        assert throttle.delay(now) == 0.0


def test_an_insert_is_followed_by_nineteen_times_its_time() -> None:
    throttle = InsertThrottle()
    throttle.add_sample(5.0, 10.0)
    throttle.add_insert(5.0, 0.001)
    assert throttle.delay(5.0) == pytest.approx(19 * (0.001 + CALL))


@pytest.mark.parametrize("value", ["1", [1], 1j, True])
def test_numbers_that_are_none(value: Any) -> None:
    """RateLimiter and ReplayBuffer refuse them."""
    for name in ("samples_per_insert", "tolerance"):
        with pytest.raises(TypeError, match=f"{name} must be a number, not "):
            RateLimiter(**{"samples_per_insert": 1.0, "tolerance": 10.0, name: value})
    for name in ("alpha", "gamma"):
        with pytest.raises(TypeError, match=f"{name} must be a number, not "):
            ReplayBuffer(Discrete(2), Discrete(2), 10, **{name: value})


def test_a_buffer_that_was_cleared_fills_again() -> None:
    """Or one that was restored with fewer rows than a sample needs."""
    limiter = RateLimiter(8.0, 1000, 256.0)
    limiter.inserted(5000)
    limiter.sampled(32_000)
    for stored in (0, 999):
        assert limiter.may_sample(stored) == 0
        assert limiter.may_insert(stored)
    limiter.inserted(1000)
    assert limiter.may_sample(1000) > 0
