"""Rows of envs of several agents as dicts by agent, in the forms that other libraries' loops take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vecenvs.agents.agents_env import AGENTS, ALL
from vecenvs.agents.roster import ACTS, PRESENT, TERMINATED, TRUNCATED
from vecenvs.batch.info_batches import map_leaves
from vecenvs.batch.layout import SpaceLayout
from vecenvs.vec_env import Options, Seeds
from vecenvs.wrappers.vec_rows import TERMINAL

if TYPE_CHECKING:
    from vecenvs.agents.multi_agent_vec_env import MultiAgentVecEnv

ByAgent = dict[Any, Any]


class _Dicts:
    """What both forms share: the actions by group."""

    def __init__(self, vec: MultiAgentVecEnv) -> None:
        self.vec = vec
        self.num_envs = vec.num_envs
        self.possible_agents = vec.agents
        roster = vec.roster
        self.observation_spaces = {agent: roster.observation_spaces[name] for agent, (name, _) in roster.places.items()}
        self.action_spaces = {agent: roster.action_spaces[name] for agent, (name, _) in roster.places.items()}
        action_space = roster.action_space
        self._no_actions = {name: _zeros(action_space[name], vec.num_envs) for name in roster.groups}

    def close(self) -> None:
        """Close every env and end the workers. May be called again."""
        self.vec.close()

    def _place(self, agent: Any) -> tuple[str, int]:
        if agent not in self.vec.roster.places:
            raise ValueError(f"an action for agent {agent!r}, but the agents are {self.possible_agents}")
        return self.vec.roster.places[agent]


class EnvDicts(_Dicts):
    """Lists with a dict agent -> value for each env. Only agents that have a row are in it.

    In the mode "same_step" the dict of an env whose episode has ended has the next one's observations; the last ones
    are in its infos, by agent under "terminal_observation".

    Args:
        vec: the VecEnv.
    """

    def reset(self, *, seed: Seeds = None, options: Options = None) -> tuple[list[ByAgent], list[ByAgent]]:
        """Reset all envs.

        Args:
            seed: as in `VecEnv.reset`.
            options: as in `VecEnv.reset`.

        Returns:
            The first observations and the infos, a dict by agent for each env.
        """
        obs = self.vec.reset(seed=seed, options=options)
        return self._observed(obs), [dict(info.get(AGENTS, {})) for info in self.vec.reset_infos]

    def step(
        self, actions: Sequence[Mapping[Any, Any]]
    ) -> tuple[list[ByAgent], list[ByAgent], list[ByAgent], list[ByAgent], list[ByAgent]]:
        """Step every env once.

        Args:
            actions: for each env the actions of the agents that act; those of others are ignored.

        Returns:
            Observations, rewards, terminations, truncations (both with "__all__") and infos, a dict by agent for each
            env.

        Raises:
            ValueError: an action is missing for an agent that acts, or there is no such agent.
        """
        if len(actions) != self.num_envs:
            raise ValueError(f"actions of {len(actions)} envs, but there are {self.num_envs}")
        batch = map_leaves(np.copy, self._no_actions)
        due = self.vec.flags & ACTS != 0
        for i, by_agent in enumerate(actions):
            for agent, action in by_agent.items():
                name, k = self._place(agent)
                _put(batch[name], (i, k), action)
            missing = [agent for k, agent in enumerate(self.possible_agents) if due[i, k] and agent not in by_agent]
            if missing:
                raise ValueError(f"env {i}: no action for {missing}, which act now")
        obs, _, dones, infos = self.vec.step(batch)
        flags = self.vec.flags
        exact = np.concatenate(list(self.vec.rewards64.values()), axis=1).tolist()
        lists: tuple[list[ByAgent], ...] = ([], [], [], [])
        for i, info in enumerate(infos):
            rows = [(a, f, r) for a, f, r in zip(self.possible_agents, flags[i].tolist(), exact[i], strict=True)
                    if f & (TERMINATED | TRUNCATED) or (f & PRESENT and not dones[i])]  # fmt: skip
            lists[0].append({agent: reward for agent, _, reward in rows})
            ended = {agent: bool(flag & TERMINATED) for agent, flag, _ in rows}
            cut = {agent: bool(flag & TRUNCATED) for agent, flag, _ in rows}
            whole_cut = bool(dones[i] and info["TimeLimit.truncated"])
            lists[1].append({**ended, ALL: bool(dones[i]) and not whole_cut})
            lists[2].append({**cut, ALL: whole_cut})
            own = dict(info.get(AGENTS, {}))
            if dones[i] and TERMINAL in info:
                for agent, _, _ in rows:
                    name, k = self._place(agent)
                    own[agent] = {**own.get(agent, {}), TERMINAL: _cut(info[TERMINAL][name], k)}
            lists[3].append(own)
        return self._observed(obs), *lists  # type: ignore[return-value]

    def _observed(self, obs: dict[str, Any]) -> list[ByAgent]:
        there = (self.vec.flags & PRESENT) != 0
        places = [(agent, *self._place(agent)) for agent in self.possible_agents]
        return [
            {agent: _cut(obs[name], (i, k)) for at, (agent, name, k) in enumerate(places) if there[i, at]}
            for i in range(self.num_envs)
        ]


class AgentDicts(_Dicts):
    """Dicts agent -> array (num_envs, ...), with zeros where an agent has no row.

    Args:
        vec: the VecEnv.
    """

    def reset(self, *, seed: Seeds = None, options: Options = None) -> tuple[ByAgent, ByAgent]:
        """Reset all envs.

        Args:
            seed: as in `VecEnv.reset`.
            options: as in `VecEnv.reset`.

        Returns:
            The first observations by agent, and infos by agent, each with "present" and "acts", bool (num_envs,).
        """
        obs = self.vec.reset(seed=seed, options=options)
        return self._by_agent(obs), self._masks()

    def step(self, actions: Mapping[Any, Any]) -> tuple[ByAgent, ByAgent, ByAgent, ByAgent, ByAgent]:
        """Step every env once.

        Args:
            actions: by agent, (num_envs, ...); zeros for agents that are missing.

        Returns:
            By agent: observations, rewards float32 (num_envs,), terminations and truncations bool (num_envs,), and
            infos, as of `reset`.
        """
        batch = map_leaves(np.copy, self._no_actions)
        for agent, given in actions.items():
            name, k = self._place(agent)
            _put(batch[name], (slice(None), k), given)
        obs, rewards, _, _ = self.vec.step(batch)
        parts = [self._by_agent(part) for part in (obs, rewards, self.vec.terminated, self.vec.truncated)]
        return *parts, self._masks()  # type: ignore[return-value]

    def _by_agent(self, by_group: Mapping[str, Any]) -> ByAgent:
        return {agent: _cut(by_group[name], (slice(None), k)) for agent, (name, k) in self.vec.roster.places.items()}

    def _masks(self) -> ByAgent:
        present, acts = self._by_agent(self.vec.present), self._by_agent(self.vec.acts)
        return {agent: {"present": present[agent], "acts": acts[agent]} for agent in present}


def _cut(batch: Any, place: Any) -> Any:
    return map_leaves(lambda rows: rows[place], batch)


def _put(batch: Any, place: Any, value: Any) -> None:
    """Write a value into a place of each leaf of a batch."""
    if isinstance(batch, dict):
        for key, part in batch.items():
            _put(part, place, value[key])
    elif isinstance(batch, tuple):
        for part, own in zip(batch, value, strict=True):
            _put(part, place, own)
    else:
        given = np.asarray(value)
        wanted = batch[place].shape
        if given.shape != wanted:
            raise ValueError(f"an action of shape {given.shape} where {wanted} is needed")
        if not np.can_cast(given.dtype, batch.dtype, "same_kind"):
            raise TypeError(f"an action of dtype {given.dtype} where {batch.dtype} is needed")
        batch[place] = given


def _zeros(space: Any, n: int) -> Any:
    layout = SpaceLayout(space)
    return layout.unflatten([np.zeros((n, *leaf.shape), leaf.dtype) for leaf in layout.leaves])
