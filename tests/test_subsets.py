"""Sets of envs, divided among the workers."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from vecenvs.pool.subsets import bits_of, divided

SHARDS = [range(5), range(5, 6), range(6, 13), range(13, 16)]
OWNER = [worker for worker, shard in enumerate(SHARDS) for _ in shard]


@given(st.permutations(range(16)), st.integers(0, 16))
def test_each_worker_gets_its_own(slots: list[int], count: int) -> None:
    """Once, ascending, as a range where that is possible: whatever the caller's order."""
    chosen = slots[:count]
    parts = divided(chosen, OWNER, SHARDS)
    assert [slot for part in parts for slot in part.slots] == sorted(chosen)
    assert len({part.worker for part in parts}) == len(parts)
    for part in parts:
        assert all(OWNER[slot] == part.worker for slot in part.slots)
        assert part.bits == bits_of(part.slots)
        assert isinstance(part.slots, range) == all(b == a + 1 for a, b in pairwise(part.slots))


def test_rows_that_come_back_in_another_order() -> None:
    """The first half that is ready begins anywhere in a worker's shard: it is sent as the range that it is."""
    assert [part.slots for part in divided([9, 10, 11, 12, 6, 7, 8, 3, 4], OWNER, SHARDS)] == [
        range(3, 5),
        range(6, 13),
    ]
