"""How envs are divided among workers."""

from __future__ import annotations

import pytest

from vecenvs.arguments import split
from vecenvs.batched import divide


@pytest.mark.parametrize(
    ("widths", "count", "sizes"),
    [
        ([64, 1, 1, 1], 2, [64, 3]),
        ([1, 1, 1, 64], 2, [3, 64]),
        ([64, *[1] * 10], 4, [64, 4, 3, 3]),
        ([8, 8, 8, 8, 1, 1], 2, [16, 18]),
        ([1, 1, 64, 64], 3, [2, 64, 64]),
        ([64, 64, 1], 3, [64, 64, 1]),
        ([5], 1, [5]),
    ],
)
def test_batched_envs_count_for_all_of_their_envs(widths: list[int], count: int, sizes: list[int]) -> None:
    assert list(map(len, divide(widths, count))) == sizes


def test_single_envs_are_divided_as_ever() -> None:
    for n in range(1, 20):
        for count in range(1, n + 1):
            assert divide([1] * n, count) == split(n, count)
