"""Batched envs equal the same envs as single ones, however they are divided into batches."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from vecenvs.batch.info_arrays import info_columns
from vecenvs.errors import EnvError
from vecenvs.testing.compare import assert_same
from vecenvs.testing.envs import NESTED, CountingEnv, FailingEnv, SampledEnv, UnpicklableEnv, counting_fns
from vecenvs.testing.envs.batches import KINDS, batched_fns
from vecenvs.testing.lockstep import Lockstep
from vecenvs.testing.oracle import EnvFn
from vecenvs.testing.suite.base import Conformance, Make

SPLITS = [(12,), (6, 6), (4, 8), (1, 11), (3, 3, 3, 3), (0, 4, 0, 0, 5), (5, 0, 6), (*[0] * 8, 4)]
"""Twelve envs as batched envs and single ones: the size of each, 0 for a single one."""


def lengthy_fns(num_envs: int = 12) -> list[EnvFn]:
    """Return functions of CountingEnvs whose episodes have different lengths."""
    return [functools.partial(CountingEnv, tag, 3 + tag % 4) for tag in range(num_envs)]


def row_of(column: Any, slot: int) -> Any:
    """Return one env's value of a column of infos, whose dicts are columns, too."""
    if isinstance(column.values, dict):
        return {name: row_of(part, slot) for name, part in column.values.items()}
    return column.values[slot]


def both_ways(make: Make, fns: Sequence[EnvFn], sizes: Sequence[int], kind: str, **common: Any) -> Lockstep:
    """Return a VecEnv of batched envs beside a plain loop over the same envs."""

    def divided(env_fns: Sequence[EnvFn], **rest: Any) -> Any:
        return make(batched_fns(env_fns, sizes, kind), **rest)

    return Lockstep(divided, fns, autoreset=KINDS[kind][0], **common)


def check_rows(make: Make, sizes: Sequence[int], kind: str) -> None:
    """Compare a VecEnv of batched envs with a plain loop over the same envs, and close it."""
    both = both_ways(make, lengthy_fns(), sizes, kind)
    both.reset(seed=3)
    both.run(11)
    both.reset()
    both.run(4)
    both.vec.close()


class BatchedConformance(Conformance):
    """`Batched` on any engine: rows for every split, and what an engine has to carry for it."""

    def test_last_observations_of_several_parts(self, make: Make) -> None:
        """As a column and in the dicts alike: each has all parts of its env's."""
        vec = make(batched_fns([functools.partial(SampledEnv, NESTED, end=0.4)] * 6, (3, 3)))
        vec.reset(seed=0)
        ended = 0
        for _ in range(8):
            _, _, dones, infos = vec.step([0] * 6)
            column = info_columns(infos).get("terminal_observation")
            assert (column is not None) == dones.any()
            for slot in np.flatnonzero(dones).tolist():
                ended += 1
                assert column is not None
                assert column.mask[slot]
                assert_same(row_of(column, slot), infos[slot]["terminal_observation"])
        assert ended > 5

    @pytest.mark.timeout(300)  # eight VecEnvs, which start slowly on Ray
    def test_rows_do_not_depend_on_the_split(self, make: Make) -> None:
        for sizes in SPLITS:
            check_rows(make, sizes, "same_step")

    def test_a_batch_that_fails_and_is_reset(self, make: Make) -> None:
        bad = functools.partial(FailingEnv, 1, "step", 2)
        vec = make(batched_fns([*counting_fns(1), bad, *counting_fns(4)[2:]], (2, 2)))
        vec.reset(seed=[1, 5, 2, 0], options={"a": 1})
        vec.step([0] * 4)
        with pytest.raises(EnvError, match="batched env of envs 0, 1 raised ToyError") as raised:
            vec.step([0] * 4)
        assert raised.value.batch is not None
        assert raised.value.batch.indices.tolist() == [2, 3]
        vec.reset()
        vec.send([0, 0], [2, 3])
        assert sorted(vec.recv(min_envs=2).indices.tolist()) == [2, 3]
        assert vec.get_attr("seeds") == [[1, None], [5, None], [2, None], [0, None]]

    def test_infos_of_a_batch_that_do_not_pickle(self, make: Make) -> None:
        """They arrive where nothing is pickled. Elsewhere an error names the env, and a reset of its batch goes on."""
        fns = [functools.partial(UnpicklableEnv, tag, 2 if tag == 1 else 99) for tag in range(4)]
        vec = make(batched_fns(fns, (3, 0)))
        vec.reset()
        vec.step([0] * 4)
        try:
            infos = vec.step([0] * 4)[3]
        except EnvError as error:
            assert error.index == 1
            assert "env 1: its info['lock'] cannot be pickled" in str(error)
            vec.reset([0, 1, 2])
        else:
            assert hasattr(infos[1]["lock"], "acquire")
        assert vec.step([0] * 4)[0][3, 2] == 3
