"""Groups of envs that are stepped apart: `send` to some, `recv` of a group, and `groups`."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from vecenvs.errors import EnvError, NotSteppingError
from vecenvs.testing.compare import assert_same
from vecenvs.testing.envs import NESTED, CountingEnv, FailingEnv, SampledEnv, counting_fns
from vecenvs.testing.oracle import PlainLoop
from vecenvs.testing.suite.base import Conformance, Make

ROUNDS = 30  # so many that the rows of cheap envs travel together


class InformsOnceEnv(CountingEnv):
    """Give an info with the first step of an episode alone."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step as a CountingEnv does."""
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated, truncated, info if self.t == 1 else {}


class SubsetConformance(Conformance):
    """Subsets of several envs, in any order."""

    @pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
    @pytest.mark.parametrize("count", [1, 2, 3])
    def test_groups_in_rotation(self, make: Make, count: int, autoreset: str) -> None:
        """Each group is stepped while the caller works on another: the same trajectories as in lock-step."""
        fns = counting_fns(7, length=3)
        vec, plain = make(fns, autoreset=autoreset), PlainLoop(fns, autoreset)
        assert_same(vec.reset(seed=0), np.array(plain.reset(seed=0)), "obs")
        groups = vec.groups(count)
        for group in groups:
            vec.send([0] * len(group), group)
        for _ in range(ROUNDS):
            rows = plain.step([0] * 7)
            for group in groups:
                batch = vec.recv(indices=group)
                vec.send([0] * len(group), group)
                mine = [rows[i] for i in group]
                assert batch.indices.tolist() == group.tolist()
                assert_same(batch.obs, np.array([row.obs for row in mine]), "obs")
                assert_same(batch.rewards, np.array([row.reward for row in mine], np.float32), "rewards")
                assert_same(batch.dones, np.array([row.terminated or row.truncated for row in mine]), "dones")
                assert_same(batch.infos, [row.info for row in mine], "infos")
                began = [row.info.get("episode_start", False) for row in mine]
                assert batch.active.tolist() == [autoreset == "same_step" or not each for each in began]
        vec.recv(7)

    def test_any_order(self, make: Make) -> None:
        """Rows, infos and attributes stay with their envs, whatever the order in which these are named."""
        vec = make(counting_fns(6, length=4), info_attrs=["tag"])
        vec.reset()
        rng = np.random.default_rng(0)
        steps = np.zeros(6, int)
        for k in range(ROUNDS):
            chosen = rng.permutation(6)[: 1 + k % 6]
            vec.send([0] * len(chosen), chosen)
            steps[chosen] += 1
            batch = vec.recv(indices=chosen)
            assert batch.obs[:, 0].tolist() == [info["tag"] for info in batch.infos] == chosen.tolist()
            assert [info["t"] for info in batch.infos] == [(steps[i] - 1) % 4 + 1 for i in chosen]
            again = chosen[::-1]
            assert vec.reset(again)[:, 0].tolist() == again.tolist()
            steps[chosen] = 0
        assert vec.info_array("tag").tolist() == list(range(6))

    def test_an_info_comes_with_one_row(self, make: Make) -> None:
        """It is not repeated with later rows of its env while rows that came beside it wait."""
        vec = make([functools.partial(InformsOnceEnv, tag, ROUNDS) for tag in range(4)])
        vec.reset()
        vec.send([0] * 4)
        first = vec.recv(min_envs=2, max_envs=2)
        assert [info["t"] for info in first.infos] == [1, 1]
        for _ in range(3):
            vec.send([0] * 2, first.indices)
            assert not any("t" in info for info in vec.recv(indices=first.indices).infos)
        assert [info["t"] for info in vec.recv(2).infos] == [1, 1]

    def test_any_order_of_nested_values(self, make: Make) -> None:
        fns = [functools.partial(SampledEnv, NESTED, NESTED) for _ in range(4)]
        vec, plain = make(fns), PlainLoop(fns, "same_step")
        vec.reset(seed=5)
        plain.reset(seed=5)
        vec.action_space.seed(1)
        for k in range(10):
            chosen = [[2, 0], [3, 1, 2, 0], [1], [0, 1, 3]][k % 4]
            actions = [vec.action_space.sample() for _ in chosen]
            vec.send(actions, chosen)
            batch = vec.recv(indices=chosen)
            rows = plain.step(actions, chosen)
            assert_same(batch.rewards, np.array([row.reward for row in rows], np.float32), "rewards")
            assert_same(batch.infos, [row.info for row in rows], "infos")

    def test_a_group_whose_envs_raise(self, make: Make) -> None:
        """One error for all of them, with the rows of the others."""
        vec = make([functools.partial(FailingEnv, i, at=1 if i in (0, 3) else 99) for i in range(5)])
        vec.reset()
        vec.send([0] * 5)
        with pytest.raises(EnvError) as caught:
            vec.recv(indices=[4, 3, 0, 1])
        assert [each.index for each in caught.value.errors] == [0, 3]
        assert caught.value.batch is not None
        assert caught.value.batch.indices.tolist() == [4, 1]
        assert vec.recv().indices.tolist() == [2]
        with pytest.raises(NotSteppingError):
            vec.recv()
        vec.reset([0, 3])
        assert vec.step([0] * 5)[0].shape[0] == 5

    def test_groups_without_rows(self, make: Make) -> None:
        vec = make(counting_fns(4))
        vec.reset()
        vec.send([0, 0], [0, 1])
        with pytest.raises(NotSteppingError, match="envs? 2"):
            vec.recv(indices=[0, 2])
        with pytest.raises(ValueError, match="at least one"):
            vec.recv(indices=[])
        with pytest.raises(ValueError, match="min_envs"):
            vec.recv(2, indices=[0, 1])
        with pytest.raises(IndexError, match="no env 4"):
            vec.recv(indices=[4])
        assert vec.recv(indices=[True, True, False, False]).obs[:, 2].tolist() == [1, 1]

    def test_number_of_groups(self, make: Make) -> None:
        vec = make(counting_fns(5))
        for count in (1, 2, 3, 5):
            groups = vec.groups(count)
            assert sorted(np.concatenate(groups).tolist()) == [0, 1, 2, 3, 4]
            assert max(map(len, groups)) - min(map(len, groups)) <= 1
        for wrong in (0, 6):
            with pytest.raises(ValueError, match="1 to 5"):
                vec.groups(wrong)
