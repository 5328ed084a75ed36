"""Envs of several agents, of two kinds with other spaces, that come, go and come back; rows name all they belong to."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

ByAgent = dict[str, Any]

CAT = spaces.Box(-1e9, 1e9, (4,), np.float64)
DOG = spaces.Dict({"image": spaces.Box(0, 255, (3, 2), np.uint8), "where": spaces.Box(-1e6, 1e6, (3,), np.float32)})
CAT_ACTION, DOG_ACTION = spaces.Discrete(5), spaces.Box(-1, 1, (2,), np.float32)


class Teams:
    """Cats and dogs that act at once, in the form of PettingZoo's ParallelEnv. All that happens follows the seed.

    Every observation names the env, its episode and step, the agent and what it did. Agents are born at random, also
    again, and die at random; the episode ends with the last one, or is cut after `length` steps.

    Args:
        tag: a number, to tell envs apart.
        cats: how many cats there may be.
        dogs: how many dogs there may be.
        length: the longest episode.
        turnover: the chance of an agent to die, or to come, in a step.
    """

    def __init__(self, tag: int = 0, cats: int = 3, dogs: int = 2, length: int = 9, turnover: float = 0.15) -> None:
        self.possible_agents = [f"cat_{k}" for k in range(cats)] + [f"dog_{k}" for k in range(dogs)]
        self.agents: list[str] = []
        self.tag, self.length, self.turnover = tag, length, turnover
        self.episode = self.t = 0
        self.rng = np.random.default_rng(tag)
        self.given: list[list[str]] = []  # the agents of each step's actions

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        """Return an agent's space."""
        return CAT if agent.startswith("cat") else DOG

    def action_space(self, agent: str) -> spaces.Space[Any]:
        """Return an agent's space."""
        return CAT_ACTION if agent.startswith("cat") else DOG_ACTION

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[ByAgent, ByAgent]:
        """Begin an episode with some of the agents, one at least, in random order."""
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.episode, self.t = self.episode + 1, 0
        count = int(self.rng.integers(1, len(self.possible_agents) + 1))
        self.agents = [str(agent) for agent in self.rng.permutation(self.possible_agents)[:count]]
        return {agent: self._see(agent, 0) for agent in self.agents}, {agent: {} for agent in self.agents}

    def step(self, actions: ByAgent) -> tuple[ByAgent, ByAgent, ByAgent, ByAgent, ByAgent]:
        """Step the agents that are there; `actions` has one for each of them."""
        assert set(actions) == set(self.agents), (sorted(actions), self.agents)
        self.given.append(list(actions))
        self.t += 1
        before = [str(agent) for agent in self.rng.permutation(self.agents)]
        over = self.t >= self.length
        dead = {agent: bool(self.rng.random() < self.turnover) for agent in before}
        cut = {agent: over and not dead[agent] for agent in before}
        absent = [agent for agent in self.possible_agents if agent not in before]
        born = [agent for agent in absent if self.rng.random() < self.turnover and not over]
        self.agents = [agent for agent in before if not (dead[agent] or cut[agent])] + born
        rows = [*before, *born]
        rewards = {agent: self.t + self._number(agent) / 8 for agent in before}
        infos = {agent: {"at": self.t} if self.rng.random() < 0.2 else {} for agent in rows}
        done = dict.fromkeys(born, False)
        obs = {agent: self._see(agent, actions.get(agent, 0)) for agent in rows}
        return obs, rewards, {**dead, **done}, {**cut, **done}, infos

    def close(self) -> None:
        """Do nothing."""

    def _number(self, agent: str) -> int:
        return self.possible_agents.index(agent)

    def _see(self, agent: str, action: Any) -> Any:
        did = float(np.sum(action))
        if agent.startswith("cat"):
            return np.array([self.tag, self.episode * 1000 + self.t, self._number(agent), did])
        image = np.full((3, 2), (self.tag * 31 + self.episode * 7 + self.t) % 256, np.uint8)
        return {"image": image, "where": np.array([self.episode, self._number(agent), did], np.float32)}


