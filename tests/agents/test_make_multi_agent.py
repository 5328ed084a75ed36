"""`make_multi_agent`: its arguments, groups, and what envs do wrong."""

from __future__ import annotations

import functools
import os
import signal
import threading
from typing import Any, ClassVar

import numpy as np
import pytest
from gymnasium import spaces

import vecenvs
from vecenvs import (
    DummyVecEnv,
    EnvError,
    MultiAgentVecEnv,
    SpaceMismatch,
    info_columns,
    make_multi_agent,
    make_vec_env,
)
from vecenvs.testing.envs.teams import Teams, TeamsByTurns, TeamsOfRllib


def zeros(vec: MultiAgentVecEnv) -> dict[str, Any]:
    return {
        name: np.zeros((vec.num_envs, len(members), *vec.action_spaces[name].shape), vec.action_spaces[name].dtype)
        for name, members in vec.groups.items()
    }


def test_groups() -> None:
    with make_multi_agent(Teams, 2, backend="dummy") as vec:
        assert vec.groups == {"cat": ("cat_0", "cat_1", "cat_2"), "dog": ("dog_0", "dog_1")}
    given = {"few": ["cat_2"], "dogs": ["dog_1", "dog_0"], "many": ["cat_0", "cat_1"]}
    with make_multi_agent(Teams, 2, given, backend="dummy", seed=1) as vec:
        obs = vec.reset()
        assert [part.shape for part in (obs["few"], obs["many"], obs["dogs"]["where"])] == [
            (2, 1, 4),
            (2, 2, 4),
            (2, 2, 3),
        ]
        assert vec.agents == ["cat_2", "dog_1", "dog_0", "cat_0", "cat_1"]


@pytest.mark.parametrize(
    ("groups", "match"),
    [
        ({"all": ["cat_0", "dog_0"]}, "in none or in several"),
        ({"a": ["cat_0", "cat_1", "cat_2", "dog_0"], "b": ["dog_1"]}, "unequal spaces"),
        ({"a": ["bird"]}, r"groups name \['bird'\]"),
    ],
)
def test_groups_that_cannot_be(groups: Any, match: str) -> None:
    with pytest.raises(EnvError, match=match):
        make_multi_agent(Teams, 2, groups, backend="dummy")


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"env_fn": 3}, TypeError, "env_fn"),
        ({"env_fn": []}, TypeError, "env_fn"),
        ({"env_fn": [Teams], "num_envs": 2}, ValueError, "num_envs=2"),
        ({"env_fn": Teams, "num_envs": 2, "groups": ["cat_0"]}, TypeError, "groups"),
        ({"env_fn": Teams, "num_envs": 2, "groups": {"a": "cat_0"}}, TypeError, "group 'a'"),
        ({"env_fn": Teams, "num_envs": 2, "groups": {"__flags__": ["cat_0"]}}, ValueError, "__flags__"),
        ({"env_fn": Teams, "num_envs": 2, "ends": "some"}, ValueError, "ends"),
        ({"env_fn": Teams, "num_envs": 2, "backend": "dumy"}, ValueError, "dumy"),
    ],
)
def test_arguments(arguments: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        make_multi_agent(**arguments)


def test_other_functions_name_this_one() -> None:
    with pytest.raises(Exception, match="make_multi_agent"):
        make_vec_env(Teams, num_envs=2, backend="dummy")
    with pytest.raises(Exception, match="make_multi_agent"):
        DummyVecEnv([Teams])
    with (
        make_vec_env("CartPole-v1", num_envs=1, backend="dummy") as vec,
        pytest.raises(EnvError, match="several agents"),
    ):
        MultiAgentVecEnv(vec)


@pytest.mark.parametrize("view", [vecenvs.as_gymnasium, vecenvs.as_sb3, vecenvs.VecMonitor])
def test_views_take_the_rows_of_agents(view: Any) -> None:
    with make_multi_agent(Teams, 2, backend="dummy") as vec, pytest.raises(TypeError, match=r"flat\(\) gives one"):
        view(vec)


def test_unequal_rosters() -> None:
    with pytest.raises((SpaceMismatch, EnvError), match="env 1"):
        make_multi_agent([Teams, functools.partial(Teams, cats=2, dogs=3)], backend="dummy")


SOME_CATS = 1  # a seed with which Teams begins with a cat, and without some agent


class Wrong(Teams):
    """Does one thing wrong in its second step."""

    def __init__(self, wrong: str) -> None:
        super().__init__(0, turnover=0.0)
        self.wrong = wrong

    def step(self, actions: Any) -> Any:
        obs, rewards, dead, cut, infos = super().step(actions)
        if self.t == 2:
            first = next(agent for agent in obs if agent.startswith("cat"))
            if self.wrong == "shape":
                obs[first] = np.zeros(5)
            elif self.wrong == "reward":
                rewards[first] = "much"
            elif self.wrong == "absent":
                absent = next(agent for agent in self.possible_agents if agent not in obs)
                rewards[absent] = 1.0
            elif self.wrong == "gone":
                self.agents.remove(first)
            elif self.wrong == "four":
                return obs, rewards, dead, infos
            elif self.wrong == "list":
                return list(obs.values()), rewards, dead, cut, infos
        return obs, rewards, dead, cut, infos


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ("shape", r"agent 'cat_\d': observation has shape \(5,\)"),
        ("reward", r"reward of agent 'cat_\d' must be a number"),
        ("absent", r"a reward of 1.0 for agent '\w+', which is absent"),
        ("gone", r"'cat_\d' is no longer in Wrong.agents"),
        ("four", "must return five dicts by agent"),
        ("list", "must return five dicts by agent"),
    ],
)
def test_what_envs_do_wrong(wrong: str, match: str) -> None:
    with make_multi_agent(functools.partial(Wrong, wrong), 1, backend="dummy") as vec:
        vec.reset(seed=SOME_CATS)
        vec.step(zeros(vec))
        with pytest.raises(EnvError, match=match):
            vec.step(zeros(vec))
        vec.reset()
        vec.step(zeros(vec))


