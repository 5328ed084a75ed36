"""`AgentsRow`: the arrays of one row of an env of several agents, written anew at each step."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.vector.utils import create_empty_array

from vecenvs import _native
from vecenvs.agents.roster import ACTS, FLAGS, MASKS, PRESENT, REWARDS, Roster
from vecenvs.batch.layout import SpaceLayout, coerce


class AgentsRow:
    """The row of an env. Workers copy it out before the next one.

    Args:
        roster: the agents.

    Attributes:
        value: the row, a value of `roster.observation_space`.
        everyone: all agents.
        ends: the flags with which agents have ended on this row.
    """

    def __init__(self, roster: Roster) -> None:
        self.everyone = roster.agents
        self.ends: set[int] = set()
        count = len(self.everyone)
        spaces = roster.observation_spaces
        self.value: dict[str, Any] = {
            name: create_empty_array(space, len(roster.groups[name]), np.zeros) for name, space in spaces.items()
        }
        self.value[REWARDS], self.value[FLAGS] = np.zeros(count), np.zeros(count, np.uint8)
        if roster.masked:
            self.value[MASKS] = {
                name: create_empty_array(space, len(roster.groups[name]), np.zeros)
                for name, space in roster.masked.items()
            }
        self._index = {agent: k for k, agent in enumerate(self.everyone)}
        self._groups = [_GroupRows(roster, name, self.value) for name in roster.groups]
        self._places = {agent: (group, k) for group in self._groups for k, agent in enumerate(group.members)}
        self._flags = memoryview(self.value[FLAGS])
        self._rewards: Any = memoryview(self.value[REWARDS])
        self._reward_bytes = self._rewards.cast("B")
        self._pack_rewards = struct.Struct(f"{count}d").pack
        self._none, self._all = bytes(count), bytes([PRESENT | ACTS] * count)
        self._last = self._none  # the flags of the row before

    def clear(self) -> None:
        """Begin another row."""
        self._last = bytes(self._flags)
        self._flags[:] = self._none
        self._reward_bytes[:] = bytes(len(self._reward_bytes))
        self.ends.clear()

    def clear_all(self) -> None:
        """Begin the first row of an episode, whatever a step that failed has left of the last one."""
        for group in self._groups:
            for k in range(len(group.members)):
                group.clear(k)
        self.clear()
        self._last = self._none

    def known(self, agent: Any) -> Any:
        """Return the agent; ValueError if the env had not named it."""
        if agent not in self._index:
            raise ValueError(f"agent {agent!r} is not in possible_agents, {self.everyone}")
        return agent

    def write(self, agent: Any, obs: Any, flag: int) -> None:
        """Write an agent's observation and flags; ValueError for an unknown agent."""
        group, k = self._places[self.known(agent)]
        try:
            group.write(k, obs)
        except (TypeError, ValueError, KeyError) as problem:
            raise type(problem)(f"agent {agent!r}: {problem}") from None
        self._flags[self._index[agent]] = flag

    def write_all(self, obs: Mapping[Any, Any], rewards: Mapping[Any, Any]) -> bool:
        """Write a row on which all agents are present and act; False if they are not, or for values of other types."""
        try:
            if not len(obs) == len(rewards) == len(self.everyone):
                return False
            packed = self._pack_rewards(*[rewards[agent] for agent in self.everyone])
            if not all(group.write_all(obs) for group in self._groups):
                return False
        except (struct.error, TypeError, ValueError, KeyError):
            return False  # what is wrong is said where agents are written one by one
        self._reward_bytes[:] = packed
        self._flags[:] = self._all
        return True

    def end(self, agent: Any, flag: int) -> None:
        """Note that an agent has ended on this row."""
        k = self._index[agent]
        self._flags[k] = self._flags[k] & ~ACTS | flag
        self.ends.add(flag)

    def add_reward(self, agent: Any, reward: Any) -> None:
        """Add to an agent's reward on this row."""
        try:
            self._rewards[self._index[agent]] += float(reward)
        except (TypeError, ValueError):
            raise TypeError(f"the reward of agent {agent!r} must be a number, not {reward!r}") from None

    def finish(self) -> float:
        """Put zeros in the place of observations that only the last row had. Return the sum of the rewards."""
        if self._last != self._flags:
            for (group, k), was, now in zip(self._places.values(), self._last, self._flags, strict=True):
                if was & PRESENT and not now & PRESENT:
                    group.clear(k)
        return float(sum(self._rewards))

    def actions(self, batch: dict[str, Any], agents: Sequence[Any]) -> dict[Any, Any]:
        """Return the actions of agents."""
        found: dict[Any, Any] = {}
        for group in self._groups:
            own = dict(
                zip(group.members, group.actions(batch[group.name]), strict=False)
            )  # strict takes twice the time
            found = {**found, **own} if found else own
        return found if agents == self.everyone else {agent: found[agent] for agent in agents}


class _GroupRows:
    """The part of a row that one group has: arrays (agents, ...), one for each leaf of its observations and masks."""

    def __init__(self, roster: Roster, name: str, value: dict[str, Any]) -> None:
        self.name = name
        self.members = roster.groups[name]
        self._actions = SpaceLayout(roster.action_spaces[name])
        self._layout = SpaceLayout(roster.observation_spaces[name])
        self._is_masked = name in roster.masked
        self._leaves = [*self._layout.leaves]
        self._arrays = [*self._layout.flatten(value[name])]
        if self._is_masked:
            self._leaves += SpaceLayout(roster.masked[name]).leaves
            self._arrays.append(value[MASKS][name])
        self._write_arrays = _native.chosen.write_arrays
        self._is_one_array = self._layout.is_flat and not self._is_masked

    def _parts(self, obs: Any) -> list[Any]:
        if self._is_masked:
            return [*self._layout.observed(obs["observation"]), obs["action_mask"]]
        return self._layout.observed(obs)

    def write(self, k: int, obs: Any) -> None:
        """Write the observation of agent k."""
        for array, leaf, value in zip(self._arrays, self._leaves, self._parts(obs), strict=True):
            if type(value) is np.ndarray and value.dtype == leaf.dtype and value.shape == leaf.shape:
                array[k] = value
            else:
                array[k] = coerce(value, leaf)

    def write_all(self, obs: Mapping[Any, Any]) -> bool:
        """Write those of all agents, if they are arrays of the space's dtypes and shapes; return whether they are."""
        given = [obs[agent] for agent in self.members]
        if self._is_one_array:
            return bool(self._write_arrays(self._arrays[0], given))
        return all(map(self._write_arrays, self._arrays, zip(*map(self._parts, given), strict=True)))

    def clear(self, k: int) -> None:
        """Put zeros in the place of agent k's observation."""
        for array in self._arrays:
            array[k] = 0

    def actions(self, batch: Any) -> Iterable[Any]:
        """Return the action of each agent."""
        leaves = self._actions.flatten(batch)
        return leaves[0] if self._actions.is_flat else [*map(self._actions.unflatten, zip(*leaves, strict=True))]