class TeamsOfRllib(Teams):
    """The same game in the form of RLlib's MultiAgentEnv: no `agents` to ask, flags with "__all__"."""

    def step(self, actions: ByAgent) -> tuple[ByAgent, ByAgent, ByAgent, ByAgent, ByAgent]:
        """Step as Teams does."""
        obs, rewards, dead, cut, infos = super().step(actions)
        over = not self.agents
        cut_now = over and any(cut.values())
        return obs, rewards, {**dead, "__all__": over and not cut_now}, {**cut, "__all__": cut_now}, infos


class TeamsByTurns:
    """Agents that act in turns, in the form of PettingZoo's AECEnv, with rewards for all at each turn.

    Args:
        tag: a number, to tell envs apart.
        count: the number of agents.
        length: turns of an episode.
        turnover: the chance of the agent after the acting one to die.
    """

    def __init__(self, tag: int = 0, count: int = 3, length: int = 11, turnover: float = 0.1) -> None:
        self.possible_agents = [f"player_{k}" for k in range(count)]
        self.tag, self.length, self.turnover = tag, length, turnover
        self.episode = self.t = 0
        self.rng = np.random.default_rng(tag)
        self.agents: list[str] = []
        self.agent_selection = ""
        self.owed: dict[str, float] = {}
        self.terminations: dict[str, bool] = {}
        self.truncations: dict[str, bool] = {}
        self.did: dict[str, int] = {}

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        """Return the space, of an observation and a mask of actions."""
        mask = spaces.Box(0, 1, (5,), np.int8)
        return spaces.Dict({"observation": spaces.Box(-1e9, 1e9, (4,), np.float64), "action_mask": mask})

    def action_space(self, agent: str) -> spaces.Space[Any]:
        """Return the space."""
        return CAT_ACTION

    def agent_iter(self) -> Any:
        """Yield the acting agents, as PettingZoo's envs do."""
        while self.agents:
            yield self.agent_selection

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Begin an episode; a random agent acts first."""
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.episode, self.t = self.episode + 1, 0
        self.agents = self.possible_agents[:]
        self.agent_selection = str(self.rng.choice(self.agents))
        self.owed = dict.fromkeys(self.agents, 0.0)
        self.terminations, self.truncations = (dict.fromkeys(self.agents, False) for _ in range(2))
        self.did = dict.fromkeys(self.agents, 0)

    def last(self) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Return what the acting agent sees and has collected."""
        agent = self.agent_selection
        number = self.possible_agents.index(agent)
        seen = np.array([self.tag, self.episode * 1000 + self.t, number, self.did[agent]], np.float64)
        mask = np.array([(number + self.t + k) % 2 for k in range(5)], np.int8)
        ended, cut = self.terminations[agent], self.truncations[agent]
        info = {"turn": self.t} if self.t % 3 == 0 else {}
        return {"observation": seen, "action_mask": mask}, self.owed[agent], ended, cut, info

    def step(self, action: Any) -> None:
        """Let the acting agent act, or take it out if its part has ended."""
        agent = self.agent_selection
        at = self.agents.index(agent)
        if self.terminations[agent] or self.truncations[agent]:
            assert action is None, action
            self.agents.remove(agent)
            if self.agents:
                self.agent_selection = self.agents[at % len(self.agents)]
            return
        self.t += 1
        self.did[agent], self.owed[agent] = int(action), 0.0
        for other in self.agents:
            self.owed[other] += self.t + self.possible_agents.index(other) / 8
        following = self.agents[(at + 1) % len(self.agents)]
        if self.t >= self.length:
            self.truncations = dict.fromkeys(self.possible_agents, True)
        elif self.rng.random() < self.turnover:
            self.terminations[following] = True
        self.agent_selection = following

    def close(self) -> None:
        """Do nothing."""
