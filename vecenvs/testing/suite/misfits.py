"""Observations outside their space and rewards that are not numbers: an error of the env, never another value."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from vecenvs.errors import EnvError
from vecenvs.testing.envs import BadObservationEnv, CountingEnv
from vecenvs.testing.suite.base import Conformance, Make
from vecenvs.testing.suite.interfaces import make_within_dict


class FrameEnv(CountingEnv):
    """An env with frames of 80 x 80 bytes. Those of its steps have another dtype, as if scaled."""

    def __init__(self, tag: int = 0) -> None:
        super().__init__(tag)
        self.observation_space: Any = spaces.Box(0, 255, (80, 80), np.uint8)

    def _observe(self) -> Any:
        return np.full((80, 80), 0.5) if self.t else np.zeros((80, 80), np.uint8)


class OddEnv(CountingEnv):
    """An env with `odd` values, by name, in its row: from step `at` on, or with `until` up to that step.

    With "reset" they are those of its second reset, its "obs" or "info".
    """

    def __init__(
        self, tag: int, odd: dict[str, Any], at: int = 2, until: int = 99, where: str = "step", length: int = 99
    ) -> None:
        super().__init__(tag, length)
        self.odd, self.at, self.until, self.where = odd, at, until, where

    def reset(self, **given: Any) -> Any:
        first = dict(zip(("obs", "info"), super().reset(**given), strict=True))
        if self.where == "reset" and self.episode == 2:
            first |= self.odd
        return tuple(first.values())

    def step(self, action: Any) -> Any:
        row = dict(zip(("obs", "reward", "terminated", "truncated", "info"), super().step(action), strict=True))
        if self.where == "step" and self.at <= self.steps <= self.until:
            row |= self.odd
        return tuple(row.values())


class WideEnv(CountingEnv):
    """An env with float64 observations in a float32 space. From its second step on they exceed float32."""

    def __init__(self, tag: int, shape: tuple[int, ...], wide: bool, length: int = 99) -> None:
        super().__init__(tag, length)
        self.observation_space: Any = spaces.Box(-np.inf, np.inf, shape, np.float32)
        self.wide = wide

    def _observe(self) -> Any:
        return np.full(self.observation_space.shape, 1e300 if self.wide and self.t >= 2 else self.t, np.float64)


class Talkative(gymnasium.ObservationWrapper[Any, Any, Any]):
    """An env with more keys in its observations than in its space."""

    def __init__(self, tag: int) -> None:
        super().__init__(CountingEnv(tag, 3))
        self.observation_space = spaces.Dict(
            {"counts": self.env.observation_space, "inner": spaces.Dict({"tag": spaces.Discrete(9)})}
        )

    def observation(self, observation: Any) -> Any:
        return {"more": "?", "counts": observation, "inner": {"tag": observation[0], "debug": object()}}


class MisfitConformance(Conformance):
    """EnvError for observations, rewards and flags that do not fit."""

    def test_observations_of_the_wrong_shape(self, make: Make) -> None:
        vec = make([functools.partial(BadObservationEnv, tag, 2 if tag == 1 else 99) for tag in range(4)])
        vec.reset()
        vec.step([0] * 4)
        with pytest.raises(EnvError, match="shape") as caught:
            vec.step([0] * 4)
        assert caught.value.index == 1
        assert caught.value.batch is not None
        assert caught.value.batch.obs.tolist() == [[0, 1, 2], [2, 1, 2], [3, 1, 2]]

    @pytest.mark.parametrize("odd", [None, "1.5", b"1", 1j, [], [1.0, 2.0]], ids=repr)
    def test_rewards_that_are_no_numbers(self, make: Make, odd: Any) -> None:
        """NumPy would read None as NaN and "1.5" as 1.5."""
        vec = make([functools.partial(OddEnv, tag, {"reward": odd if tag == 2 else 0.25}) for tag in range(4)])
        vec.reset()
        vec.step([0] * 4)
        with pytest.raises(EnvError, match=r"env 2 .*its reward is ") as caught:
            vec.step([0] * 4)
        assert [one.index for one in caught.value.errors] == [2]
        assert caught.value.batch is not None
        assert caught.value.batch.rewards.tolist() == [0.25] * 3

    @pytest.mark.parametrize("number", [2, True, np.float32(0.5), np.array(0.5), np.array([0.5]), [0.5], np.int8(-3)])
    def test_rewards_of_any_kind_of_number(self, make: Make, number: Any) -> None:
        vec = make([functools.partial(OddEnv, tag, {"reward": number}, 1) for tag in range(2)])
        vec.reset()
        assert vec.step([0, 0])[1].tolist() == [float(np.asarray(number).item())] * 2

    @pytest.mark.parametrize("part", ["terminated", "truncated"])
    @pytest.mark.parametrize("odd", [None, "no", "", float("nan"), 0.0, 1.0, 2, [], {}], ids=repr)
    def test_flags_that_are_neither_true_nor_false(self, make: Make, part: str, odd: Any) -> None:
        """Some are true in Python and some false, so the env's intention is unknown."""
        vec = make([functools.partial(OddEnv, tag, {part: odd if tag == 2 else False}) for tag in range(4)])
        vec.reset()
        vec.step([0] * 4)
        with pytest.raises(EnvError, match=rf"env 2 .*{part} must be True or False, not ") as caught:
            vec.step([0] * 4)
        assert [one.index for one in caught.value.errors] == [2]
        assert not vec.terminated.any()
        assert not vec.truncated.any()
        assert vec.get_attr("episode") == [1] * 4

    @pytest.mark.parametrize("part", ["terminated", "truncated"])
    @pytest.mark.parametrize("flag", [np.bool_(True), 1, np.int64(1), np.array(True), np.array([True])], ids=repr)
    def test_flags_of_other_types(self, make: Make, part: str, flag: Any) -> None:
        vec = make([functools.partial(OddEnv, tag, {part: (flag, flag == 0)[tag]}) for tag in range(2)])
        vec.reset()
        vec.step([0, 0])
        assert vec.step([0, 0])[2].tolist() == [True, False]
        assert getattr(vec, part).tolist() == [True, False]

    @pytest.mark.parametrize("nested", [False, True])
    @pytest.mark.parametrize("shape", [(3,), (2, 3), (), (40, 40)], ids=str)
    def test_observations_too_large_for_their_dtype(self, make: Make, shape: tuple[int, ...], nested: bool) -> None:
        """They do not become infinite, however rows are written."""
        fns: list[Any] = [functools.partial(WideEnv, tag, shape, tag == 2) for tag in range(4)]
        vec = make([functools.partial(make_within_dict, fn) for fn in fns] if nested else fns)
        vec.reset()
        for _ in range(2):
            vec.step([0] * 4)
            with pytest.raises(EnvError, match=r"env 2 .*observation.* has numbers too large .* float32") as caught:
                vec.step([0] * 4)
            assert [one.index for one in caught.value.errors] == [2]
            vec.reset()

    @pytest.mark.parametrize("shape", [(3,), (40, 40)], ids=str)
    def test_a_last_observation_too_large_for_its_dtype(self, make: Make, shape: tuple[int, ...]) -> None:
        vec = make([functools.partial(WideEnv, tag, shape, tag == 1, 2) for tag in range(2)])
        vec.reset()
        vec.step([0, 0])
        with pytest.raises(EnvError, match=r"env 1 .*observation has numbers too large"):
            vec.step([0, 0])

    def test_keys_that_the_space_does_not_have(self, make: Make) -> None:
        """Such keys are ignored, as by Gymnasium and SB3."""
        vec = make([functools.partial(Talkative, tag) for tag in range(3)])
        assert list(vec.reset()) == ["counts", "inner"]
        for _ in range(2):
            vec.step([0] * 3)
        obs, _, dones, infos = vec.step([0] * 3)
        assert dones.all()
        assert obs["counts"].tolist() == [[tag, 2, 0] for tag in range(3)]
        assert list(obs["inner"]) == ["tag"]
        assert list(infos[2]["terminal_observation"]) == ["counts", "inner"]
        assert infos[2]["terminal_observation"]["counts"].tolist() == [2, 1, 3]

    @pytest.mark.parametrize("nested", [False, True])
    def test_wrong_shapes_that_make_up_for_each_other(self, make: Make, nested: bool) -> None:
        """4 + 2 values in place of 3 + 3 must not be stored as if they fitted."""
        fns: list[Any] = [functools.partial(BadObservationEnv, tag, 1, size) for tag, size in enumerate((4, 2))]
        vec = make([functools.partial(make_within_dict, fn) for fn in fns] if nested else fns)
        vec.reset()
        with pytest.raises(EnvError, match="shape") as caught:
            vec.step([0, 0])
        assert [one.index for one in caught.value.errors] == [0, 1]

    def test_frames_of_another_dtype(self, make: Make) -> None:
        """Fractions are not truncated to bytes."""
        vec = make([FrameEnv] * 2)
        vec.reset()
        with pytest.raises(EnvError, match="dtype") as caught:
            vec.step([0, 0])
        assert [one.index for one in caught.value.errors] == [0, 1]

    @pytest.mark.parametrize("mode", ["same_step", "next_step", "async", "disabled"])
    def test_an_odd_reward_at_an_end(self, make: Make, mode: str) -> None:
        """The row and the end are dropped. The env is refused until the caller resets it; no autoreset does."""
        vec = make([functools.partial(OddEnv, 0, {"reward": "much"}, 1, 1, length=1), CountingEnv], autoreset=mode)
        vec.reset()
        with pytest.raises(EnvError, match="reward.*much") as caught:
            vec.step([0, 0])
        assert caught.value.index == 0
        assert not vec.terminated.any()
        assert vec.reset([0]).tolist() == [[0, 3 if mode == "same_step" else 2, 0]]

    def test_two_things_wrong_with_one_row(self, make: Make) -> None:
        """One error reports both."""
        fns = [functools.partial(OddEnv, tag, {"obs": np.zeros(9), "reward": "much"}, 1) for tag in range(4)]
        vec = make([functools.partial(make_within_dict, fn) for fn in fns])
        vec.reset()
        with pytest.raises(EnvError) as caught:
            vec.step([0] * 4)
        assert [one.index for one in caught.value.errors] == [0, 1, 2, 3]

    def test_an_autoreset_that_gives_a_misfit(self, make: Make) -> None:
        """No episode has begun: `reset_infos` still belongs to the one before."""
        fns = [functools.partial(OddEnv, tag, {"obs": np.zeros(9)}, where="reset", length=1) for tag in range(4)]
        vec = make([fns[1] if tag == 1 else functools.partial(CountingEnv, tag, 1) for tag in range(4)])
        vec.reset()
        with pytest.raises(EnvError, match="shape") as caught:
            vec.step([0] * 4)
        assert caught.value.index == 1
        assert [info["episode"] for info in vec.reset_infos] == [2, 1, 2, 2]

    @pytest.mark.parametrize("where", ["step", "reset"])
    @pytest.mark.parametrize("odd", ["text", [("key", 1)], 5, np.ones(3)], ids=["text", "pairs", "number", "array"])
    def test_infos_that_are_no_dicts(self, make: Make, where: str, odd: Any) -> None:
        wrong = functools.partial(OddEnv, 1, {"info": odd}, until=2, where=where)
        vec = make([CountingEnv, wrong, functools.partial(CountingEnv, 2)])
        vec.reset()
        vec.step([0] * 3)
        call = functools.partial(vec.step, [0] * 3) if where == "step" else vec.reset
        with pytest.raises(
            EnvError, match=f"env 1 raised TypeError in {where}: info must be a dict, not .*: return {{}}"
        ):
            call()
        vec.reset([1])
        assert [info["tag"] for info in vec.step([0] * 3)[3]] == [0, 1, 2]
