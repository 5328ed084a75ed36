"""The end of an episode, in steps of all envs."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from vecenvs.errors import EnvError
from vecenvs.testing.envs import NESTED, CountingEnv, GatedEnv, SampledEnv, counting_fns
from vecenvs.testing.lockstep import Lockstep
from vecenvs.testing.suite.base import Conformance, Make
from vecenvs.testing.suite.trajectories import gym_fn


class ClaimingEnv(CountingEnv):
    """A CountingEnv whose infos claim, if `claims`, that a time limit ended the episode."""

    def __init__(self, tag: int, claims: bool) -> None:
        super().__init__(tag, 2)
        self.claims = claims

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, _ = super().step(action)
        return obs, reward, terminated, truncated, {"TimeLimit.truncated": True} if self.claims else {}


class OrderedEnv(CountingEnv):
    """An env with infos in an unusual order of keys: numbers, and a string with `word`."""

    def __init__(self, tag: int, word: str) -> None:
        super().__init__(tag, 2)
        self.word = {"word": word} if word else {}

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        return super().reset(**given)[0], {"z": 1, **self.word, "a": 2, "m": 3}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return *super().step(action)[:-1], {"m": 1, **self.word, "z": 2, "a": 3}


class AutoresetConformance(Conformance):
    """The last and first rows of episodes, in every mode."""

    @pytest.mark.parametrize("mode", ["same_step", "next_step"])
    def test_envs_of_different_lengths(self, make: Make, mode: str) -> None:
        kinds = ["terminated", "truncated", "both"]
        fns = [functools.partial(CountingEnv, i, length=1 + i, ends=kinds[i % 3]) for i in range(5)]
        both = Lockstep(make, fns, autoreset=mode)
        both.reset(seed=0)
        both.run(15)

    @pytest.mark.parametrize("mode", ["same_step", "next_step"])
    def test_nested_spaces_and_time_limits(self, make: Make, mode: str) -> None:
        both = Lockstep(make, [functools.partial(SampledEnv, NESTED, NESTED)] * 3, autoreset=mode)
        both.reset(seed=1)
        both.run(30)
        both = Lockstep(make, [gym_fn("CartPole-v1", 6)] * 3, autoreset=mode)
        both.reset(seed=1)
        both.run(20)

    def test_what_infos_claim_of_an_end_does_not_count(self, make: Make) -> None:
        """TimeLimit.truncated follows the env's flags."""
        vec = make([functools.partial(ClaimingEnv, tag, tag != 1) for tag in range(4)])
        vec.reset()
        for _ in range(2):
            assert [info["TimeLimit.truncated"] for info in vec.step([0] * 4)[3]] == [False] * 4

    @pytest.mark.parametrize("way", ["step", "send"])
    @pytest.mark.parametrize("word", ["", "hi"])
    def test_the_order_of_an_infos_keys(self, make: Make, word: str, way: str) -> None:
        """The env's own keys, then attributes, then those that every engine adds, however infos are sent."""
        vec = make([functools.partial(OrderedEnv, tag, word) for tag in range(4)], info_attrs=("t", "steps"))
        words = ["word"] if word else []
        attrs = ["t", "steps"]
        for _ in range(2):  # the attributes have columns the second time
            vec.reset()
            assert {*map(tuple, vec.reset_infos)} == {("z", *words, "a", "m", *attrs, "episode_start")}
            if way == "step":
                middle, last = vec.step([0] * 4)[3], vec.step([0] * 4)[3]
            else:
                vec.send([0] * 4)
                middle = vec.recv(4).infos
                vec.send([0] * 4)
                last = vec.recv(4).infos
            ours = ["TimeLimit.truncated"]
            assert {*map(tuple, middle)} == {("m", *words, "z", "a", *attrs, *ours)}
            ours += ["terminal_observation", "episode_start"]
            assert {*map(tuple, last)} == {("m", *words, "z", "a", *attrs, *ours)}

    def test_async_rows_during_a_reset(self, make: Make, tmp_path: Path) -> None:
        """The last row of the episode is repeated, with its attributes and without its reward."""
        gate = tmp_path / "gate"
        fns = [functools.partial(GatedEnv, 0, gate, "reset", at=2, length=1), *counting_fns(4)[1:]]
        vec = make(fns, autoreset="async", info_attrs=("t", "ends"))
        vec.reset()
        assert vec.step([0] * 4)[1][0] == 1.0
        for _ in range(2):
            obs, rewards, dones, infos = vec.step([0] * 4)
            assert infos[0]["resetting"]
            assert obs[0].tolist() == [0, 1, 1]
            assert rewards[0] == vec.rewards64[0] == 0.0
            assert not dones[0]
            assert (infos[0]["t"], infos[0]["ends"]) == (1, "terminated")
            assert vec.info_array("ends").tolist() == ["terminated"] * 4
        gate.touch()

    def test_disabled_needs_a_reset(self, make: Make) -> None:
        fns = [functools.partial(CountingEnv, i, length=2 + i) for i in range(4)]
        both = Lockstep(make, fns, autoreset="disabled")
        both.reset(seed=3)
        both.run(2)
        assert both.vec.terminated.tolist() == [True, False, False, False]
        with pytest.raises(EnvError, match=r"env 0\b.*reset") as caught:
            both.vec.step([0, 0, 0, 0])
        assert caught.value.index == 0
        rows = both.plain.step([0, 0, 0], indices=[1, 2, 3])
        assert caught.value.batch is not None
        assert caught.value.batch.obs.tolist() == [row.obs.tolist() for row in rows], "the others did step"
        assert caught.value.batch.terminated.tolist() == [True, False, False]
        both.reset([0, 1], seed=[8, 9])
        both.run(1)
        assert both.vec.terminated.tolist() == [False, False, True, False]