class FailsOnce(Teams):
    """Shows all agents and fails in its first episode; has one in the next ones."""

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed)
        self.agents = self.possible_agents[: 5 if self.episode == 1 else 1]
        return {agent: self._see(agent, 0) for agent in self.agents}, {}

    def step(self, actions: Any) -> Any:
        raise RuntimeError("no")


def test_a_failed_step_leaves_nothing_in_the_next_episode() -> None:
    with make_multi_agent(FailsOnce, 1, backend="dummy") as vec:
        assert vec.reset()["cat"].any(axis=2).all()
        with pytest.raises(EnvError, match="RuntimeError"):
            vec.step(zeros(vec))
        obs = vec.reset()
        assert obs["cat"].any(axis=2).tolist() == [[True, False, False]]
        assert not obs["dog"]["image"].any()


def test_actions_of_another_shape() -> None:
    with make_multi_agent(Teams, 2, backend="dummy") as vec:
        vec.reset()
        with pytest.raises(ValueError, match="dog"):
            vec.step({**zeros(vec), "dog": np.zeros((2, 2, 3), np.float32)})
        with pytest.raises(ValueError, match="the groups are"):
            vec.step({"cat": np.zeros((2, 3), int)})
        with pytest.raises(TypeError, match="by group"):
            vec.step(np.zeros((2, 5)))


class Raises(Teams):
    """Env 1 raises in the third step of an episode."""

    def step(self, actions: Any) -> Any:
        if self.tag == 1 and self.t == 2:
            raise RuntimeError("no")
        return super().step(actions)


