"""`Roster`: the agents that an env may have, in groups of equal spaces, and the spaces of the arrays that hold them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from vecenvs.batch.layout import SpaceLayout
from vecenvs.batch.space_equality import same_space

REWARDS, FLAGS, MASKS = "__rewards__", "__flags__", "__action_mask__"
"""Keys of a slot's observation beside those of the groups: what agents have besides their observations."""
PRESENT, ACTS, STARTED, TERMINATED, TRUNCATED = 1, 2, 4, 8, 16
"""Bits of an agent's flags."""
ENDED = TERMINATED | TRUNCATED

Groups = Mapping[str, Sequence[Any]] | None


@dataclass(frozen=True)
class Roster:
    """The agents of an env by group, in the order of the arrays' agent axis.

    Attributes:
        groups: the agents of each group.
        observation_spaces: the space of one agent's observations, by group, without its action mask.
        action_spaces: the space of one agent's actions, by group.
        masked: the groups whose observations are Dicts of "observation" and "action_mask".
        by_turns: whether one agent acts at a time (PettingZoo's AEC envs).
    """

    groups: dict[str, tuple[Any, ...]]
    observation_spaces: dict[str, spaces.Space[Any]]
    action_spaces: dict[str, spaces.Space[Any]]
    masked: dict[str, spaces.Space[Any]]
    by_turns: bool

    @cached_property
    def agents(self) -> list[Any]:
        """All agents, group by group."""
        return [agent for members in self.groups.values() for agent in members]

    @cached_property
    def slices(self) -> dict[str, slice]:
        """Where each group's agents are among all agents."""
        found, start = {}, 0
        for name, members in self.groups.items():
            found[name] = slice(start, start + len(members))
            start += len(members)
        return found

    @cached_property
    def places(self) -> dict[Any, tuple[str, int]]:
        """The group of each agent, and its place there."""
        return {agent: (name, k) for name, members in self.groups.items() for k, agent in enumerate(members)}

    def by_group(self, rows: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Divide an array (n, all agents) into those of the groups."""
        return {name: rows[:, part] for name, part in self.slices.items()}

    @property
    def observation_space(self) -> spaces.Dict:
        """The space of a slot's observation."""
        count = len(self.agents)
        parts: dict[str, spaces.Space[Any]] = {
            name: batch_space(space, len(self.groups[name])) for name, space in self.observation_spaces.items()
        }
        parts[REWARDS] = spaces.Box(-np.inf, np.inf, (count,), np.float64)
        parts[FLAGS] = spaces.Box(0, 255, (count,), np.uint8)
        if self.masked:
            parts[MASKS] = spaces.Dict(
                {name: batch_space(space, len(self.groups[name])) for name, space in self.masked.items()}
            )
        return spaces.Dict(parts)

    @property
    def action_space(self) -> spaces.Dict:
        """The space of a slot's action."""
        return spaces.Dict(
            {name: batch_space(space, len(self.groups[name])) for name, space in self.action_spaces.items()}
        )


def roster_of(env: Any, groups: Groups) -> Roster:
    """Ask an env for its agents and their spaces, and divide them into groups.

    Args:
        env: a PettingZoo ParallelEnv or AECEnv, an RLlib MultiAgentEnv, or an env of one of these forms.
        groups: the agents of each group; None for groups of equal spaces, named as their agents are without a number
            at the end ("adversary" for "adversary_0" and "adversary_1"), "agents" if there is only one.

    Returns:
        The roster.

    Raises:
        TypeError: the env does not name its agents, or a space that cannot be stacked.
        ValueError: the groups do not hold each agent once, or agents of unequal spaces.
    """
    agents = _possible_agents(env)
    by_agent = {agent: (_space_of(env, "observation", agent), _space_of(env, "action", agent)) for agent in agents}
    divided = _by_spaces(agents, by_agent) if groups is None else _given(groups, agents, by_agent)
    observed: dict[str, spaces.Space[Any]] = {}
    acted: dict[str, spaces.Space[Any]] = {}
    masked: dict[str, spaces.Space[Any]] = {}
    for name, members in divided.items():
        seen, acted[name] = by_agent[members[0]]
        observed[name] = seen
        if isinstance(seen, spaces.Dict) and set(seen.spaces) == {"observation", "action_mask"}:
            observed[name], masked[name] = seen["observation"], seen["action_mask"]
        for what, space in (("observations", observed[name]), ("actions", acted[name])):
            objects = [leaf for leaf in SpaceLayout(space).leaves if leaf.is_object]
            if objects:
                raise TypeError(
                    f"{what} of agent {members[0]!r} are {space}, which has no array form: "
                    "vecenvs.compat.remote_vector_env.RemoteVectorEnv(..., multiagent=True) takes agents of any spaces"
                )
    turns = callable(getattr(env, "agent_iter", None)) and callable(getattr(env, "last", None))
    return Roster(divided, observed, acted, masked, turns)


def _possible_agents(env: Any) -> list[Any]:
    named = getattr(env, "possible_agents", None) or _keys(getattr(env, "observation_spaces", None))
    if not named:
        named = _keys(getattr(env, "observation_space", None))
    if not named:
        raise TypeError(
            f"{type(env).__name__} does not name its agents: set its `possible_agents`, a list of all agents that an "
            "episode may have"
        )
    agents = list(named)
    if len(set(agents)) < len(agents):
        raise ValueError(f"possible_agents of {type(env).__name__} names an agent twice: {agents}")
    return agents


def _keys(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (Mapping, spaces.Dict)) else []


def _space_of(env: Any, what: str, agent: Any) -> spaces.Space[Any]:
    """Return an agent's space, wherever the env has it: a method, a dict by agent, or one space for all."""
    for name in (f"{what}_space", f"{what}_spaces"):
        found = getattr(env, name, None)
        if callable(found) and not isinstance(found, spaces.Space):
            found = found(agent)
        elif isinstance(found, (Mapping, spaces.Dict)) and agent in found:
            found = found[agent]
        elif isinstance(found, spaces.Dict):
            found = None
        if isinstance(found, spaces.Space):
            return found
    raise TypeError(f"{type(env).__name__} has no {what} space of agent {agent!r}: give it {what}_space(agent)")


def _alike(first: Iterable[spaces.Space[Any]], second: Iterable[spaces.Space[Any]]) -> bool:
    return all(same_space(one, other) for one, other in zip(first, second, strict=True))


def _by_spaces(agents: Sequence[Any], by_agent: Mapping[Any, tuple[Any, Any]]) -> dict[str, tuple[Any, ...]]:
    sets: list[list[Any]] = []
    for agent in agents:
        same = next((members for members in sets if _alike(by_agent[members[0]], by_agent[agent])), None)
        if same is None:
            sets.append([agent])
        else:
            same.append(agent)
    if len(sets) == 1:
        return {"agents": tuple(sets[0])}
    stems = [{re.sub(r"_?\d+$", "", str(agent)) for agent in members} for members in sets]
    clear = all(len(found) == 1 and "" not in found for found in stems) and len(set.union(*stems)) == len(sets)
    names = [found.pop() if clear else f"group_{k}" for k, found in enumerate(stems)]
    return {name: tuple(members) for name, members in zip(names, sets, strict=True)}


def _given(groups: Any, agents: Sequence[Any], by_agent: Mapping[Any, tuple[Any, Any]]) -> dict[str, tuple[Any, ...]]:
    divided = {name: tuple(members) for name, members in groups.items()}
    members = [agent for group in divided.values() for agent in group]
    unknown = [agent for agent in members if agent not in by_agent]
    if unknown:
        raise ValueError(f"groups name {unknown}, but the env's agents are {list(agents)}")
    left = [agent for agent in agents if members.count(agent) != 1]
    if left:
        raise ValueError(f"each agent belongs to one group, but {left} are in none or in several of {divided}")
    for name, group in divided.items():
        if not group:
            raise ValueError(f"group {name!r} has no agent")
        other = next((agent for agent in group if not _alike(by_agent[group[0]], by_agent[agent])), None)
        if other is not None:
            raise ValueError(
                f"agents {group[0]!r} and {other!r} of group {name!r} have unequal spaces, {by_agent[group[0]]} and "
                f"{by_agent[other]}: put them into groups of their own, or pad them by a wrapper (supersuit has some)"
            )
    return divided


def check_groups(groups: Any) -> None:
    """Raise TypeError or ValueError unless `groups` is None, or maps names to lists of agents."""
    if groups is None:
        return
    if not isinstance(groups, Mapping) or not all(isinstance(name, str) for name in groups):
        raise TypeError(f"groups must map names to lists of agents, not {groups!r}")
    for name, members in groups.items():
        if isinstance(members, (str, bytes)) or not isinstance(members, Iterable):
            raise TypeError(f"group {name!r} must be a list of agents, not {members!r}")
    reserved = {REWARDS, FLAGS, MASKS} & set(groups)
    if reserved or not groups:
        raise ValueError(f"groups cannot be named {sorted(reserved)}" if reserved else "groups must name a group")
