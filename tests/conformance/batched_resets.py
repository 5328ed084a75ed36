"""Resets of batched envs: of all of their envs and of some, with seeds and options, and after failures."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vecenvs.backends.subproc import SubprocVecEnv
from vecenvs.batched import Batched
from vecenvs.errors import EnvError
from vecenvs.testing.compare import assert_same
from vecenvs.testing.envs import CountingEnv, FailingEnv, ForkingEnv, GatedEnv, counting_fns
from vecenvs.testing.envs.batches import batched_fns
from vecenvs.testing.suite.base import Conformance, Make
from vecenvs.testing.suite.seeding import samples, sampling_fn


class Incomparable:
    """As tensors are, of which no truth value is known."""

    def __eq__(self, other: object) -> bool:
        raise ValueError

    __hash__ = object.__hash__


class BatchedResetConformance(Conformance):
    """Resets of batched envs."""

    def test_single_envs_are_reset_by_mask(self, make: Make) -> None:
        vec = make(batched_fns(counting_fns(4), (3, 0), "disabled"), autoreset="disabled")
        vec.reset(seed=0)
        for _ in range(5):
            _, _, dones, infos = vec.step([0] * 4)
        assert dones.all()
        assert_same(infos[1]["terminal_observation"], np.array([1, 1, 5]))
        with pytest.raises(EnvError, match="has ended its episode"):
            vec.step([0] * 4)
        vec.reset([0, 2, 3])
        with pytest.raises(EnvError, match="env 1 has ended its episode"):
            vec.step([0] * 4)
        assert_same(vec.reset([1]), np.array([[1, 2, 0]]))
        obs, *_ = vec.step([0] * 4)
        assert_same(obs[:3], np.array([[0, 2, 1], [1, 2, 1], [2, 2, 1]]))

    def test_seeds_and_options(self, make: Make) -> None:
        vec = make(batched_fns(counting_fns(5), (3, 2)))
        vec.reset(seed=10, options={"a": 1})
        vec.reset(seed=[5, 3, 1, None, 0])
        vec.seed(100)
        vec.reset()
        expected = [[10, 5, 100], [11, 3, 101], [12, 1, 102], [13, None, 103], [14, 0, 104]]
        assert vec.get_attr("seeds") == expected
        assert vec.get_attr("options")[4] == [{"a": 1}, None, None]

    def test_what_was_set_is_taken_back(self, make: Make) -> None:
        vec = make(batched_fns(counting_fns(4), (3, 0)))
        vec.seed(100)
        vec.set_options({"a": 1})
        vec.seed(None)
        vec.set_options(None)
        vec.reset()
        assert vec.get_attr("seeds") == [[None]] * 4
        assert vec.get_attr("options") == [[None]] * 4

    @pytest.mark.parametrize("split", [(4,), (2, 0, 0)])
    def test_a_seed_seeds_the_action_spaces_too(self, make: Make, split: tuple[int, ...]) -> None:
        vec = make(batched_fns([functools.partial(sampling_fn, tag) for tag in range(4)], split))
        for seed in (5, 6):
            vec.reset(seed=seed)
            rewards = np.array([vec.step([0] * 4)[1] for _ in range(5)])
            assert rewards.T.tolist() == [samples(seed + env, 5) for env in range(4)]

    @pytest.mark.parametrize("where", ["step", "reset"])
    def test_a_batch_that_forks(self, make: Make, where: str, tmp_path: Path) -> None:
        ways = {"exit": 3, "raise": 1, "return": 0}
        fns = [functools.partial(ForkingEnv, tag, where, way, tmp_path / way, 2) for tag, way in enumerate(ways)]
        vec = make(batched_fns(fns, (1, 2)))
        for _ in range(3):
            vec.reset()
            for _ in range(3):
                assert vec.step([0] * 3)[0][:, 0].tolist() == [0, 1, 2]
        for way, code in ways.items():
            assert set((tmp_path / way).read_text().split()) == {str(code)}

    def test_a_vec_env_whose_step_was_late_is_reset(self, make: Make, tmp_path: Path) -> None:
        slow = functools.partial(GatedEnv, 0, tmp_path / "gate", "step", 1)
        inner = functools.partial(SubprocVecEnv, [slow], step_timeout=0.2)
        vec = make([Batched(inner, 1)])
        vec.reset()
        with pytest.raises(EnvError, match="raised StepTimeout in step"):
            vec.step([0])
        (tmp_path / "gate").touch()
        assert vec.reset().tolist() == [[0, 2, 0]]
        assert vec.step([0])[0].tolist() == [[0, 2, 1]]

    def test_what_a_failed_batch_needs(self, make: Make) -> None:
        """The error of a step says which reset there is: of some envs, or of the whole batch."""
        for kind, remedy in (
            ("same_step", "reset([0]) it first"),
            ("arrays", "reset(range(0, 2)) all envs of its batch"),
        ):
            vec = make(batched_fns([functools.partial(FailingEnv, 0, "step", 1), *counting_fns(4)[1:]], (2, 2), kind))
            vec.reset()
            with pytest.raises(EnvError):
                vec.step([0] * 4)
            with pytest.raises(EnvError, match=re.escape(f"env 0 failed before: {remedy}")):
                vec.step([0] * 4)
            vec.reset(range(2))
            assert vec.step([0] * 4)[0][:, 1:].tolist() == [[2, 1]] * 2 + [[1, 3]] * 2

    def test_options_that_differ(self, make: Make) -> None:
        """A batched env that can reset some of its envs gets each its own; another one refuses them, and goes on."""
        vec = make(batched_fns(counting_fns(5), (3, 2)))
        each: list[Any] = [{"a": 1}, {"a": 2}, {"a": 1}, {"b": np.array([1e6])}, {"b": np.array([1e6 + 1])}]
        vec.reset(options=each)
        assert vec.step([0] * 5)[0][:, 2].tolist() == [1] * 5
        obs = vec.reset(seed=7, options=each)
        assert obs[:, 2].tolist() == [0] * 5
        assert_same([options[-1] for options in vec.get_attr("options")], each)
        assert [seeds[-1] for seeds in vec.get_attr("seeds")] == [7, 8, 9, 10, 11]
        vec = make(batched_fns(counting_fns(2), (2,), "arrays"))
        with pytest.raises(EnvError, match="takes the same options for all: pass one dict"):
            vec.reset(options=[{"a": 1}, {"a": 2}])
        vec.set_options([{"a": 1}, {"a": 2}])
        with pytest.raises(EnvError, match="takes the same options for all: pass one dict"):
            vec.reset()
        vec.reset()
        vec.set_options([{"a": np.arange(2)}, {"a": np.arange(2)}])  # equal
        vec.reset()
        vec.set_options([{"a": np.array(["text", None]), "b": np.array(zero)} for zero in (0.0, -0.0)])
        vec.reset()
        vec.set_options({"a": [np.array([np.nan]), {"b": (float("nan"), Incomparable())}]})
        vec.reset()
        vec.set_options({"reset_mask": np.array([True, False])})
        with pytest.raises(EnvError, match=r"told which envs to reset: call reset\(mask\) instead"):
            vec.reset()
        vec.reset()

    def test_options_that_some_envs_have_used(self, make: Make) -> None:
        """Those of `set_options` are for one reset of each env, also where other envs' episodes go on."""
        vec = make(batched_fns([functools.partial(CountingEnv, tag, 2 + tag) for tag in range(3)], (3,), "by_masks"))
        vec.reset()
        vec.set_options({"a": 1})
        vec.step([0] * 3)
        vec.step([0] * 3)  # env 0 begins again
        vec.reset()
        assert [[options or None for options in of] for of in vec.get_attr("options")] == [
            [None, {"a": 1}, None],
            [None, {"a": 1}],
            [None, {"a": 1}],
        ]
