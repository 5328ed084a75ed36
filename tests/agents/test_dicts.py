"""Rows as dicts by agent: those of a bare loop."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from vecenvs import make_multi_agent
from vecenvs.testing.compare import assert_same
from vecenvs.testing.envs.teams import Teams


def actions_of(agents: list[str]) -> dict[str, object]:
    return {agent: 2 if agent.startswith("cat") else np.full(2, 0.5, np.float32) for agent in agents}


def test_dicts_by_env() -> None:
    fns = [functools.partial(Teams, tag) for tag in range(2)]
    bare = [fn() for fn in fns]
    with make_multi_agent(fns, backend="dummy", seed=4) as vec:
        dicts = vec.as_dicts()
        obs, _ = dicts.reset()
        firsts = [env.reset(seed=4 + tag)[0] for tag, env in enumerate(bare)]
        assert_same(obs, firsts, "obs")
        for _ in range(40):
            obs, rewards, ended, cut, infos = dicts.step([actions_of(list(row)) for row in obs])
            for i, env in enumerate(bare):
                seen, wanted, dead, truncated, own = env.step(actions_of(env.agents))
                assert rewards[i] == {agent: wanted.get(agent, 0.0) for agent in rewards[i]}
                assert {agent for agent in ended[i] if ended[i][agent]} - {"__all__"} == {a for a in dead if dead[a]}
                assert {a for a in cut[i] if cut[i][a]} - {"__all__"} == {
                    a for a in truncated if truncated[a] and not dead[a]
                }
                assert set(wanted) <= set(rewards[i])
                over = not env.agents
                assert (ended[i]["__all__"] or cut[i]["__all__"]) == over
                if over:
                    for agent in seen:
                        assert_same(infos[i][agent]["terminal_observation"], seen[agent], agent)
                    seen = env.reset()[0]
                else:
                    assert infos[i] == {agent: info for agent, info in own.items() if info}
                assert_same(obs[i], seen, "obs")
            obs = [
                {agent: row[agent] for agent in row if agent in env.agents} for row, env in zip(obs, bare, strict=True)
            ]


def test_actions_of_agents_that_do_not_act() -> None:
    """Such as the None that PettingZoo's loops give."""
    with make_multi_agent(Teams, 2, backend="dummy", seed=4) as vec:
        dicts = vec.as_dicts()
        obs, _ = dicts.reset()
        assert any(len(row) < len(vec.agents) for row in obs)
        dicts.step([{**dict.fromkeys(vec.agents), **actions_of(list(row))} for row in obs])


def test_dicts_by_agent() -> None:
    with make_multi_agent([functools.partial(Teams, tag) for tag in range(3)], backend="dummy", seed=4) as vec:
        dicts = vec.as_dicts("agent")
        obs, infos = dicts.reset()
        assert obs["cat_1"].shape == (3, 4)
        assert obs["dog_0"]["image"].shape == (3, 3, 2)
        given = {agent: np.full(3, 2) if "cat" in agent else np.zeros((3, 2), np.float32) for agent in vec.agents}
        for _ in range(20):
            obs, rewards, ended, cut, infos = dicts.step(given)
            for agent in vec.agents:
                there = infos[agent]["present"]
                assert not np.asarray(obs[agent] if "cat" in agent else obs[agent]["where"])[~there].any()
                assert rewards[agent].shape == ended[agent].shape == cut[agent].shape == (3,)


def test_bad_actions() -> None:
    with make_multi_agent(Teams, 2, backend="dummy", seed=0) as vec:
        dicts = vec.as_dicts()
        obs, _ = dicts.reset()
        with pytest.raises(ValueError, match="'bird', but the agents are"):
            dicts.step([{"bird": 1}, {}])
        with pytest.raises(ValueError, match=r"env 0: no action for"):
            dicts.step([{}, {}])
        agent = next(iter(obs[0]))
        with pytest.raises(ValueError, match="shape"):
            dicts.step([{**actions_of(list(obs[0])), agent: np.zeros(7)}, actions_of(list(obs[1]))])
