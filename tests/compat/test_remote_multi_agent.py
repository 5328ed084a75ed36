"""Multi-agent envs of each contract through RemoteVectorEnv: changing agents, flags, infos."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Configuration
from gymnasium import spaces

from vecenvs.compat.multi_agent import MultiAgentAdapter
from vecenvs.compat.remote_vector_env import RemoteBaseEnv, RemoteVectorEnv
from vecenvs.errors import EnvError
from vecenvs.testing.compare import assert_same

matrix = "contract"
WAIT = 20_000


def make(cls: Any, configuration: Configuration, make_env: Any, num_envs: int = 2, **kwargs: Any) -> Any:
    given = {**configuration.kwargs, **kwargs}
    if "num_workers" in given:
        given["num_workers"] = min(given["num_workers"], num_envs)
    return cls(make_env, num_envs, True, WAIT, backend=configuration.backend, **given)


class Relay:
    """A ParallelEnv: agents "a" and "b" begin; after step 1 "c" comes, "a" leaves on step 2, "b" and "c" on step 4.

    Observation of an agent: [tag, t, the last action of that agent]. "a" terminates; so does "b"; "c" ends as `ends`.
    """

    possible_agents = ["a", "b", "c"]  # noqa: RUF012
    metadata = {"name": "relay"}  # noqa: RUF012

    def __init__(self, tag: int, ends: str = "terminated") -> None:
        self.tag, self.ends = tag, ends
        self.agents: list[str] = []
        self.seed: int | None = None
        self.t = 0

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(-1, 99, (3,), np.int64)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(3 if agent == "a" else 5)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.agents, self.t, self.seed = ["a", "b"], 0, seed
        return self._observe({}), {agent: {"seed": seed, "options": options} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        assert sorted(actions) == self.agents, (actions, self.agents)
        self.t += 1
        leaving = {2: ["a"], 4: ["b", "c"]}.get(self.t, [])
        if self.t == 1:
            self.agents.append("c")
        acting = list(self.agents)
        cut = {agent: agent in leaving and agent == "c" and self.ends == "truncated" for agent in acting}
        terminated = {agent: agent in leaving and not cut[agent] for agent in acting}
        rows = self._observe(actions)
        self.agents = [agent for agent in self.agents if agent not in leaving]
        return rows, dict.fromkeys(acting, self.t / 3), terminated, cut, {agent: {"t": self.t} for agent in acting}

    def render(self) -> str:
        return f"relay {self.tag}"

    def _observe(self, actions: dict[str, Any]) -> dict[str, Any]:
        return {agent: np.array([self.tag, self.t, actions.get(agent, -1)]) for agent in self.agents}


class Turns:
    """An RLlib MultiAgentEnv: players 0 and 1 act by turns; only the player that acts next has an observation."""

    observation_spaces = {0: spaces.Discrete(10), 1: spaces.Discrete(10)}  # noqa: RUF012
    action_space = spaces.Discrete(2)

    def __init__(self, tag: int, cut: bool = False) -> None:
        self.tag, self.cut, self.t = tag, cut, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[int, Any], dict[int, Any]]:
        self.t = 0
        return {0: 0}, {}

    def step(self, actions: dict[int, Any]) -> tuple[dict[Any, Any], ...]:
        ((player, action),) = actions.items()
        assert player == self.t % 2
        self.t += 1
        over = self.t == 3
        return (
            {self.t % 2: self.t},
            {player: float(action)},
            {"__all__": over and not self.cut},
            {"__all__": over and self.cut},
            {self.t % 2: {"by": player}},
        )

    def score(self, factor: int) -> int:
        return self.tag * factor


class OldTurns:
    """An older RLlib MultiAgentEnv: four dicts, reset without arguments, a seed method."""

    def __init__(self, limit: bool = False) -> None:
        self.limit, self.t, self.seeds = limit, 0, []

    def seed(self, seed: int) -> None:
        self.seeds.append(seed)

    def reset(self) -> dict[str, Any]:
        self.t = 0
        return {"x": 0.0, "y": 0.0}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        self.t += 1
        over = self.t == 2
        infos = {"x": {"TimeLimit.truncated": True}} if over and self.limit else {}
        obs = {agent: action + self.t for agent, action in actions.items()}
        return obs, dict.fromkeys(actions, 1.0), {"x": over, "y": over, "__all__": over}, infos


def test_agents_of_a_parallel_env_come_and_go(configuration: Configuration) -> None:
    env = make(RemoteVectorEnv, configuration, Relay, seed=3)
    assert env.action_space["a"] == spaces.Discrete(3)
    assert env.observation_space["c"].shape == (3,)
    obs, rewards, dones, infos, off_policy = env.poll()
    assert sorted(obs[1]) == ["a", "b"]
    assert rewards[1] == {"a": 0.0, "b": 0.0}
    assert dones == {0: {"__all__": False}, 1: {"__all__": False}}
    assert infos[1]["a"] == {"seed": 4, "options": None}
    assert env.get_agent_ids() == {"a", "b"}

    seen = []
    for t in range(1, 5):
        ended = [agent for agent, done in dones[1].items() if done]
        env.send_actions({1: {agent: t for agent in obs[1] if agent not in ended}})
        obs, rewards, dones, infos, off_policy = env.poll()
        assert_same(obs[1]["b"], np.array([1, t, t]))
        assert rewards[1]["b"] == t / 3
        assert infos[1]["b"] == {"t": t}
        seen.append((sorted(obs[1]), sorted(agent for agent, done in dones[1].items() if done)))
    assert seen == [
        (["a", "b", "c"], []),
        (["a", "b", "c"], ["a"]),
        (["b", "c"], []),
        (["b", "c"], ["__all__", "b", "c"]),
    ]
    assert env.get_agent_ids() == {"a", "b", "c"}
    assert off_policy == {}
    env.try_reset(1)
    assert sorted(env.poll()[0][1]) == ["a", "b"]
    env.stop()


def last_row(env: Any, env_id: int = 0) -> Any:
    """Play a Relay to its end; return the result of the last poll."""
    obs = env.poll()[0]
    leaving = {2: "a"}
    for t in range(1, 5):
        env.send_actions({env_id: {agent: 0 for agent in obs[env_id] if agent != leaving.get(t - 1)}})
        result = env.poll()
        obs = result[0]
    return result


def test_an_episode_that_ends_in_different_ways_is_truncated(configuration: Configuration) -> None:
    env = make(RemoteBaseEnv, configuration, lambda i: Relay(i, ends="truncated"))
    _, _, terminateds, truncateds, _, _ = last_row(env)
    assert terminateds == {0: {"b": True, "c": False, "__all__": False}}
    assert truncateds == {0: {"b": False, "c": True, "__all__": True}}
    env.stop()
    env = make(RemoteVectorEnv, configuration, lambda i: Relay(i, ends="truncated"))
    _, _, dones, infos, _ = last_row(env)
    assert dones == {0: {"b": True, "c": True, "__all__": True}}
    assert infos == {0: {"b": {"t": 4}, "c": {"t": 4, "TimeLimit.truncated": True}}}
    env.stop()
    env = make(RemoteBaseEnv, configuration, Relay)
    _, _, terminateds, truncateds, _, _ = last_row(env)
    assert terminateds[0]["__all__"] is True
    assert truncateds[0]["__all__"] is False
    env.stop()


@pytest.mark.parametrize("cut", [False, True])
def test_agents_that_act_by_turns(configuration: Configuration, cut: bool) -> None:
    env = make(RemoteBaseEnv, configuration, lambda i: Turns(i, cut))
    assert env.observation_space == spaces.Dict(Turns.observation_spaces)
    assert env.action_space == spaces.Discrete(2)
    obs = env.poll()[0]
    for t in range(3):
        assert obs == {0: {t % 2: t}, 1: {t % 2: t}}
        env.send_actions({env_id: {t % 2: 1} for env_id in range(2)})
        obs, rewards, terminateds, truncateds, infos, _ = env.poll()
        assert rewards[1] == {t % 2: 1.0}
        assert infos[1] == {(t + 1) % 2: {"by": t % 2}}
        assert terminateds[1] == {"__all__": t == 2 and not cut}
        assert truncateds[1] == {"__all__": t == 2 and cut}
    handle = env.get_sub_environments()[1]
    assert handle.env_method("score", 5) == 5
    handle.set_attr("tag", 4)
    assert handle.get_attr("tag") == 4
    env.stop()


@pytest.mark.parametrize("limit", [False, True])
def test_envs_from_before_gymnasium(configuration: Configuration, limit: bool) -> None:
    env = make(RemoteVectorEnv, configuration, lambda i: OldTurns(limit), seed=10)
    assert env.observation_space is None
    obs, _, dones, infos, _ = env.poll()
    assert infos == {i: {"x": {}, "y": {}} for i in range(2)}
    assert [handle.get_attr("seeds") for handle in env.get_sub_environments()] == [[10], [11]]
    for t in (1, 2):
        env.send_actions({env_id: {"x": 1.0, "y": 2.0} for env_id in range(2)})
        obs, _, dones, infos, _ = env.poll()
        assert obs[0] == {"x": 1.0 + t, "y": 2.0 + t}
        assert dones[0] == dict.fromkeys(("x", "y", "__all__"), t == 2)
    assert infos[0] == ({"x": {"TimeLimit.truncated": True}} if limit else {})
    env.stop()
    env = make(RemoteBaseEnv, configuration, lambda i: OldTurns(limit))
    env.poll()
    env.try_reset(0, options={"level": 1})
    with pytest.raises(EnvError, match="takes no options"):
        env.poll()
    env.stop()


def test_old_truncations_are_told_apart() -> None:
    adapter = MultiAgentAdapter(OldTurns(limit=True))
    adapter.reset()
    adapter.step({"x": 0.0, "y": 0.0})
    _, reward, terminated, truncated, info = adapter.step({"x": 0.0, "y": 0.0})
    assert (reward, terminated, truncated) == (2.0, False, True)
    assert info["agents"]["terminateds"] == {"x": False, "y": True, "__all__": False}
    assert info["agents"]["truncateds"] == {"x": True, "y": False, "__all__": True}


class Broken(Turns):
    def __init__(self, gives: Any) -> None:
        super().__init__(0)
        self.gives = gives

    def step(self, actions: dict[int, Any]) -> Any:
        return self.gives


@pytest.mark.parametrize(
    ("gives", "words"),
    [
        (None, "four or five"),
        (({}, {}), "four or five"),
        (({}, 0.0, {}, {}, {}), "as a dict by agent"),
        (({0: 1}, {0: 0.0}, {0: False}, {0: False}, {}), "no `agents`"),
        (({0: 1}, {0: 0.0}, {0: False}, {}), "without '__all__'"),
    ],
)
def test_what_is_no_multi_agent_env_is_said(gives: Any, words: str) -> None:
    env = RemoteVectorEnv(lambda i: Broken(gives), 1, True, WAIT, backend="dummy")
    env.poll()
    env.send_actions({0: {0: 0}})
    with pytest.raises(EnvError, match=words):
        env.poll()
    env.stop()
    with pytest.raises(EnvError, match="without reset"):
        RemoteVectorEnv(lambda i: object(), 1, True, WAIT, backend="dummy")


class Mortal(Relay):
    """End the process on the first step, once."""

    def __init__(self, tag: int, file: Path) -> None:
        super().__init__(tag)
        self.file = file

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        if not self.file.exists():
            self.file.touch()
            os._exit(3)
        return super().step(actions)


def test_a_replaced_worker_ends_the_episode_for_every_agent(tmp_path: Path) -> None:
    file = tmp_path / "dead"
    env = RemoteVectorEnv(lambda i: Mortal(i, file), 1, True, WAIT, backend="subproc", on_failure="restart")
    env.poll()
    env.send_actions({0: {"a": 0, "b": 0}})
    obs, rewards, dones, infos, _ = env.poll()
    assert sorted(obs[0]) == ["a", "b"]
    assert rewards[0] == {"a": 0.0, "b": 0.0}
    assert dones[0] == {"a": True, "b": True, "__all__": True}
    assert infos[0]["a"] == {"worker_restarted": True, "TimeLimit.truncated": True}
    env.try_reset(0)
    env.poll()
    env.send_actions({0: {"a": 0, "b": 0}})
    assert sorted(env.poll()[0][0]) == ["a", "b", "c"]
    env.stop()


def test_an_exception_is_told_to_all_agents() -> None:
    class Raising(Relay):
        def step(self, actions: Any) -> Any:
            if self.t == 1:
                raise RuntimeError("boom")
            return super().step(actions)

    env = RemoteBaseEnv(Raising, 1, True, WAIT, backend="dummy", on_error="reset")
    env.poll()
    for _ in range(2):
        env.send_actions({0: {"a": 0, "b": 0}})
        infos = env.poll()[4]
    assert [*infos[0].values()] == [{"env_error": "RuntimeError: boom"}] * len(infos[0])
    env.stop()


class Wordless:
    """Two agents, whose infos are none on a truncated row."""

    def reset(self, **_: Any) -> Any:
        return {"a": 0, "b": 0}, {}

    def step(self, actions: Any) -> Any:
        over = {"a": True, "b": True, "__all__": True}
        return {"a": 1, "b": 1}, {"a": 1.0, "b": 1.0}, {"__all__": False}, over, {"a": None, "b": None}


def test_rows_of_which_poll_cannot_tell() -> None:
    env = RemoteVectorEnv(lambda _: Wordless(), 1, True, WAIT, backend="dummy")
    env.poll()
    env.send_actions({0: {"a": 0, "b": 0}})
    with pytest.raises(TypeError):
        env.poll()
    env.try_reset(0)
    assert env.poll()[0] == {0: {"a": 0, "b": 0}}
    env.stop()
