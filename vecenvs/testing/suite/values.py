"""Unusual values between a caller and an env: their owner, and values that cannot be pickled."""

from __future__ import annotations

import copy
import functools
import os
import threading
import time
from collections import Counter, OrderedDict, deque, namedtuple
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from vecenvs.errors import EnvError, VecEnvError
from vecenvs.testing.envs import AwkwardError, CountingEnv, UnpicklableEnv, counting_fns
from vecenvs.testing.envs.counting import pid_of
from vecenvs.testing.suite.base import Conformance, Make
from vecenvs.testing.suite.infos import Homebound
from vecenvs.vec_env import VecEnv

Pair = namedtuple("Pair", "left right")


class MemoEnv(CountingEnv):
    """A CountingEnv that modifies its arguments and the values in its infos. Its second reset takes `seconds`."""

    def __init__(self, tag: int = 0, say: str = "", length: int = 3, seconds: float = 0.0) -> None:
        super().__init__(tag, length)
        self.given, self.say, self.seconds = np.zeros(1), say, seconds
        self.seen: dict[str, Any] = {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        for value in self.seen.values():
            value.clear()
        self.seen = self.seen or {
            "counter": Counter(), "ordered": OrderedDict(), "deque": deque(), "set": set(), "list": [], "dict": {},
        }  # fmt: skip
        if options:
            options["given"] += 1  # each env has a copy, as in a process of its own
            self.given = options["given"]
        time.sleep(self.seconds if self.episode == 1 else 0)
        obs, info = super().reset(seed=seed, options=options)
        return obs, {**info, "bad": AwkwardError(1, "reset")} if self.say == "reset" else info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.given += 1
        obs, reward, terminated, truncated, _ = super().step(action)
        for key, value in self.seen.items():
            if key in ("deque", "list"):
                value.append(self.t)
            elif key == "set":
                value.add(self.t)
            else:
                value[self.t] = self.t
        info: dict[str, Any] = {**self.seen, "pair": Pair(self.given, self.tag)}
        if self.t == 2 and self.say == "info":
            info["bad"] = AwkwardError(1, "step")
        if self.t == 2 and self.say == "huge":
            reward = 10**400
        return obs, reward, terminated, truncated, info


def seed_actions(env: Any, seed: int) -> None:
    env.action_space.seed(seed)


def draw_actions(env: Any, count: int) -> list[int]:
    return [int(env.action_space.sample()) for _ in range(count)]


def memo_fns(say: str = "", bad: int = 1) -> list[Any]:
    return [functools.partial(MemoEnv, tag, say if tag == bad else "") for tag in range(4)]


class SpeakingEnv(CountingEnv):
    """A CountingEnv with text observations."""

    def __init__(self, tag: int, kind: str) -> None:
        super().__init__(tag, 2)
        self.observation_space: Any = spaces.Text(20) if kind == "text" else spaces.Sequence(spaces.Discrete(9))
        self.kind = kind

    def _observe(self) -> Any:
        return f"{self.tag}x{self.episode}x{self.t}" if self.kind == "text" else (self.tag, self.episode, self.t)


def takes_two(env: Any, given: Any) -> tuple[int, Any]:
    return env.unwrapped.tag, given


class ListeningEnv(CountingEnv):
    """A CountingEnv with text actions."""

    def __init__(self, tag: int) -> None:
        super().__init__(tag)
        self.action_space: Any = spaces.Text(9)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        return super().step(0)


class Knotted(CountingEnv):
    """Its infos contain themselves, at several places; those of resets, too."""

    def reset(self, **given: Any) -> Any:
        obs, info = super().reset(**given)
        return obs, self._knot(info)

    def step(self, action: Any) -> Any:
        *row, info = super().step(action)
        return *row, self._knot(info)

    def _knot(self, info: dict[str, Any]) -> dict[str, Any]:
        path: list[Any] = [self.steps, np.full(2, self.steps)]
        path.append(path)
        info.update(path=path, pair=(path, {"tag": self.tag}))
        info["pair"][1]["pair"] = info["pair"]
        return info


def unpack_knot(info: dict[str, Any]) -> list[Any]:
    """Return what a knotted info says, looked at through its knots."""
    path, (same, inner) = info["path"], info["pair"]
    while inner["pair"][1] is not inner:
        inner = inner["pair"][1]
    assert path[2][2] is path[2]
    assert same[2] is same
    return [path[2][0], path[2][1].tolist(), same[0], inner["tag"]]


class HugeRewardEnv(CountingEnv):
    """Its rewards are too large for float32, those of every third env fit."""

    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(action)
        return obs, self.steps * (1e300, -1e300, 0.5)[self.tag], *rest


class ValueConformance(Conformance):
    """Envs own their arguments, the caller owns results, and a value that cannot be pickled costs nothing else."""

    @pytest.mark.parametrize("way", ["reset", "set_options", "set_attr"])
    def test_each_env_has_its_own_arguments(self, make: Make, way: str) -> None:
        vec = make(memo_fns())
        mine = np.zeros(1)
        if way == "reset":
            vec.reset(options={"given": mine})
        elif way == "set_options":
            vec.set_options({"given": mine})
            vec.reset()
        else:
            vec.reset()
            vec.set_attr("given", mine)
        vec.step([0] * 4)
        once = 1.0 if way == "set_attr" else 2.0
        assert [float(given[0]) for given in vec.get_attr("given")] == [once] * 4
        assert mine[0] == 0.0

    def test_infos_that_contain_themselves(self, make: Make) -> None:
        """In the caller's process they are copied, elsewhere pickled: each way keeps their knots."""
        vec = make([functools.partial(Knotted, tag, 3) for tag in range(3)])
        vec.reset()
        seen: list[Any] = []
        for step in range(7):
            infos = vec.step([0] * 3)[3]
            seen += infos
            for tag, info in enumerate(seen[-3:]):
                assert unpack_knot(info) == [step + 1, [step + 1] * 2, step + 1, tag]
        assert [unpack_knot(info)[0] for info in seen[::3]] == list(range(1, 8))
        assert [unpack_knot(info)[3] for info in vec.reset_infos] == [0, 1, 2]

    def test_rewards_beyond_float32(self, make: Make) -> None:
        """They are infinite, whatever NumPy is to do about that, and exact in `rewards64`."""
        vec = make([functools.partial(HugeRewardEnv, tag) for tag in range(3)])
        with np.errstate(all="raise"):
            vec.reset()
            for t in range(1, 9):
                assert vec.step([0] * 3)[1].tolist() == [np.inf, -np.inf, 0.5 * t]
                assert vec.rewards64.tolist() == [t * 1e300, -t * 1e300, 0.5 * t]
            vec.send([0] * 2, [1, 2])
            assert vec.recv(indices=[1, 2]).rewards.tolist() == [-np.inf, 4.5]

    def test_what_envs_give_is_not_changed_later(self, make: Make) -> None:
        """Neither the next step nor an autoreset changes them, whatever containers an info has."""
        vec = make(memo_fns())
        vec.reset()
        results = [vec.step([0] * 4)[3] for _ in range(2)]
        results.append(vec.get_attr("seen"))
        before = copy.deepcopy(results)
        last = vec.step([0] * 4)[3]
        assert results[0][0]["list"] == [1]
        assert str(results) == str(before)
        assert {str(info["counter"]) for info in last} == {str(Counter({1: 1, 2: 2, 3: 3}))}
        assert {(*info["deque"], *info["set"]) for info in last} == {(1, 2, 3) * 2}

    def test_an_info_that_cannot_be_unpickled(self, make: Make) -> None:
        """An error says so, and only its own env loses the row."""
        vec = make(memo_fns("info"))
        vec.reset()
        vec.step([0] * 4)
        try:
            assert "bad" in vec.step([0] * 4)[3][1]
        except EnvError as error:
            assert "env 1: its info" in str(error)
            assert "cannot be unpickled" in str(error)
            assert [one.index for one in error.errors] == [1]
            assert error.batch is not None
            assert error.batch.indices.tolist() == [0, 2, 3]
            self.are_refused(vec, error)
        self.goes_on(vec, say="")

    def test_a_last_info_that_cannot_be_unpickled(self, make: Make) -> None:
        """No episode begins after it, in any mode; nor does one whose reset has begun by then, and ends later."""
        fns = [functools.partial(MemoEnv, tag, "info" if tag == 1 else "", 2, 0.02) for tag in range(4)]
        for autoreset in ("same_step", "next_step", "async", "disabled"):
            vec = make(fns, autoreset=autoreset)
            vec.reset()
            vec.step([0] * 4)
            try:
                assert "bad" in vec.step([0] * 4)[3][1]
            except EnvError as error:
                assert {vec.reset_infos[one.index]["episode"] for one in error.errors} == {1}
                time.sleep(0.04)
                if autoreset != "disabled":  # in that mode the other envs need a reset, too
                    self.are_refused(vec, error)
            self.goes_on(vec, say="")

    def test_a_reset_info_that_cannot_be_unpickled(self, make: Make) -> None:
        vec = make(memo_fns("reset"))
        try:
            vec.reset()
            assert "bad" in vec.reset_infos[1]
        except EnvError as error:
            assert "unpickled" in str(error)
            assert [one.index for one in error.errors] == [1]
            self.are_refused(vec, error)
        self.goes_on(vec, say="")

    @pytest.mark.parametrize("way", ["step", "send", "reset", "set_options"])
    def test_what_its_own_process_alone_can_unpickle(self, make: Make, way: str) -> None:
        """The envs of the same message have an error and are refused until they are reset."""
        vec = make([functools.partial(ListeningEnv, tag) for tag in range(4)])
        vec.reset()
        vec.step(["a"] * 4)
        given = Homebound("a")
        try:
            if way == "step":
                vec.step(["a", given, "a", "a"])
            elif way == "send":
                vec.send([given], [1])
                vec.recv()
            elif way == "reset":
                vec.reset([1], options={"given": given})
            else:
                vec.set_options({"given": given})
        except EnvError as error:
            assert "Homebound" in str(error)
            assert error.index == (0 if way in ("step", "set_options") else 1)
            if way != "set_options":  # it needs no reset of the envs
                self.are_refused(vec, error, "a")
        vec.reset()
        assert vec.step(["a"] * 4)[0][:, 2].tolist() == [1] * 4

    def test_a_call_with_what_its_own_process_alone_can_unpickle(self, make: Make) -> None:
        """Each env of a worker that could not read it has an error of its own."""
        vec = make([functools.partial(ListeningEnv, tag) for tag in range(4)])
        vec.reset()
        elsewhere = [pid != os.getpid() for pid in vec.call(pid_of, None)]
        failed = []
        try:
            vec.call(takes_two, None, Homebound("a"))
        except EnvError as error:
            failed = [one.index for one in error.errors]
        assert failed == [slot for slot in range(4) if elsewhere[slot]]
        assert vec.call(takes_two, [3, 1], "a") == [(3, "a"), (1, "a")]

    @pytest.mark.parametrize("value", [threading.Lock, functools.partial(AwkwardError, 1, "here")])
    @pytest.mark.parametrize("way", ["reset", "set_options", "set_attr"])
    def test_arguments_that_cannot_travel(self, make: Make, way: str, value: Any) -> None:
        """They are refused before anything is sent, or reach envs in the caller's process."""
        vec = make(memo_fns())
        vec.reset()
        options = {"given": np.zeros(1), "x": value()}
        try:
            if way == "reset":
                vec.reset(options=options)
            elif way == "set_options":
                vec.set_options([{"given": np.zeros(1)}, options, None, None])
            else:
                vec.set_attr("x", options)
        except (TypeError, VecEnvError) as error:
            assert "pickle" in str(error)
        self.goes_on(vec, say="")

    def test_a_reward_beyond_all_floats(self, make: Make) -> None:
        """It is an error of its env."""
        vec = make(memo_fns("huge", 2))
        vec.reset()
        vec.step([0] * 4)
        with pytest.raises(EnvError) as caught:
            vec.step([0] * 4)
        assert caught.value.index == 2
        assert caught.value.batch is not None
        assert caught.value.batch.indices.tolist() == [0, 1, 3]
        self.goes_on(vec, say="")

    @pytest.mark.parametrize("kind", ["text", "sequence"])
    @pytest.mark.parametrize("autoreset", ["same_step", "next_step", "async"])
    def test_episodes_of_words_end(self, make: Make, kind: str, autoreset: str) -> None:
        """Last observations of variable shape are right in every mode, also in rows repeated during a reset."""
        vec = make([functools.partial(SpeakingEnv, tag, kind) for tag in range(3)], autoreset=autoreset)
        first = vec.reset()
        assert list(first) == ([f"{tag}x1x0" for tag in range(3)] if kind == "text" else [(t, 1, 0) for t in range(3)])
        ends = 0
        for _ in range(40):
            obs, _, dones, infos = vec.step([0] * 3)
            for tag in np.flatnonzero(dones):
                ends += 1
                last = infos[tag]["terminal_observation"] if autoreset == "same_step" else obs[tag]
                assert last[-1] in ("2", 2)
        assert ends >= 3

    def test_terminal_rows_of_async_mode_stay(self, make: Make) -> None:
        """They keep their values until the next call, also with copy=False."""
        vec = make(counting_fns(4, length=2), autoreset="async", copy=False)
        vec.reset()
        vec.step([0] * 4)
        obs, _, dones, _ = vec.step([0] * 4)
        assert dones.all()
        threading.Event().wait(0.05)  # resets end meanwhile
        assert obs[:, 2].tolist() == [2] * 4

    def test_spaces_are_not_an_envs_own(self, make: Make) -> None:
        """Sampling from the VecEnv's action space does not change what an env samples."""
        vec = make(counting_fns(2))
        vec.call(seed_actions, None, 3)
        vec.action_space.seed(99)
        space = spaces.Discrete(3)
        space.seed(3)
        assert vec.call(draw_actions, None, 20) == [[int(space.sample()) for _ in range(20)]] * 2

    @pytest.mark.parametrize("autoreset", ["same_step", "async"])
    def test_an_episode_whose_last_info_cannot_travel(self, make: Make, autoreset: str) -> None:
        """Its env is refused until it is reset, and then returns rows of its own episodes only."""
        vec = make([functools.partial(UnpicklableEnv, tag, 5 if tag == 1 else 99) for tag in range(3)],
                   autoreset=autoreset)  # fmt: skip
        vec.reset()
        for _ in range(4):
            vec.step([0] * 3)
        try:
            assert "lock" in vec.step([0] * 3)[3][1]
        except EnvError as error:
            assert "lock" in str(error)
            with pytest.raises(EnvError, match=r"reset\(\[1\]\) it first"):
                vec.step([0] * 3)
            vec.reset([1])
        for _ in range(40):
            obs, _, dones, infos = vec.step([0] * 3)
            if "episode_start" in infos[1]:
                assert obs[1, 2] == 0
            if vec.active[1] and not dones[1]:
                assert obs[1, 1:].tolist() == [vec.get_attr("episode")[1], vec.get_attr("t")[1]]

    def are_refused(self, vec: VecEnv, error: EnvError, action: Any = 0) -> None:
        """Check that exactly the envs of `error` have to be reset."""
        with pytest.raises(EnvError, match=r"reset\(\[\d\]\) it first") as caught:
            vec.step([action] * 4)
        assert [one.index for one in caught.value.errors] == [one.index for one in error.errors]
