"""Envs of PettingZoo and MPE2: rows equal those of a loop over the bare env, bit for bit."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
from gymnasium import spaces

from vecenvs import as_sb3, make_multi_agent
from vecenvs.testing.compare import assert_same


def spread() -> Any:
    from mpe2 import simple_spread_v3

    return simple_spread_v3.parallel_env()


def tag() -> Any:
    from mpe2 import simple_tag_v3

    return simple_tag_v3.parallel_env(continuous_actions=True)


def tictactoe() -> Any:
    from pettingzoo.classic import tictactoe_v3

    return tictactoe_v3.env()


def connect_four() -> Any:
    from pettingzoo.classic import connect_four_v3

    return connect_four_v3.env()


@pytest.mark.parametrize("backend", ["dummy", pytest.param("subproc", marks=pytest.mark.long)])
@pytest.mark.parametrize("make", [spread, tag])
def test_agents_at_once(make: Any, backend: str) -> None:
    bare, rng = [make() for _ in range(3)], np.random.default_rng(0)
    with make_multi_agent(make, 3, backend=backend) as vec:
        obs = vec.reset(seed=7)
        firsts = [env.reset(seed=7 + i)[0] for i, env in enumerate(bare)]
        for _ in range(60):
            for agent, (name, k) in vec.roster.places.items():
                assert_same(obs[name][:, k], np.stack([first[agent] for first in firsts]), agent)
            actions = {}
            for name, members in vec.groups.items():
                space = vec.action_spaces[name]
                shape = (3, len(members), *space.shape)
                actions[name] = rng.integers(5, size=shape) if not space.shape else rng.random(shape, np.float32)
            obs, rewards, dones, _ = vec.step(actions)
            firsts = []
            for i, env in enumerate(bare):
                given = {agent: actions[name][i, k] for agent, (name, k) in vec.roster.places.items()}
                seen, own, _, _, _ = env.step(given)
                assert all(rewards[name][i, k] == np.float32(own[a]) for a, (name, k) in vec.roster.places.items())
                assert dones[i] == (not env.agents)
                firsts.append(seen if env.agents else env.reset()[0])


@pytest.mark.filterwarnings("ignore:The old environment creation API:DeprecationWarning")
@pytest.mark.parametrize("make", [tictactoe, connect_four])
def test_turns(make: Any) -> None:
    bare, rng = make(), np.random.default_rng(0)
    with make_multi_agent(make, 1, backend="dummy") as vec:
        obs = vec.reset(seed=3)
        bare.reset(seed=3)
        games = 0
        for _ in range(80):
            agent = bare.agent_selection
            k = int(vec.acting[0])
            assert vec.agents[k] == agent
            seen = bare.last()[0]
            assert_same(obs["agents"][0, k], seen["observation"], "obs")
            masks = vec.action_mask
            assert masks is not None
            assert_same(masks["agents"][0, k], seen["action_mask"], "mask")
            action = int(rng.choice(np.flatnonzero(seen["action_mask"])))
            obs, rewards, dones, _ = vec.step(np.array([action]))
            bare.step(action)
            ended: dict[str, float] = {}
            while bare.agents and (bare.terminations[bare.agent_selection] or bare.truncations[bare.agent_selection]):
                ended[bare.agent_selection] = bare.last()[1]
                bare.step(None)
            assert dones[0] == (not bare.agents)
            if not bare.agents:
                games += 1
                assert {a: rewards["agents"][0, i] for i, a in enumerate(vec.agents)} == ended
                bare.reset()
        assert games > 2


@pytest.mark.long
@pytest.mark.timeout(300)
def test_ppo_with_shared_parameters() -> None:
    """SB3 learns on the agents' rows."""
    from stable_baselines3 import PPO

    from vecenvs import VecMonitor

    vec = VecMonitor(make_multi_agent(spread, 8, backend="dummy", seed=0).flat())
    model = PPO("MlpPolicy", as_sb3(vec), n_steps=64, batch_size=256, seed=0)
    model.learn(3 * 64 * vec.num_envs)
    assert len(model.ep_info_buffer) > 0
    vec.close()


class Duel:
    """An env by turns: in its second turn the first agent dies with -1, and the other gets 5."""

    metadata: ClassVar[dict[str, Any]] = {}
    render_mode = None
    possible_agents: ClassVar[list[str]] = ["a", "b"]

    def observation_space(self, _: str) -> Any:
        return spaces.Box(0, 999, (1,), np.float32)

    def action_space(self, _: str) -> Any:
        return spaces.Discrete(2)

    def reset(self, seed: Any = None, options: Any = None) -> None:
        self.agents, self.agent_selection, self.turn, self.dead = ["a", "b"], "a", 0, ""
        self._cumulative_rewards = dict.fromkeys("ab", 0.0)

    def observe(self, agent: str) -> Any:
        return np.array([self.turn + 100 * (agent == "b")], np.float32)

    def last(self) -> Any:
        agent = self.agent_selection
        return self.observe(agent), self._cumulative_rewards[agent], agent == self.dead, False, {}

    def step(self, action: Any) -> None:
        agent, other = self.agent_selection, "b" if self.agent_selection == "a" else "a"
        self._cumulative_rewards[agent] = 0.0
        if agent == self.dead:
            self.agents.remove(agent)
            self.agent_selection = other
            return
        self.turn += 1
        if self.turn == 3:
            self.dead = agent
            self._cumulative_rewards.update(a=-1.0, b=5.0)
        else:
            self.agent_selection = other

    def agent_iter(self) -> None:
        """Only there: what has it is an env by turns."""


@pytest.mark.parametrize("ends", ["any", "all"])
def test_what_the_last_turn_brings_the_others(ends: str) -> None:
    with make_multi_agent(Duel, 1, backend="dummy", ends=ends) as vec:
        vec.reset()
        for _ in range(3):
            _, rewards, dones, infos = vec.step(np.zeros((1, 2), np.int64))
        assert rewards["agents"].tolist() == [[-1.0, 5.0]]
        assert dones.tolist() == [ends == "any"]
        if ends == "any":
            assert infos[0]["terminal_observation"]["agents"].tolist() == [[3], [103]]
