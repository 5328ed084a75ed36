"""`this_worker`: envs are told which worker theirs is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from vecenvs.errors import VecEnvError
from vecenvs.identity import this_worker
from vecenvs.testing.envs import CountingEnv, counting_fns
from vecenvs.testing.suite.base import Conformance, Make


class TellingEnv(CountingEnv):
    """An env that keeps what `this_worker` tells it when it is made, reset and stepped."""

    def __init__(self) -> None:
        super().__init__(length=2)
        self.told = [this_worker()]

    def reset(self, **given: Any) -> Any:
        self.told.append(this_worker())
        return super().reset(**given)

    def step(self, action: Any) -> Any:
        self.told.append(this_worker())
        return super().step(action)


def draw(_: Any) -> float:
    """Return a number of NumPy's global generator."""
    return float(np.random.random())  # noqa: NPY002


class IdentityConformance(Conformance):
    """Every env knows its worker."""

    def test_envs_are_told_of_their_worker(self, make: Make) -> None:
        first, second = make([TellingEnv] * 5), make([TellingEnv] * 2)
        for vec in (first, second):
            vec.reset()
        first.step([0] * 5)
        second.step([0] * 2)
        first.send([0] * 2, [1, 4])
        first.recv(2)
        for vec in (first, second):
            workers = vec.stats()["workers"]
            told = vec.get_attr("told")
            for slot, each in enumerate(told):
                made, *others = each
                assert made.env_index == slot
                assert {other.env_index for other in others} == {None}
                assert {(other.index, other.slots, other.index_on_node, other.node) for other in others} == {
                    (made.index, made.slots, made.index_on_node, made.node)
                }
                assert [*made.slots] == workers[made.index]["slots"]
                assert slot in made.slots
                assert made.num_workers == len(workers)
            by_node: dict[str, dict[int, int]] = {}
            for made, *_ in told:
                by_node.setdefault(made.node, {})[made.index] = made.index_on_node
            assert [sorted(each.values()) for each in by_node.values()] == [[*range(len(n))] for n in by_node.values()]
        with pytest.raises(VecEnvError, match="this_worker\\(\\) is for env functions"):
            this_worker()

    def test_envs_ask_in_resets_beside_steps(self, make: Make) -> None:
        vec = make([TellingEnv] * 3, autoreset="async")
        vec.reset()
        while min(map(len, vec.get_attr("told"))) < 7:
            vec.step([0] * 3)
        for slot, told in enumerate(vec.get_attr("told")):
            assert {(each.slots, each.index) for each in told} == {(told[0].slots, told[0].index)}
            assert slot in told[0].slots


class IdentityWorkerConformance(Conformance):
    """Worker processes differ in what they draw from global generators."""

    def test_global_generators_differ(self, make: Make) -> None:
        before = np.random.get_state()  # noqa: NPY002
        vec = make(counting_fns(4))
        again = np.random.get_state()  # noqa: NPY002
        assert str(before) == str(again)
        drawn = vec.call(draw, None)
        assert len({*drawn}) == 4
        assert np.random.random() not in drawn  # noqa: NPY002