@pytest.mark.parametrize("mode", ["same_step", "next_step"])
def test_an_env_that_raises_goes_on(mode: str) -> None:
    """With on_error its agents are truncated on that row, without a reward, and begin anew."""
    fns = [functools.partial(Raises, tag, turnover=0.0) for tag in range(2)]
    with make_multi_agent(fns, backend="dummy", seed=0, autoreset=mode, on_error="reset") as vec:
        vec.reset()
        for _ in range(2):
            vec.step(zeros(vec))
        acted = {name: vec.acts[name][1].copy() for name in vec.groups}
        _, rewards, dones, infos = vec.step(zeros(vec))
        assert dones.tolist() == [False, True]
        assert "RuntimeError" in infos[1]["env_error"]
        for name in vec.groups:
            np.testing.assert_array_equal(vec.truncated[name][1], acted[name])
            np.testing.assert_array_equal(vec.moved[name][1], acted[name])
            assert not rewards[name][1].any()
            assert not vec.terminated[name].any()
        for _ in range(4):
            vec.step(zeros(vec))


class RaisesOnce(Raises):
    """Env 1 raises once; the reset after that waits for the gate."""

    gate: threading.Event
    raised = False

    def step(self, actions: Any) -> Any:
        self.raised |= self.tag == 1 and self.t == 2
        return super().step(actions)

    def reset(self, **kwargs: Any) -> Any:
        if self.raised:
            assert self.gate.wait(30)
        return super().reset(**kwargs)


def test_nobody_is_there_while_an_env_that_raised_is_reset() -> None:
    """Its row repeats the last one, on which agents acted; nobody is present until the next episode begins."""
    RaisesOnce.gate = threading.Event()
    fns = [functools.partial(RaisesOnce, tag, turnover=0.0) for tag in range(2)]
    with make_multi_agent(fns, backend="dummy", seed=0, autoreset="async", on_error="reset") as vec:
        try:
            vec.reset()
            for _ in range(3):
                infos = vec.step(zeros(vec))[3]
            assert "RuntimeError" in infos[1]["env_error"]
            rewards, _, infos = vec.step(zeros(vec))[1:]
            assert infos[1]["resetting"]
            for name in vec.groups:
                assert not (vec.present[name][1] | vec.acts[name][1] | vec.started[name][1]).any()
                assert not rewards[name][1].any()
        finally:
            RaisesOnce.gate.set()
        while "resetting" in infos[1]:
            infos = vec.step(zeros(vec))[3]
        assert any(vec.started[name][1].any() and vec.acts[name][1].any() for name in vec.groups)


class Owes(TeamsOfRllib):
    """Agents have a row in every third step alone; rewards come in all."""

    def step(self, actions: Any) -> Any:
        self.agents = self.agents or self.possible_agents[:]
        self.t += 1
        rows = self.possible_agents if self.t % 3 == 0 else self.possible_agents[:1]
        flags = {"__all__": self.t == 7}
        rewards = {agent: float(self.t) for agent in self.possible_agents}
        return {agent: self._see(agent, 0) for agent in rows}, rewards, flags, {"__all__": False}, {}

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.t = 0
        return {agent: self._see(agent, 0) for agent in self.possible_agents}, {}


def test_rewards_wait_for_a_row() -> None:
    """What an agent collects while it has no row comes with its next one; at the end all have it."""
    with make_multi_agent(functools.partial(Owes, cats=3, dogs=0), 1, backend="dummy", autoreset="next_step") as vec:
        vec.reset()
        found = [vec.step(zeros(vec))[1]["agents"][0].tolist() for _ in range(7)]
        assert found == [[1, 0, 0], [2, 0, 0], [3, 6, 6], [4, 0, 0], [5, 0, 0], [6, 15, 15], [7, 7, 7]]
        assert vec.terminated["agents"].all()


def test_episodes_end_with_the_first_agent() -> None:
    with make_multi_agent(Teams, 3, backend="dummy", seed=0, ends="any", autoreset="next_step") as vec:
        vec.reset()
        ends = 0
        for _ in range(40):
            _, _, dones, _ = vec.step(zeros(vec))
            flags = np.any(
                [(part[name]).any(axis=1) for part in (vec.terminated, vec.truncated) for name in part], axis=0
            )
            assert (dones == flags).all()
            ends += int(dones.sum())
        assert ends > 10


