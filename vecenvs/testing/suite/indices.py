"""Slots chosen by index lists and masks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from vecenvs.testing.envs import counting_fns
from vecenvs.testing.lockstep import Lockstep
from vecenvs.testing.suite.base import Conformance, Make

WRONG: dict[str, Any] = {
    "beyond the end": [0, 4],
    "negative": [-1],
    "twice": [1, 1],
    "fractions": [0.5],
    "strings": ["a"],
    "short mask": [True, False],
    "long mask": np.ones(5, bool),
    "two-dimensional": [[0, 1]],
}


class IndexConformance(Conformance):
    """`reset(indices)` and the `indices` of everything else."""

    def test_reset_of_some_slots(self, make: Make) -> None:
        both = Lockstep(make, counting_fns(5, length=9))
        both.reset(seed=0)
        both.run(2)
        obs = both.reset([3, 1], seed=[30, 10])
        assert obs[:, 0].tolist() == [3, 1], "rows in the order asked for"
        both.run(2)
        assert both.vec.get_attr("t") == [4, 2, 4, 2, 4]

    def test_masks_and_arrays(self, make: Make) -> None:
        vec = make(counting_fns(4))
        vec.reset()
        assert vec.reset([True, False, False, True])[:, 0].tolist() == [0, 3]
        assert vec.reset(np.array([False, True, False, True]))[:, 0].tolist() == [1, 3]
        assert vec.reset(np.array([2, 1]))[:, 0].tolist() == [2, 1]
        assert vec.reset((3,))[:, 0].tolist() == [3]
        assert vec.reset(0)[:, 0].tolist() == [0]
        assert vec.get_attr("episode") == [3, 3, 2, 4]

    def test_no_slot_at_all(self, make: Make) -> None:
        vec = make(counting_fns(3))
        vec.reset()
        assert vec.reset([]).shape == (0, 3)
        assert vec.reset([False] * 3).shape == (0, 3)
        assert vec.get_attr("episode") == [1, 1, 1]

    @pytest.mark.parametrize("case", WRONG)
    def test_wrong_indices(self, make: Make, case: str) -> None:
        vec = make(counting_fns(4))
        vec.reset()
        for call in (
            vec.reset,
            lambda indices: vec.get_attr("t", indices),
            lambda indices: vec.set_attr("t", 1, indices),
            lambda indices: vec.env_method("add", 1, indices=indices),
            lambda indices: vec.env_is_wrapped(object, indices),
        ):
            with pytest.raises((ValueError, IndexError, TypeError), match="env|ind|mask"):
                call(WRONG[case])
        assert vec.get_attr("episode") == [1] * 4
        assert vec.get_attr("t") == [0] * 4
