"""Which rows of a command travel together."""

from __future__ import annotations

from vecenvs.worker.portions import TOGETHER, Portions


def learned(seconds: float) -> Portions:
    """Return portions of 8 envs after many steps of so many seconds each."""
    portions = Portions()
    for _ in range(50):
        count = portions.next(range(8))
        portions.measured(range(count), count * seconds)
    return portions


def test_nothing_is_known_of_the_first_rows() -> None:
    assert Portions().next(range(8)) == 1


def test_cheap_envs_travel_together() -> None:
    assert learned(TOGETHER / 100).next(range(8)) == 8
    assert learned(TOGETHER / 100).next(range(3)) == 3
    assert learned(TOGETHER / 3.5).next(range(8)) == 3


def test_slow_envs_travel_alone() -> None:
    assert learned(2 * TOGETHER).next(range(8)) == 1


def test_rows_do_not_wait_for_one_slow_env() -> None:
    """After it was slow once, among others, it goes alone as long as it is slow, and the others do not."""
    portions = learned(TOGETHER / 100)
    portions.measured(range(8), 10 * TOGETHER)
    for _ in range(3):
        left = [*range(8)]
        sizes = []
        while left:
            count = portions.next(left)
            portion, left = left[:count], left[count:]
            portions.measured(portion, 10 * TOGETHER if 5 in portion else count * TOGETHER / 100)
            sizes.append(count)
    assert sizes == [5, 1, 2]
    portions.measured([5], TOGETHER / 100)
    assert portions.next(range(8)) == 8