def test_attributes_are_the_env_s() -> None:
    with make_multi_agent([functools.partial(Teams, tag) for tag in range(2)], backend="subproc") as vec:
        vec.reset()
        assert vec.get_attr("tag") == [0, 1]
        vec.set_attr("length", 3)
        assert vec.get_attr("length") == [3, 3]
        assert vec.call(type, None) == [Teams, Teams]
        assert vec.env_method("action_space", "cat_0")[0] == spaces.Discrete(5)
        assert vec.stats()["num_envs"] == len(vec) == 2


def test_turns() -> None:
    """One action for the agent that acts, masks of what is possible, and none for envs without masks."""
    with make_multi_agent(TeamsByTurns, 2, backend="dummy", seed=0) as vec:
        vec.reset()
        for _ in range(20):
            masks = vec.action_mask
            assert masks is not None
            own = masks["agents"][np.arange(2), vec.acting]
            vec.step(own.argmax(axis=1))
        assert "make_multi_agent" in vecenvs.__all__
    with make_multi_agent(Teams, 2, backend="dummy", seed=0) as vec:
        vec.reset()
        assert vec.action_mask is None


def test_infos_of_agents_as_columns() -> None:
    fns = [functools.partial(Teams, tag, dogs=0) for tag in range(3)]
    with make_multi_agent(fns, backend="dummy", seed=0) as vec:
        vec.reset()
        told = 0
        for _ in range(20):
            infos = vec.step(zeros(vec))[3]
            expected = [info.get("agents", {}) for info in infos]
            by_agent = info_columns(infos)["agents"].values if any(expected) else {}
            for agent, column in by_agent.items():
                at = column.values["at"]
                assert at.mask.tolist() == [agent in own for own in expected]
                assert at.values.tolist() == [own.get(agent, {"at": 0})["at"] for own in expected]
                assert at.values.dtype == np.int64
                told += 1
        assert told


def test_a_worker_that_dies() -> None:
    """Its agents are truncated, and begin anew."""
    with make_multi_agent(
        functools.partial(Teams, turnover=0.0), 2, backend="subproc", num_workers=2, on_failure="restart", seed=0
    ) as vec:
        vec.reset()
        alive = [vec.acts[name][0].copy() for name in vec.groups]
        vec.step(zeros(vec))
        os.kill(vec.stats()["workers"][0]["pid"], signal.SIGKILL)
        for _ in range(30):
            _, rewards, dones, infos = vec.step(zeros(vec))
            if infos[0].get("worker_restarted"):
                break
        assert dones[0]
        assert infos[0]["worker_restarted"]
        for name, acted in zip(vec.groups, alive, strict=True):
            np.testing.assert_array_equal(vec.truncated[name][0], acted)
            assert not rewards[name][0].any()
        vec.step(zeros(vec))


class BothWays:
    """An env of two agents that end at their first step: both are terminated, the first one is truncated as well."""

    possible_agents: ClassVar[list[str]] = ["a", "b"]
    metadata: ClassVar[dict[str, Any]] = {}

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(-9, 9, (1,))

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents = ["a", "b"]
        return {agent: np.zeros(1, np.float32) for agent in "ab"}, {agent: {} for agent in "ab"}

    def step(self, actions: dict[str, Any]) -> Any:
        self.agents = []
        obs, ends = {agent: np.ones(1, np.float32) for agent in actions}, dict.fromkeys(actions, True)
        return obs, dict.fromkeys(actions, 1.0), ends, {**ends, "b": False}, {agent: {} for agent in actions}


