"""Rows of envs of several agents as dicts by agent, in the forms that other libraries' loops take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from vecenvs.agents.agents_env import AGENTS, ALL
from vecenvs.agents.roster import ACTS, ENDED, PRESENT, TERMINATED, TRUNCATED
from vecenvs.batch.info_batches import map_leaves
from vecenvs.batch.layout import SpaceLayout
from vecenvs.vec_env import Options, Seeds
from vecenvs.wrappers.vec_rows import TERMINAL

if TYPE_CHECKING:
    from vecenvs.agents.multi_agent_vec_env import MultiAgentVecEnv

ByAgent = dict[Any, Any]


class _Dicts:
    """What both forms share: the spaces, and actions by group of actions by agent."""

    def __init__(self, vec: MultiAgentVecEnv) -> None:
        self.vec = vec
        self.num_envs = vec.num_envs
        self.possible_agents = vec.agents
        places = vec.roster.places
        self.observation_spaces = {agent: vec.observation_spaces[name] for agent, (name, _) in places.items()}
        self.action_spaces = {agent: vec.action_spaces[name] for agent, (name, _) in places.items()}
        self._layouts = {name: SpaceLayout(space) for name, space in vec.action_spaces.items()}

    def close(self) -> None:
        """Close every env and end the workers. May be called again."""
        self.vec.close()

    def _known(self, actions: Mapping[Any, Any]) -> None:
        unknown = [agent for agent in actions if agent not in self.vec.roster.places]
        if unknown:
            raise ValueError(f"an action for agent {unknown[0]!r}, but the agents are {self.possible_agents}")

    def _no_action(self, name: str, *lead: int) -> Any:
        layout = self._layouts[name]
        return layout.unflatten([np.zeros((*lead, *leaf.shape), leaf.dtype) for leaf in layout.leaves])

    def _joined(self, name: str, actions: Sequence[Any], *lead: int) -> list[Any]:
        """Return the leaves of actions of a group's agents, in turn; each action is of `lead` envs."""
        layout = self._layouts[name]
        joined = []
        for leaf, column in zip(layout.leaves, zip(*map(layout.flatten, actions), strict=True), strict=True):
            wanted = (*lead, *leaf.shape)
            wrong = [k for k, value in enumerate(column) if np.shape(value) != wanted]
            if wrong:
                members = self.vec.groups[name]
                env, k = divmod(wrong[0], len(members))
                of = f"agent {members[k]!r}" if lead else f"agent {members[k]!r} of env {env}"
                raise ValueError(f"the action{leaf} of {of} has shape {np.shape(column[wrong[0]])}, not {wanted}")
            joined.append(np.asarray(column))
        return joined


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
        obs, _, dones, infos = self.vec.step(self._by_group(actions))
        flags, agents = self.vec.flags.tolist(), self.possible_agents
        exact = np.concatenate(list(self.vec.rewards64.values()), axis=1).tolist()
        lists: tuple[list[ByAgent], ...] = ([], [], [], [])
        for row, rewards, over, info in zip(flags, exact, dones.tolist(), infos, strict=True):
            there = [(agent, flag) for agent, flag in zip(agents, row, strict=True)
                     if flag & ENDED or (flag & PRESENT and not over)]  # fmt: skip
            by_agent = dict(zip(agents, rewards, strict=True))
            lists[0].append({agent: by_agent[agent] for agent, _ in there})
            cut = over and info["TimeLimit.truncated"]
            lists[1].append({**{agent: bool(flag & TERMINATED) for agent, flag in there}, ALL: over and not cut})
            lists[2].append({**{agent: bool(flag & TRUNCATED) for agent, flag in there}, ALL: cut})
            own = dict(info.get(AGENTS, {}))
            if over and TERMINAL in info:
                for agent, _ in there:
                    name, k = self.vec.roster.places[agent]
                    last = map_leaves(itemgetter(k), info[TERMINAL][name])
                    own[agent] = {**own.get(agent, {}), TERMINAL: last}
            lists[3].append(own)
        return self._observed(obs), *lists  # type: ignore[return-value]

    def _by_group(self, actions: Sequence[Mapping[Any, Any]]) -> dict[str, Any]:
        if len(actions) != self.num_envs:
            raise ValueError(f"actions of {len(actions)} envs, but there are {self.num_envs}")
        counted: list[ByAgent] = []
        for i, (by_agent, row) in enumerate(zip(actions, (self.vec.flags & ACTS).tolist(), strict=True)):
            self._known(by_agent)
            due = [agent for agent, acts in zip(self.possible_agents, row, strict=True) if acts]
            if missing := [agent for agent in due if agent not in by_agent]:
                raise ValueError(f"env {i}: no action for {missing}, which act now")
            counted.append({agent: by_agent[agent] for agent in due})
        batch = {}
        for name, members in self.vec.groups.items():
            none = self._no_action(name)
            leaves = self._joined(name, [by_agent.get(agent, none) for by_agent in counted for agent in members])
            shaped = [leaf.reshape(self.num_envs, len(members), *leaf.shape[1:]) for leaf in leaves]
            batch[name] = self._layouts[name].unflatten(shaped)
        return batch

    def _observed(self, obs: dict[str, Any]) -> list[ByAgent]:
        rows: list[ByAgent] = [{} for _ in range(self.num_envs)]
        for name, members in self.vec.groups.items():
            layout = SpaceLayout(self.vec.observation_spaces[name])
            present = self.vec.present[name].tolist()
            for i, parts in enumerate(zip(*layout.flatten(obs[name]), strict=True)):
                values = parts[0] if layout.is_flat else map(layout.unflatten, zip(*parts, strict=True))
                rows[i].update(
                    (agent, value) for agent, value, there in zip(members, values, present[i], strict=True) if there
                )
        return rows


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
        self._known(actions)
        batch = {}
        for name, members in self.vec.groups.items():
            none = self._no_action(name, self.num_envs)
            leaves = self._joined(name, [actions.get(agent, none) for agent in members], self.num_envs)
            batch[name] = self._layouts[name].unflatten([leaf.swapaxes(0, 1) for leaf in leaves])
        obs, rewards, _, _ = self.vec.step(batch)
        parts = [self._by_agent(part) for part in (obs, rewards, self.vec.terminated, self.vec.truncated)]
        return *parts, self._masks()  # type: ignore[return-value]

    def _by_agent(self, by_group: Mapping[str, Any]) -> ByAgent:
        places = self.vec.roster.places.items()
        return {agent: map_leaves(itemgetter((slice(None), k)), by_group[name]) for agent, (name, k) in places}

    def _masks(self) -> ByAgent:
        present, acts = self._by_agent(self.vec.present), self._by_agent(self.vec.acts)
        return {agent: {"present": present[agent], "acts": acts[agent]} for agent in present}
