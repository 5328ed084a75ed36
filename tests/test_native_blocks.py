"""What the compiled core does with rows of batched envs, against its Python twin."""

from __future__ import annotations

import random
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from conftest import NO_CORE

from vecenvs._native import twin
from vecenvs.batch.batch_columns import FINAL, LAST

if NO_CORE:
    pytest.skip("no compiled core", allow_module_level=True)

SIZES = (0, 1, 3, 255, 256, 257, 1000)
NUMBERS = (0.0, -0.0, 1.5, -1e38, float("inf"), float("nan"), 3.5e38, 1e-60)


def both() -> tuple[ModuleType, ModuleType]:
    from vecenvs._native import core

    return core, twin


def bits(value: Any) -> Any:
    """Return something that compares equal if and only if the values are the same, bit for bit and type for type."""
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.tobytes()
    return [*map(bits, value)] if isinstance(value, (list, tuple)) else value


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_outcomes_there_and_back(n: int, dtype: Any) -> None:
    rng = random.Random(n)
    for density in (0.0, 0.1, 1.0):
        with np.errstate(over="ignore"):
            given = np.array(rng.choices(NUMBERS, k=n), np.float64).astype(dtype)
        terminated, truncated = (np.array([rng.random() < density for _ in range(n)], bool) for _ in range(2))
        began = np.array(sorted(rng.sample(range(n), int(density * n))), np.int64)
        mark = rng.choice([0, LAST])
        seen: list[Any] = []
        for module in both():
            rewards, flags = np.full(n, 7.0), np.full(n, 255, np.uint8)
            ended = module.write_outcomes(rewards, flags, given, terminated, truncated, began, mark)
            assert ended.tolist() == np.flatnonzero(terminated | truncated).tolist()
            flags[ended[::2]] |= FINAL
            with np.errstate(over="ignore"):
                taken = module.take_outcomes(rewards, flags)
            copies = [*taken[:3], *taken[4:], module.flagged(flags, LAST | FINAL)]
            assert not any(np.shares_memory(part, column) for part in copies for column in (rewards, flags))
            assert all(part.flags.writeable for part in copies)
            assert taken[3] is bool(len(began))
            seen.append(bits([rewards, flags, ended, copies]))
        assert seen[0] == seen[1]
        wanted = np.where(np.isin(np.arange(n), began), 0.0, given.astype(np.float64))
        assert seen[0][0][2] == wanted.tobytes()


def test_outcomes_of_other_types_are_not_written() -> None:
    n = 5
    good: list[Any] = [np.ones(n), np.zeros(n, bool), np.zeros(n, bool)]
    odd: dict[int, list[Any]] = {
        0: [np.ones(n, int), np.ones(n - 1), np.ones((n, 1)), np.ones(2 * n)[::2], [1.0] * n, None, np.ones(n, ">f8")],
        1: [np.zeros(n, np.uint8), np.zeros(n - 1, bool), np.zeros(2 * n, bool)[::2], [False] * n],
    }
    odd[2] = odd[1]
    nothing = np.zeros(0, np.int64)
    for module in both():
        for position, values in odd.items():
            for value in values:
                rewards, flags = np.full(n, 7.0), np.full(n, 255, np.uint8)
                given = [*good[:position], value, *good[position + 1 :]]
                assert module.write_outcomes(rewards, flags, *given, nothing, LAST) is None
                assert set(rewards) == {7.0}
                assert set(flags) == {255}


def test_columns_of_other_types_are_refused() -> None:
    core, _ = both()
    rewards, flags, no = np.zeros(4), np.zeros(4, np.uint8), np.zeros(4, bool)
    for columns in ((rewards[::2], flags[:2]), (rewards, flags[:3]), (rewards, no), (flags, flags), (None, flags)):
        with pytest.raises(TypeError):
            core.take_outcomes(*columns)
        with pytest.raises(TypeError):
            core.write_outcomes(*columns, rewards, no, no, np.zeros(0, np.int64), 0)
    for began, error in (([0], TypeError), (np.array([4]), IndexError), (np.array([-1]), IndexError)):
        with pytest.raises(error):
            core.write_outcomes(rewards, flags, rewards, no, no, began, 0)
    for count in (0, 1, 3):
        with pytest.raises(TypeError):
            core.take_outcomes(*[rewards] * count)
        with pytest.raises(TypeError):
            core.flagged(*[flags] * count)
    for odd in (flags[::2], rewards, None):
        with pytest.raises(TypeError):
            core.flagged(odd, LAST)
    with pytest.raises(TypeError):
        core.write_outcomes(rewards, flags, rewards, no, no, np.zeros(0, np.int64), "LAST")


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("dtype", ["f4", "f8", "i8", "u1", "f2", "c16", ">f4", "M8[s]"])
def test_batches_of_any_memory_layout(n: int, dtype: str) -> None:
    rng = np.random.default_rng(n)
    for width in (1, 2, 4, 7):
        rows = rng.integers(0, 2**7, (n, width)).astype(dtype)
        wide = np.zeros((width + 1, 2 * n + 1), dtype)
        wide[:width, :n] = rows.T
        layouts = [rows, np.asfortranarray(rows), wide[:width, :n].T, rows[::-1], rows[:, ::-1],
                   np.asfortranarray(rows)[::-1], np.repeat(rows, 2, 0)[::2], np.broadcast_to(rows[:, :1], rows.shape),
                   np.broadcast_to(rows[:1], rows.shape) if n else rows]  # fmt: skip
        for layout in layouts:
            for module in both():
                column = np.zeros((n, width), dtype)
                assert module.take_batch(column, layout)
                assert bits(column) == bits(np.ascontiguousarray(layout))
            columns = np.zeros((n, 2 * width), dtype)[:, ::2]  # no worker has such a column
            assert both()[0].take_batch(columns, layout)
            assert np.array_equal(columns, layout)


def test_unaligned_batches() -> None:
    raw = np.zeros(4 * 300 * 2 + 1, np.uint8)
    for offset in (0, 1):
        rows = raw[offset : offset + 2400].view("f4").reshape(2, 300).T
        for module in both():
            column = np.ones((300, 2), "f4")
            assert module.take_batch(column, rows)
            assert not column.any()


def test_no_reference_is_lost_or_kept() -> None:
    core, _ = both()
    n = 300
    rewards, flags, over = np.ones(n), np.zeros(n, np.uint8), np.arange(n) % 7 == 0
    began, rows = np.arange(0, n, 5), np.asfortranarray(np.ones((n, 4), np.float32))
    column = np.zeros((n, 4), np.float32)
    counted = [rewards, flags, over, began, rows, column, None]

    def run(rounds: int) -> None:
        for _ in range(rounds):
            core.write_outcomes(rewards, flags, rewards, over, over, began, LAST)
            core.write_outcomes(rewards, flags, [], over, over, began, LAST)
            core.take_outcomes(rewards, flags)
            core.flagged(flags, LAST)
            core.take_batch(column, rows)

    run(10)
    before = [sys.getrefcount(each) for each in counted]
    blocks = sys.getallocatedblocks()
    run(2000)
    assert abs(sys.getallocatedblocks() - blocks) < 100
    assert max(abs(sys.getrefcount(each) - was) for each, was in zip(counted, before, strict=True)) < 50