@pytest.mark.parametrize("autoreset", ["same_step", "next_step", "async", "disabled"])
@pytest.mark.parametrize("backend", ["dummy", "subproc"])
def test_an_agent_that_is_terminated_and_truncated_has_both_flags(backend: str, autoreset: str) -> None:
    with make_multi_agent(BothWays, num_envs=2, backend=backend, autoreset=autoreset) as vec:
        vec.reset()
        vec.step({"agents": np.zeros((2, 2), int)})
        assert vec.terminated["agents"].tolist() == [[True, True]] * 2
        assert vec.truncated["agents"].tolist() == [[True, False]] * 2


class OneGoes(BothWays):
    """After one step b has ended, and a alone goes on; there are masks in infos at odd steps."""

    boom = False

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.t = 0
        return super().reset(seed, options)

    def step(self, actions: dict[str, Any]) -> Any:
        if self.boom:
            self.boom = False
            raise ValueError("boom")
        now, self.agents = self.agents, ["a"]
        self.t += 1
        infos = {agent: {"action_mask": np.array([1, 0], np.int8)} if self.t % 2 else {} for agent in now}
        ends, no = {agent: agent == "b" for agent in now}, dict.fromkeys(now, False)
        return {agent: np.full(1, self.t, np.float32) for agent in now}, dict.fromkeys(now, 1.0), ends, no, infos


@pytest.mark.parametrize("how", ["restart", "reset"])
@pytest.mark.parametrize("autoreset", ["same_step", "next_step", "disabled"])
def test_an_agent_that_has_ended_has_no_part_in_the_row_of_an_error(how: str, autoreset: str) -> None:
    policies = {"on_failure": "restart", "on_error": "reset", "num_workers": 1}
    with make_multi_agent(OneGoes, 1, autoreset=autoreset, backend="subproc", **policies) as vec:
        vec.reset()
        actions = np.zeros((1, 2), int)
        vec.step(actions)
        if how == "restart":
            os.kill(vec.stats()["workers"][0]["pid"], signal.SIGKILL)
        else:
            vec.set_attr("boom", True)
        obs, _, dones, infos = vec.step(actions)
        assert dones.tolist() == [True]
        assert infos[0]["terminal_observation"]["agents"].tolist() == [[1.0], [0.0]]
        assert vec.truncated["agents"].tolist() == [[True, False]]
        assert vec.moved["agents"].tolist() == [[True, False]]
        if autoreset == "same_step":
            assert vec.started["agents"].tolist() == [[True, True]]
        else:
            assert vec.present["agents"].tolist() == [[True, False]]
            assert obs["agents"].tolist() == [[[1.0], [0.0]]]


def test_masks_of_some_rows_alone() -> None:
    """Where no info of these rows has one, all is possible."""
    with make_multi_agent(OneGoes, 2, backend="dummy") as vec:
        vec.reset()
        assert vec.action_mask is None
        for expected in ([1, 0], [1, 1], [1, 0]):
            vec.step(np.zeros((2, 2), int))
            assert vec.action_mask is not None
            assert vec.action_mask["agents"][:, 0].tolist() == [expected] * 2
        vec.send(np.zeros((2, 2), int))
        batch = vec.recv(2)
        assert batch.action_mask is not None
        assert batch.action_mask["agents"].tolist() == [[[1, 1]] * 2] * 2
        assert batch.moved["agents"].tolist() == [[True, False]] * 2


class Late:
    """In RLlib's form: b has its first row at the first step, on which the episode may end."""

    render_mode, possible_agents = None, ("a", "b")
    metadata: ClassVar[dict[str, Any]] = {}
    observation_spaces: ClassVar = {agent: spaces.Box(-9, 9, (1,)) for agent in "ab"}
    action_spaces: ClassVar = {agent: spaces.Discrete(3) for agent in "ab"}

    def __init__(self, length: int) -> None:
        self.length, self.agents = length, ["a", "b"]

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.t = 0
        return {"a": np.zeros(1, np.float32)}, {}

    def step(self, actions: dict[str, Any]) -> Any:
        self.t += 1
        obs = {agent: np.ones(1, np.float32) for agent in "ab"}
        return obs, {"a": 1.0}, {"__all__": self.t == self.length}, {"__all__": False}, {}


@pytest.mark.parametrize("autoreset", ["same_step", "next_step", "disabled"])
def test_a_first_row_that_is_the_last_one(autoreset: str) -> None:
    for length in (2, 1):
        with make_multi_agent(functools.partial(Late, length), 1, autoreset=autoreset, backend="dummy") as vec:
            vec.reset()
            vec.step({"agents": np.zeros((1, 2), int)})
            assert vec.terminated["agents"].tolist() == [[length == 1] * 2]
            assert vec.moved["agents"].tolist() == [[True, False]]
            if length == 1 and autoreset == "same_step":  # what follows is the next episode's
                assert vec.started["agents"].tolist() == [[True, False]]
            else:
                assert vec.started["agents"].tolist() == [[False, True]]
            if autoreset == "disabled" and length == 1:
                continue
            vec.step({"agents": np.zeros((1, 2), int)})
            assert vec.moved["agents"].tolist() == [
                [True, length == 2] if length == 2 or autoreset == "same_step" else [False, False]
            ]


class Visitor(Late):
    """In PettingZoo's form: b comes and ends on the second step, and the env goes on returning its observation."""

    def __init__(self) -> None:
        super().__init__(4)

    def reset(self, **given: Any) -> Any:
        self.agents = ["a"]
        return super().reset(**given)

    def step(self, actions: dict[str, Any]) -> Any:
        obs, rewards, *_ = super().step(actions)
        if self.t < 2:
            del obs["b"]
        elif self.t == 2:
            rewards["b"] = 5.0
        over = self.t == self.length
        self.agents = [] if over else ["a"]
        return obs, rewards, {"a": over, "b": self.t >= 2}, dict.fromkeys("ab", False), {"b": {"t": self.t}}


@pytest.mark.parametrize("backend", ["dummy", "subproc"])
def test_an_agent_that_comes_and_ends_on_one_row(backend: str) -> None:
    with make_multi_agent(Visitor, 2, autoreset="next_step", backend=backend) as vec:
        vec.reset()
        for _ in range(3):
            rows = []
            for _ in range(4):
                obs, rewards, dones, _ = vec.step(zeros(vec))
                masks = vec.present, vec.started, vec.terminated, vec.moved, vec.acts
                flags = [mask["agents"][:, 1].tolist() for mask in masks]
                rows.append((flags, rewards["agents"][:, 1].tolist(), obs["agents"][:, 1, 0].tolist()))
            nothing = [[False] * 2] * 5, [0.0] * 2, [0.0] * 2
            visit = [*[[True] * 2] * 3, *[[False] * 2] * 2], [5.0] * 2, [1.0] * 2
            assert rows == [nothing, visit, nothing, nothing]
            assert dones.all()
            vec.step(zeros(vec))  # begins the next episode


@pytest.mark.parametrize(
    ("kwargs", "name"),
    [({}, "DummyVecEnv"), ({"step_timeout": 60.0}, "SubprocVecEnv"), ({"start_method": "fork"}, "SubprocVecEnv")],
)
def test_arguments_about_workers_give_one(kwargs: dict[str, Any], name: str) -> None:
    with make_multi_agent(functools.partial(Teams, 0), 1, **kwargs) as vec:
        assert type(vec.vec).__name__ == name


@pytest.mark.parametrize("kwargs", [{"num_workers": 8}, {"recycle": vecenvs.Recycle(episodes=5)}], ids=str)
def test_there_are_at_most_as_many_workers_as_envs(kwargs: dict[str, Any]) -> None:
    with make_multi_agent(functools.partial(Teams, 0), 3, episode_seeds=True, **kwargs) as vec:
        assert len(vec.stats()["workers"]) == 3
    with pytest.raises(ValueError, match="num_workers must be at least 1"):
        make_multi_agent(functools.partial(Teams, 0), 1, num_workers=0)
